"""The live cluster: watches, Events, and the release of pins that can't hold.

Read `live_catalog` first: it decides from a `catalog` that one `reflector` per kind keeps up to date, through `client`.
`events` writes Events to the API server. `releaser` deletes pods whose pin can't hold, in the replica that
`election` elects.
"""
