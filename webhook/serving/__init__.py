"""The server: the bytes of a request in, the bytes of a response out.

Read `server` first, then follow a request: `loop`, `connection`, `exchange`, `app`, `reviewer`, `review`. `channel` is
the TLS socket, `decision_pool` the threads, `metrics` and `logs` are what the server reports.

This is the only room that imports `flask` and `gunicorn`. It may import `cluster` and `placement`.
"""
