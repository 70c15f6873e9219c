"""A gunicorn worker that speaks TLS, HTTP/1.1 and WSGI: an event loop that serves all connections of a port.

Read `gunicorn_worker` and `loop` first, then follow a request: `connection`, `tls_channel`, `parser`, `wsgi`.
`peer_accounts` shares the server fairly.
"""
