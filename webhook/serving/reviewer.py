"""Decides a review: calls the placement engine, and adds the deadline, retries, logging, metrics and events."""

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

NOT_SYNCED = "the cluster is not read completely yet"
CONTESTED = "pods are on their way to the node"


@dataclass(frozen=True, slots=True)
class Call:
    """One try of the API server: when its first byte arrived, and the timeout in seconds of all its tries together."""

    received: float
    timeout: float


@dataclass(frozen=True, slots=True)
class Reviewer:
    """Answers reviews from a backend. `clock` is monotonic, in seconds."""

    backend: Backend
    settings: Settings
    metrics: Metrics
    retries: RetryBudget
    clock: Callable[[], float]
    log: structlog.typing.FilteringBoundLogger = field(default_factory=lambda: structlog.get_logger("webhook").bind())

    def answer(self, body: bytes, call: Call, *, may_wait: bool = True) -> Response | None:
        """Answer a review. Return None if that needs a read from the API server and `may_wait` is false.

        Never raises. If an error occurs after the request was parsed, the pod continues unchanged.
        """
        admission: JsonObject | None = None
        try:
            with self.metrics.in_flight.track_inprogress():
                admission = read_review(body)
                return self._decide(admission, call, may_wait=may_wait)
        except BadReview as error:
            return error_response(HTTPStatus.BAD_REQUEST, str(error), error.uid)
        except Exception as error:  # noqa: BLE001 (logged; fail open)
            return self._fail_open(admission, error)

    def _decide(self, admission: JsonObject, call: Call, *, may_wait: bool) -> Response | None:
        started = self.clock()
        first_received = self.retries.first_seen(admission["uid"], call.received)
        remaining = first_received + call.timeout - MARGIN - started
        if remaining <= 0:
            decision = unchanged(Reason.DEADLINE_EXCEEDED, self.settings.affinity_mode)
            return self._respond(admission, Injection(decision), started)
        if self.backend.synced():
            injection = self.backend.decide(admission, remaining if may_wait else 0)
            retry_reason = CONTESTED if injection and self.backend.contested(injection) else ""
        else:
            injection = inject(admission, None, self.settings)
            retry_reason = NOT_SYNCED if injection.decision.reason is Reason.CACHE_NOT_SYNCED else ""
        if injection is None:
            return None
        if retry_reason and self.retries.may_retry(admission["uid"], call.timeout, started):
            return error_response(
                HTTPStatus.SERVICE_UNAVAILABLE,
                retry_reason,
                admission["uid"],
                [("Retry-After", str(self.retries.retry_after))],
            )
        return self._respond(admission, injection, started)

    def _respond(self, admission: JsonObject, injection: Injection, started: float) -> Response:
        body_out = write_review(admission["uid"], injection)
        seconds = self.clock() - started
        self.metrics.count_decision(injection.decision, seconds)
        self._log(admission, injection, seconds)
        self.backend.record(admission, injection.decision)
        return Response(HTTPStatus.OK, body_out)

    def _fail_open(self, admission: JsonObject | None, error: Exception) -> Response:
        if admission is None:
            log.error("request failed", exc_info=error)
            return error_response(HTTPStatus.INTERNAL_SERVER_ERROR, "the webhook failed")
        sentence = f"the webhook failed ({type(error).__name__}) and left the pod as it was"
        decision = unchanged(Reason.INTERNAL_ERROR, self.settings.affinity_mode, sentence)
        return self._respond(admission, Injection(decision, error=error), self.clock())

    def _log(self, admission: JsonObject, injection: Injection, seconds: float) -> None:
        """Log the decision and the names of the pod and the VM, but never the pod's spec."""
        decision, pod = injection.decision, mapping(admission, "object")
        write = self.log.info if injection.error is None else self.log.error
        write(
            "decided",
            uid=_truncate(admission["uid"]),
            namespace=_truncate(text(admission, "namespace")),
            pod=_truncate(text(pod, "metadata", "name") or text(pod, "metadata", "generateName")),
            vm=_truncate(text(mapping(pod, "metadata", "annotations"), "kubevirt.io/domain")),
            outcome=decision.outcome.value,
            reason=decision.reason.value,
            node=decision.node,
            claims=_truncate(claims_line(decision), 2000),
            ms=round(seconds * 1000, 3),
            dry_run=admission.get("dryRun") is True,
            exc_info=injection.error,
        )


def _truncate(name: str, length: int = 253) -> str:
    return name[:length]  # Kubernetes names are not longer; cutting keeps malformed requests from filling the log
