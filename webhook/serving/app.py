"""The HTTP routes: `POST /mutate` on the TLS port; `/healthz`, `/readyz` and `/metrics` on the plain port."""

import json
import logging
from collections.abc import Callable
from dataclasses import asdict
from email.message import Message
from functools import lru_cache
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

from webhook.cluster.backend import Cache
from webhook.serving.http.messages import Request, Response, error_response
from webhook.serving.review.deadlines import parse_timeout
from webhook.serving.review.reviewer import Call, Reviewer
from webhook.serving.telemetry.metrics import CONTENT_TYPE, Metrics

Respond = Callable[[Request], Response]

log = logging.getLogger("webhook")


def review_port(reviewer: Reviewer) -> Respond:
    """Return a function that responds to the requests of the TLS port: to reviews, and with errors to all others."""

    def mutate(request: Request) -> Response:
        if not _is_json(request.head.content_type):
            sentence = "unsupported media type: expected application/json in UTF-8"
            return error_response(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, sentence)
        return reviewer.answer(request.body, Call(request.received, _timeout(request.head.query)))

    return _routes(("POST",), {"/mutate": mutate})


def _routes(methods: tuple[str, ...], pages: dict[str, Respond]) -> Respond:
    """Return a function that responds with the page of the path. All pages have the same methods."""

    def respond(request: Request) -> Response:
        if (page := pages.get(request.head.path)) is None:
            return error_response(HTTPStatus.NOT_FOUND, "no such path")
        if request.head.method not in methods:
            allow = ("Allow", ", ".join(methods))
            return error_response(HTTPStatus.METHOD_NOT_ALLOWED, "method not allowed", headers=[allow])
        try:
            return page(request)
        except Exception:
            log.exception("request failed")
            return error_response(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error")

    return respond


@lru_cache(maxsize=64)
def _is_json(content_type: bytes) -> bool:
    message = Message()
    message["Content-Type"] = content_type.decode("latin-1")
    charset = message.get_content_charset("utf-8")
    return message.get_content_type() == "application/json" and charset in {"utf-8", "utf8"}


@lru_cache(maxsize=64)  # one query per timeout in the webhook configurations
def _timeout(query: str) -> float:
    return parse_timeout(parse_qs(query).get("timeout", [""])[0])


def probe_port(
    metrics: Metrics,
    caches: Callable[[], list[Cache]],
    certificate_problems: Callable[[], dict[str, str]],
    not_ready_reason: Callable[[], str],
    stalled_seconds: Callable[[], float],
) -> Respond:
    """Return a function that responds to the requests of the plain port: liveness, readiness and metrics.

    `stalled_seconds` is 0 while the TLS port makes progress; otherwise both probes fail. Readiness also requires that
    `not_ready_reason` is empty and that the caches have synced. It ignores `certificate_problems`, which
    `/readyz?verbose` lists.
    """

    def stall_reason() -> str:
        return f"the TLS port has made no progress for {since:.0f} s" if (since := stalled_seconds()) else ""

    def healthz(_request: Request) -> Response:
        if reason := stall_reason():
            return error_response(HTTPStatus.SERVICE_UNAVAILABLE, reason)
        return _json_response(HTTPStatus.OK, {"status": "ok"})

    def readyz(request: Request) -> Response:
        found = caches()
        # In this order: a loop that hangs may hold a lock that `not_ready_reason` waits for.
        if reason := stall_reason() or not_ready_reason():
            return error_response(HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {reason}")
        waiting = any(cache.required and not cache.synced for cache in found)
        page: dict[str, Any] = {"status": "waiting" if waiting else "ok", "problems": _problems(found)}
        if "verbose" in parse_qs(request.head.query, keep_blank_values=True):
            page["problems"] |= certificate_problems()
            page["caches"] = [asdict(cache) for cache in found]
        return _json_response(HTTPStatus.SERVICE_UNAVAILABLE if waiting else HTTPStatus.OK, page)

    def metrics_page(_request: Request) -> Response:
        return Response(HTTPStatus.OK, metrics.page(), [("Content-Type", CONTENT_TYPE)])

    return _routes(("GET", "HEAD"), {"/healthz": healthz, "/readyz": readyz, "/metrics": metrics_page})


def _problems(caches: list[Cache]) -> dict[str, str]:
    # For a 403, `problem` is the API server's message. It names the verb, the resource and the service account.
    return {cache.resource: cache.problem or "not listed yet" for cache in caches if cache.problem or not cache.synced}


def _json_response(status: HTTPStatus, page: dict[str, Any]) -> Response:
    return Response(status, json.dumps(page, separators=(",", ":")).encode() + b"\n")
