"""The live cluster: cached reads of Kubernetes objects, Events, and the release of pins that can't hold.

Read `kinds` first: each kind of object is one entry. `live_catalog` decides from `caches`, which `client` keeps up to
date. `events` writes Events to the API server. `releaser` deletes pods whose pin can't hold, in the replica that
`election` elects.

Only this room imports `kubernetes`. It may import `fleet` and `placement`.
"""
