"""Cluster access: cached reads of Kubernetes objects, Events, and the release of pins that can't hold.

Read `live` first: it decides from caches (`store`, `tables`, `objects`). `reflector` updates the caches through
`client`. `snapshot` fills the same store from files, and `ondemand` fills it with reads of single objects. `events`
writes Events to the API server. `releaser` deletes pods whose pin can't hold, in the replica that `election` elects.

Only this package imports `kubernetes`. It may import `placement`.
"""
