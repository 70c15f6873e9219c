"""Read a cluster once, for the commands: files and snapshots, whole lists, single objects, and one VM."""
