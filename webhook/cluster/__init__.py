"""What the webhook knows about the cluster, and what it writes to the cluster.

Read `live` first: it answers the decision's questions from caches (`store`, `tables`, `objects`) that `reflector` keeps
up to date through `client`. `snapshot` fills the same store from files, `ondemand` by reading single objects. `events`
writes Events.

This is the only room that imports `kubernetes`. It may import `placement`.
"""
