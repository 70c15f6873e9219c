"""The webhook server: HTTPS for AdmissionReviews, plain HTTP for probes and metrics.

`worker` runs the process, `app` has the routes of both ports. `http` serves connections, `review` responds to reviews,
`telemetry` reports what the server does.
"""
