"""The HTTP routes: `POST /mutate` for the API server, and apart from it probes and metrics for whoever watches us."""

import time
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from http import HTTPStatus
from urllib.parse import parse_qs

import structlog
from flask import Flask, jsonify, request
from flask import Response as FlaskResponse
from werkzeug.exceptions import BadRequest, HTTPException, MethodNotAllowed, UnsupportedMediaType

from webhook.cluster.backend import Backend, Cache
from webhook.placement.settings import Settings
from webhook.serving.deadline import RetryBudget, parse_timeout
from webhook.serving.exchange import LARGE, Request, Response, error_response
from webhook.serving.metrics import CONTENT_TYPE, Metrics
from webhook.serving.request_parser import BODY_BROKEN, BODY_LIMIT, BODY_TOO_LARGE
from webhook.serving.reviewer import Call, Reviewer

# Ours and not werkzeug's, which come as HTML.
SENTENCES = {
    HTTPStatus.BAD_REQUEST: BODY_BROKEN,
    HTTPStatus.NOT_FOUND: "there is nothing at this path",
    HTTPStatus.METHOD_NOT_ALLOWED: "this path takes another method",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: BODY_TOO_LARGE,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "the media type is not application/json in UTF-8",
}

log = structlog.get_logger("webhook")


def make_reviewer(
    backend: Backend, settings: Settings, metrics: Metrics, clock: Callable[[], float] = time.monotonic
) -> Reviewer:
    """Make what answers reviews. Until the backend has synced, they are sent back to come again in time."""
    return Reviewer(backend, settings, metrics, RetryBudget(), clock)


def create_app(reviewer: Reviewer) -> Flask:
    """Make the app of the TLS port."""
    app = _bare_app()
    app.config["MAX_CONTENT_LENGTH"] = BODY_LIMIT

    def mutate() -> FlaskResponse:
        received: Request | None = request.environ.get("webhook.request")
        since = received.received if received else reviewer.clock()
        answer = reviewer.answer(_body(), Call(since, parse_timeout(request.args.get("timeout"))))
        assert answer is not None, "it may wait"  # noqa: S101 (for the type checker)
        return _response(answer)

    app.add_url_rule("/mutate", view_func=mutate, methods=["POST"], provide_automatic_options=False)
    return app


def fast_path(reviewer: Reviewer) -> Callable[[Request], Response | None]:
    """Make the short way for what the API server sends: None for all else, and for what would have to wait.

    Flask's dispatch takes longer than the decision: docs/decisions/0011 has the figure.
    """

    def inline(sent: Request) -> Response | None:
        asked = (sent.method, sent.path, sent.header(b"content-type"))
        if asked != ("POST", "/mutate", b"application/json") or len(sent.body) > LARGE:
            return None
        return reviewer.answer(sent.body, Call(sent.received, _timeout(sent.query)), may_wait=False)

    return inline


@lru_cache(maxsize=64)  # there are as many as webhook configurations name timeouts
def _timeout(query: str) -> float:
    return parse_timeout(parse_qs(query).get("timeout", [""])[0])


def create_probes(
    metrics: Metrics,
    caches: Callable[[], list[Cache]],
    certificate_problems: Callable[[], dict[str, str]],
    unready: Callable[[], str],
    stuck: Callable[[], float],
) -> Flask:
    """Make the app of the plain port: whether we live, whether reviews may come, and the metrics.

    We live while the TLS port makes progress: `stuck` is for how many seconds it has not, 0 while it has. Reviews
    may come while we live, when nothing makes us `unready` and each of the caches has synced, be there `troubles` or
    not: those are told by their names to who asks for more.
    """
    app = _bare_app()

    def hanging() -> str:
        return f"the TLS port has made no progress for {since:.0f} s" if (since := stuck()) else ""

    @app.get("/healthz", provide_automatic_options=False)
    def healthz() -> FlaskResponse:
        if why := hanging():
            return _response(error_response(HTTPStatus.SERVICE_UNAVAILABLE, why))
        return jsonify(status="ok")

    @app.get("/readyz", provide_automatic_options=False)
    def readyz() -> FlaskResponse:
        found = caches()
        if why := hanging() or unready():  # in this order: what hangs may hold a lock that `unready` waits for
            return _response(error_response(HTTPStatus.SERVICE_UNAVAILABLE, f"not ready for reviews: {why}"))
        waiting = [cache for cache in found if not cache.synced]
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
    # A 403 is told by the API server in a sentence that names verb, resource and service account.
    return {cache.resource: cache.problem or "not listed yet" for cache in caches if cache.problem or not cache.synced}


def _bare_app() -> Flask:
    app = Flask("webhook", static_folder=None)
    app.url_map.merge_slashes = False  # it would answer //mutate with a redirect, in HTML
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(Exception, _surprise)
    return app


def _body() -> bytes:
    charset = request.mimetype_params.get("charset", "utf-8").lower()
    if request.mimetype != "application/json" or charset not in ("utf-8", "utf8"):
        raise UnsupportedMediaType
    try:
        return request.get_data(cache=False)
    except HTTPException:
        raise
    except Exception as error:  # the server's own, for a body that breaks off
        raise BadRequest from error


def _response(answer: Response) -> FlaskResponse:
    return FlaskResponse(answer.body, answer.status, dict(answer.headers))


def _http_error(error: HTTPException) -> FlaskResponse:
    status = HTTPStatus(error.code or HTTPStatus.INTERNAL_SERVER_ERROR)
    response = _response(error_response(status, SENTENCES.get(status, status.phrase)))
    if isinstance(error, MethodNotAllowed) and error.valid_methods:
        response.headers["Allow"] = ", ".join(sorted(error.valid_methods))
    return response


def _surprise(error: Exception) -> FlaskResponse:
    log.error("a request failed", exc_info=error)
    return _response(error_response(HTTPStatus.INTERNAL_SERVER_ERROR, "the webhook failed"))
