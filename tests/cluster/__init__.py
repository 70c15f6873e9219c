"""Tests of webhook.cluster: caches, snapshots and events, with a fake HTTP API server."""
