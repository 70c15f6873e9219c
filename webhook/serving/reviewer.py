"""A review's bytes in, an answer out: the engine with its clock, its log, its metrics and its patience."""

from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus

import structlog

from webhook.cluster.backend import Backend
from webhook.placement.decision import Reason
from webhook.placement.injector import Injection, inject, unchanged
from webhook.placement.settings import Settings
from webhook.placement.shape import JsonObject, mapping, text
from webhook.serving.deadline import MARGIN, RetryBudget
from webhook.serving.exchange import Response, error_response
from webhook.serving.metrics import Metrics
from webhook.serving.review import BadReview, claims_line, read_review, write_review

log = structlog.get_logger("webhook")

UNREAD = "the cluster is not read completely yet"
AWAITED = "pods are on their way to the node"


@dataclass(frozen=True, slots=True)
class Call:
    """One try of the API server's: when its first byte came, and the seconds that it grants all its tries together."""

    received: float
    timeout: float


@dataclass(frozen=True, slots=True)
class Reviewer:
    """What answers a review: the engine and all that it needs. `clock` is monotonic, in seconds."""

    backend: Backend
    settings: Settings
    metrics: Metrics
    patience: RetryBudget
    clock: Callable[[], float]
    log: structlog.typing.FilteringBoundLogger = field(default_factory=lambda: structlog.get_logger("webhook").bind())

    def answer(self, body: bytes, call: Call, *, may_wait: bool = True) -> Response | None:
        """Answer a review, whatever it is; None where that would take a read of the API server, and none may be made.

        Never raises: where it is known whose answer it is, the pod goes on as it was.
        """
        admission: JsonObject | None = None
        try:
            with self.metrics.in_flight.track_inprogress():
                admission = read_review(body)
                return self._decided(admission, call, may_wait=may_wait)
        except BadReview as error:
            return error_response(HTTPStatus.BAD_REQUEST, str(error), error.uid)
        except Exception as error:  # noqa: BLE001 (fail open; it is logged)
            return self._failed(admission, error)

    def _decided(self, admission: JsonObject, call: Call, *, may_wait: bool) -> Response | None:
        started = self.clock()
        begun = self.patience.first_seen(admission["uid"], call.received)
        left = begun + call.timeout - MARGIN - started
        if left <= 0:
            late = unchanged(Reason.DEADLINE_EXCEEDED, self.settings.affinity_mode)
            return self._told(admission, Injection(late), started)
        if self.backend.synced():
            injection = self.backend.decide(admission, left if may_wait else 0)
            why = AWAITED if injection and self.backend.contested(injection) else ""
        else:
            injection = inject(admission, None, self.settings)
            why = UNREAD if injection.decision.reason is Reason.CACHE_NOT_SYNCED else ""
        if injection is None:
            return None
        if why and self.patience.may_retry(admission["uid"], call.timeout, started):
            return error_response(
                HTTPStatus.SERVICE_UNAVAILABLE, why, admission["uid"], [("Retry-After", str(self.patience.retry_after))]
            )
        return self._told(admission, injection, started)

    def _told(self, admission: JsonObject, injection: Injection, started: float) -> Response:
        written = write_review(admission["uid"], injection)
        took = self.clock() - started
        self.metrics.decided(injection.decision, took)
        self._log(admission, injection, took)
        self.backend.record(admission, injection.decision)
        return Response(HTTPStatus.OK, written)

    def _failed(self, admission: JsonObject | None, error: Exception) -> Response:
        if admission is None:
            log.error("a request failed", exc_info=error)
            return error_response(HTTPStatus.INTERNAL_SERVER_ERROR, "the webhook failed")
        sentence = f"the webhook failed ({type(error).__name__}) and left the pod as it was"
        decision = unchanged(Reason.INTERNAL_ERROR, self.settings.affinity_mode, sentence)
        return self._told(admission, Injection(decision, error=error), self.clock())

    def _log(self, admission: JsonObject, injection: Injection, took: float) -> None:
        """Log a decision: whom it was about and what came out, never what the pod is made of."""
        decision, pod = injection.decision, mapping(admission, "object")
        write = self.log.info if injection.error is None else self.log.error
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
