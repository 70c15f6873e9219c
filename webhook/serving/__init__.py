"""The webhook server: HTTPS for AdmissionReviews, plain HTTP for probes and metrics.

Read `server` first, then follow a request: `loop`, `connection`, `request_parser`, `app`, `reviewer`, `review`.
`tls_channel` is the TLS socket, `decision_pool` the threads. `metrics` and `logs` report what the server does.

Only this package imports `flask` and `gunicorn`. It may import `cluster` and `placement`.
"""
