"""Read a cluster once, for the commands: files and snapshots, whole lists, single objects, and one VM.

This room may import `cluster`, `fleet` and `placement`, and not `serving`.
"""
