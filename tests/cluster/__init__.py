"""Caches, snapshots and events, against a fake API server that speaks HTTP."""
