"""Cluster access: cached reads of Kubernetes objects, and writes of Events.

Read `live` first: it decides from caches (`store`, `tables`, `objects`). `reflector` updates the caches through
`client`. `snapshot` fills the same store from files, and `ondemand` fills it with reads of single objects. `events`
writes Events to the API server.

Only this package imports `kubernetes`. It may import `placement`.
"""
