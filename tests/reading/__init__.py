"""Tests of webhook.reading: files, snapshots, and reads of a cluster for the commands."""
