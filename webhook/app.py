"""The HTTP routes: `POST /mutate` for the API server, and apart from it probes and metrics for whoever watches us."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from http import HTTPStatus

import structlog
from flask import Flask, Response, g, jsonify, request
from werkzeug.exceptions import BadRequest, HTTPException, MethodNotAllowed, RequestEntityTooLarge, UnsupportedMediaType

from webhook.backend import Backend, Cache
from webhook.deadline import Patience, seconds
from webhook.decision import Reason
from webhook.injector import Injection, unchanged
from webhook.metrics import CONTENT_TYPE, Metrics
from webhook.review import BadReview, claims_line, read_review, write_review
from webhook.settings import Settings
from webhook.shape import JsonObject, mapping, text

# A review holds an object twice at most, and the API server accepts none over 3 MiB (its MaxRequestBodyBytes).
BODY_LIMIT = 8 * 1024 * 1024  # bytes

# Ours and not werkzeug's, which come as HTML.
SENTENCES = {
    HTTPStatus.BAD_REQUEST: "the body ends too early, or is not framed as HTTP wants it",
    HTTPStatus.NOT_FOUND: "there is nothing at this path",
    HTTPStatus.METHOD_NOT_ALLOWED: "this path takes another method",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "the body is over 8 MiB",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "the media type is not application/json in UTF-8",
}

log = structlog.get_logger("webhook")


@dataclass(frozen=True, slots=True)
class Reviewer:
    """What answers a review: the engine and all that it needs. `clock` is monotonic, in seconds."""

    backend: Backend
    settings: Settings
    metrics: Metrics
    patience: Patience
    clock: Callable[[], float]

    def mutate(self) -> Response:
        """Answer a review; what goes wrong on the way is raised, and answered below."""
        with self.metrics.in_flight.track_inprogress():
            body, started = _body(), self.clock()
            admission = g.admission = read_review(body)
            if self.backend.synced():
                injection = self.backend.decide(admission)
                if not self.backend.contested(injection):
                    return self._answer(injection, started)
                why = "pods are on their way to the node"
            else:
                injection = Injection(unchanged(Reason.CACHE_NOT_SYNCED, self.settings.affinity_mode))
                why = "the cluster is not read completely yet"
            if self.patience.may_return(admission["uid"], seconds(request.args.get("timeout")), started):
                return self._come_again(why)
            return self._answer(injection, started)

    def _answer(self, injection: Injection, started: float) -> Response:
        answer = write_review(g.admission["uid"], injection)
        took = self.clock() - started
        self.metrics.decided(injection.decision, took)
        _log(g.admission, injection, took)
        self.backend.tell(g.admission, injection.decision)
        return Response(answer, content_type="application/json")

    def _come_again(self, why: str) -> Response:
        response = _error(HTTPStatus.SERVICE_UNAVAILABLE, why, _uid())
        response.headers["Retry-After"] = str(self.patience.retry_after)
        return response

    def fail_open(self, error: Exception) -> Response:
        """Answer after a surprise: the pod goes on as it was, where it is known whose answer this is."""
        if _uid() is None:
            log.error("a request failed", exc_info=error)
            return _error(HTTPStatus.INTERNAL_SERVER_ERROR, "the webhook failed")
        sentence = f"the webhook failed ({type(error).__name__}) and left the pod as it was"
        decision = unchanged(Reason.INTERNAL_ERROR, self.settings.affinity_mode, sentence)
        return self._answer(Injection(decision, error=error), self.clock())

    def count(self, response: Response) -> Response:
        """Count an answer by its status."""
        self.metrics.answered(response.status_code)
        return response


def create_app(
    backend: Backend, settings: Settings, metrics: Metrics, clock: Callable[[], float] = time.monotonic
) -> Flask:
    """Make the app of the TLS port. Until the backend has synced, reviews are sent back to come again in time."""
    reviewer = Reviewer(backend, settings, metrics, Patience(), clock)
    app = _bare_app()
    # One more than is allowed: werkzeug cuts a chunked body off at its limit and says nothing.
    app.config["MAX_CONTENT_LENGTH"] = BODY_LIMIT + 1
    app.add_url_rule("/mutate", view_func=reviewer.mutate, methods=["POST"], provide_automatic_options=False)
    app.register_error_handler(BadReview, _bad_review)
    app.register_error_handler(Exception, reviewer.fail_open)
    app.after_request(reviewer.count)
    return app


def create_probes(metrics: Metrics, ready: Callable[[], bool], caches: Callable[[], list[Cache]] = list) -> Flask:
    """Make the app of the plain port: whether we live, whether reviews may come, and the metrics.

    Reviews may come when we are `ready` and each of the caches has synced.
    """
    app = _bare_app()

    @app.get("/healthz", provide_automatic_options=False)
    def healthz() -> Response:
        return jsonify(status="ok")

    @app.get("/readyz", provide_automatic_options=False)
    def readyz() -> Response:
        found = caches()
        if not ready():
            return _error(HTTPStatus.SERVICE_UNAVAILABLE, "not ready for reviews")
        waiting = [cache for cache in found if not cache.synced]
        details = {"caches": [asdict(cache) for cache in found]} if "verbose" in request.args else {}
        response = jsonify({"status": "waiting" if waiting else "ok", "problems": _problems(found)} | details)
        response.status_code = HTTPStatus.SERVICE_UNAVAILABLE if waiting else HTTPStatus.OK
        return response

    @app.get("/metrics", provide_automatic_options=False)
    def exposition() -> Response:
        return Response(metrics.exposition(), content_type=CONTENT_TYPE)

    return app


def _problems(caches: list[Cache]) -> dict[str, str]:
    # A 403 is told by the API server in a sentence that names verb, resource and service account.
    return {cache.resource: cache.problem or "not listed yet" for cache in caches if cache.problem or not cache.synced}


def _bare_app() -> Flask:
    app = Flask("webhook", static_folder=None)
    app.url_map.merge_slashes = False  # it would answer //mutate with a redirect, in HTML
    app.register_error_handler(HTTPException, _http_error)
    return app


def _body() -> bytes:
    charset = request.mimetype_params.get("charset", "utf-8").lower()
    if request.mimetype != "application/json" or charset not in ("utf-8", "utf8"):
        raise UnsupportedMediaType
    try:
        body = request.get_data(cache=False)
    except HTTPException:
        raise
    except Exception as error:  # the server's own, for a chunk that is none
        raise BadRequest from error
    if len(body) > BODY_LIMIT:
        raise RequestEntityTooLarge
    return body


def _bad_review(error: BadReview) -> Response:
    return _error(HTTPStatus.BAD_REQUEST, str(error), error.uid)


def _http_error(error: HTTPException) -> Response:
    status = HTTPStatus(error.code or HTTPStatus.INTERNAL_SERVER_ERROR)
    response = _error(status, SENTENCES.get(status, status.phrase))
    if isinstance(error, MethodNotAllowed) and error.valid_methods:
        response.headers["Allow"] = ", ".join(sorted(error.valid_methods))
    return response


def _error(status: HTTPStatus, sentence: str, uid: str | None = None) -> Response:
    log.warning("refused", code=status.value, error=sentence, **({"uid": _short(uid)} if uid else {}))
    response = jsonify({"error": sentence} | ({"uid": uid} if uid else {}))
    response.status_code = status
    return response


def _uid() -> str | None:
    admission = g.get("admission")
    return admission["uid"] if admission else None


def _log(admission: JsonObject, injection: Injection, took: float) -> None:
    """Log a decision: whom it was about and what came out, never what the pod is made of."""
    decision, pod = injection.decision, mapping(admission, "object")
    write = log.info if injection.error is None else log.error
    write(
        "decided",
        uid=_short(admission["uid"]),
        namespace=_short(text(admission, "namespace")),
        pod=_short(text(pod, "metadata", "name") or text(pod, "metadata", "generateName")),
        vm=_short(text(mapping(pod, "metadata", "annotations"), "kubevirt.io/domain")),
        outcome=decision.outcome.value,
        reason=decision.reason.value,
        node=decision.node,
        claims=_short(claims_line(decision), 2000),
        ms=round(took * 1000, 3),
        dry_run=admission.get("dryRun") is True,
        exc_info=injection.error,
    )


def _short(name: str, length: int = 253) -> str:
    return name[:length]  # no name in Kubernetes is longer, and nobody fills our log with longer ones
