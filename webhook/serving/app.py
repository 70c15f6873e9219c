"""The HTTP routes: `POST /mutate` on the TLS port; `/healthz`, `/readyz` and `/metrics` on the plain port."""

import time
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from http import HTTPStatus
from urllib.parse import parse_qs

import structlog
from flask import Flask, jsonify, request
from flask import Response as FlaskResponse
from werkzeug.exceptions import BadRequest, HTTPException, MethodNotAllowed, NotFound, UnsupportedMediaType

from webhook.cluster.backend import Backend, Cache
from webhook.placement.settings import Settings
from webhook.serving.deadline import RetryBudget, parse_timeout
from webhook.serving.exchange import Request, Response, error_response
from webhook.serving.gunicorn_parser import BODY_BROKEN, BODY_LIMIT, BODY_TOO_LARGE
from webhook.serving.large_review import INLINE_BODY_LIMIT
from webhook.serving.metrics import CONTENT_TYPE, Metrics
from webhook.serving.reviewer import Call, Reviewer

# These replace werkzeug's error pages, which are HTML.
SENTENCES = {
    HTTPStatus.BAD_REQUEST: BODY_BROKEN,
    HTTPStatus.NOT_FOUND: "no such path",
    HTTPStatus.METHOD_NOT_ALLOWED: "method not allowed",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: BODY_TOO_LARGE,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "unsupported media type: expected application/json in UTF-8",
}

log = structlog.get_logger("webhook")


def make_reviewer(
    backend: Backend, settings: Settings, metrics: Metrics, clock: Callable[[], float] = time.monotonic
) -> Reviewer:
    """Create the reviewer. Until the backend has synced, it responds with 503 if the API server can retry in time."""
    return Reviewer(backend, settings, metrics, RetryBudget(), clock)


def create_app(reviewer: Reviewer) -> Flask:
    """Create the app of the TLS port."""
    app = _new_flask_app()
    app.config["MAX_CONTENT_LENGTH"] = BODY_LIMIT

    def mutate() -> FlaskResponse:
        parsed: Request | None = request.environ.get("webhook.request")
        received = parsed.received if parsed else reviewer.clock()
        return _response(reviewer.answer(_body(), Call(received, parse_timeout(request.args.get("timeout")))))

    app.add_url_rule("/mutate", view_func=mutate, methods=["POST"], provide_automatic_options=False)
    return app


def fast_path(reviewer: Reviewer) -> Callable[[Request], Response | None]:
    """Return a function that responds to plain reviews without Flask.

    It returns None for other requests. Flask's dispatch takes longer than the decision; docs/decisions/0011 has the
    figures.
    """

    def inline(parsed: Request) -> Response | None:
        head = parsed.head
        route = (head.method, head.path, head.content_type)
        if route != ("POST", "/mutate", b"application/json") or len(parsed.body) > INLINE_BODY_LIMIT:
            return None
        return reviewer.answer(parsed.body, Call(parsed.received, _timeout(head.query)))

    return inline


@lru_cache(maxsize=64)  # one query per timeout in the webhook configurations
def _timeout(query: str) -> float:
    return parse_timeout(parse_qs(query).get("timeout", [""])[0])


def create_probes(
    metrics: Metrics,
    caches: Callable[[], list[Cache]],
    certificate_problems: Callable[[], dict[str, str]],
    not_ready_reason: Callable[[], str],
    stalled_seconds: Callable[[], float],
) -> Flask:
    """Create the app of the plain port: liveness, readiness and metrics.

    `stalled_seconds` is 0 while the TLS port makes progress; otherwise both probes fail. Readiness also requires that
    `not_ready_reason` is empty and that the caches have synced. It ignores `certificate_problems`, which
    `/readyz?verbose` lists.
    """
    app = _new_flask_app()

    def stall_reason() -> str:
        return f"the TLS port has made no progress for {since:.0f} s" if (since := stalled_seconds()) else ""

    @app.get("/healthz", provide_automatic_options=False)
    def healthz() -> FlaskResponse:
        if reason := stall_reason():
            return _response(error_response(HTTPStatus.SERVICE_UNAVAILABLE, reason))
        return jsonify(status="ok")

    @app.get("/readyz", provide_automatic_options=False)
    def readyz() -> FlaskResponse:
        found = caches()
        # In this order: a loop that hangs may hold a lock that `not_ready_reason` waits for.
        if reason := stall_reason() or not_ready_reason():
            return _response(error_response(HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {reason}"))
        waiting = [cache for cache in found if cache.required and not cache.synced]
        problems, details = _problems(found), {}
        if "verbose" in request.args:
            problems, details = problems | certificate_problems(), {"caches": [asdict(cache) for cache in found]}
        response = jsonify({"status": "waiting" if waiting else "ok", "problems": problems} | details)
        response.status_code = HTTPStatus.SERVICE_UNAVAILABLE if waiting else HTTPStatus.OK
        return response

    @app.get("/metrics", provide_automatic_options=False)
    def exposition() -> FlaskResponse:
        return FlaskResponse(metrics.exposition(), content_type=CONTENT_TYPE)

    return app


def _problems(caches: list[Cache]) -> dict[str, str]:
    # For a 403, `problem` is the API server's message. It names the verb, the resource and the service account.
    return {cache.resource: cache.problem or "not listed yet" for cache in caches if cache.problem or not cache.synced}


def _new_flask_app() -> Flask:
    app = Flask("webhook", static_folder=None)
    app.url_map.merge_slashes = False  # merging would answer /mutate//x with a redirect in HTML
    app.before_request(_reject_leading_slashes)
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(Exception, _unexpected_error)
    return app


def _reject_leading_slashes() -> None:
    if request.environ["PATH_INFO"].startswith("//"):  # werkzeug takes //mutate for /mutate
        raise NotFound


def _body() -> bytes:
    charset = request.mimetype_params.get("charset", "utf-8").lower()
    if request.mimetype != "application/json" or charset not in ("utf-8", "utf8"):
        raise UnsupportedMediaType
    try:
        return request.get_data(cache=False)
    except HTTPException:
        raise
    except Exception as error:  # the server's own exception for a truncated body
        raise BadRequest from error


def _response(response: Response) -> FlaskResponse:
    return FlaskResponse(response.body, response.status, dict(response.headers))


def _http_error(error: HTTPException) -> FlaskResponse:
    status = HTTPStatus(error.code or HTTPStatus.INTERNAL_SERVER_ERROR)
    response = _response(error_response(status, SENTENCES.get(status, status.phrase)))
    if isinstance(error, MethodNotAllowed) and error.valid_methods:
        response.headers["Allow"] = ", ".join(sorted(error.valid_methods))
    return response


def _unexpected_error(error: Exception) -> FlaskResponse:
    log.error("request failed", exc_info=error)
    return _response(error_response(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error"))
