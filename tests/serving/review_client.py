"""A client of a port's responses, without a socket: it builds parsed requests, and reads the responses."""

import json
from time import monotonic
from typing import Any

from webhook.cluster.backend import Backend
from webhook.placement.settings import Settings
from webhook.serving.app import PROBE_PATHS, REVIEW_PATHS, Health, create_app, review_shortcut
from webhook.serving.review.reviewer import Reviewer
from webhook.serving.telemetry.metrics import Metrics
from webhook.serving.worker.messages import Head, Request
from webhook.serving.worker.messages import Response as Answer
from webhook.serving.worker.wsgi import Respond, responder


def review_port(reviewer: Reviewer, *, shortcut: bool = True) -> Respond:
    """Return what responds to the requests of the TLS port, with or without the shortcut for ordinary reviews."""
    app = create_app(reviewer, Health(Metrics(), list))
    return responder(app, REVIEW_PATHS, review_shortcut(reviewer)) if shortcut else responder(app, REVIEW_PATHS)


def probe_port(health: Health) -> Respond:
    """Return what responds to the requests of the plain port."""
    settings = Settings()
    return responder(create_app(Reviewer(Backend(decide=Exception), settings, health.metrics), health), PROBE_PATHS)


class Response:
    """A response as a test reads it."""

    def __init__(self, answer: Answer) -> None:
        self.status_code, self.data, self.headers = int(answer.status), answer.body, dict(answer.headers)
        self.content_type = self.headers.get("Content-Type", "")

    @property
    def text(self) -> str:
        return self.data.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.data)


class ReviewClient:
    """Sends requests to a function that responds to them. `clock` tells when a request has arrived."""

    def __init__(self, respond: Any, clock: Any = monotonic) -> None:
        self._respond, self._clock = respond, clock

    def open(self, path: str, method: str, data: bytes = b"", content_type: str | None = None) -> Response:
        """Send a request."""
        head = Head(method, path, (content_type or "").encode(), keep_alive=True)
        return Response(self._respond(Request(head, data, self._clock())))

    def post(self, path: str, data: bytes, content_type: str | None = "application/json") -> Response:
        """Send a review."""
        return self.open(path, "POST", data, content_type)

    def get(self, path: str) -> Response:
        """Ask for a page."""
        return self.open(path, "GET")
