"""Tests of webhook.serving: its parts in the test process, and `serve` as a separate process over real sockets."""
