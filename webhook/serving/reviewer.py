"""Decides a review: calls the placement engine, and adds the deadline, retries, logging, metrics and events."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus

import structlog
from msgspec import Struct
from msgspec.structs import replace

from webhook.cluster.backend import Backend
from webhook.placement.decision import Decision, Reason
from webhook.placement.eligibility import subject_of
from webhook.placement.injector import Injection, inject, namespace_of
from webhook.placement.kubevirt import vmi_name
from webhook.placement.settings import Action, Settings
from webhook.placement.shape import JsonObject, mapping, text
from webhook.placement.wording import observed, unchanged
from webhook.serving.deadline import MARGIN, RetryBudget
from webhook.serving.exchange import Response, error_response
from webhook.serving.metrics import Metrics
from webhook.serving.review import BadReview, OversizedReview, call_age, claims_line, read_review, write_review

log = structlog.get_logger("webhook")

NOT_SYNCED = "the caches are not synced yet"
STARTING = "a share-manager is starting, and its node is not known yet"


class Call(Struct, frozen=True):
    """One try of the API server: when its first byte arrived, and the timeout in seconds of all its tries together."""

    received: float
    timeout: float


@dataclass(frozen=True, slots=True)
class Reviewer:
    """Responds to reviews from a backend. `clock` is monotonic, `wall_clock` counts from the epoch, both in seconds."""

    backend: Backend
    settings: Settings
    metrics: Metrics
    retries: RetryBudget
    clock: Callable[[], float]
    wall_clock: Callable[[], float] = time.time
    log: structlog.typing.FilteringBoundLogger = field(default_factory=lambda: structlog.get_logger("webhook").bind())

    def answer(self, body: bytes, call: Call, *, may_wait: bool = True) -> Response | None:
        """Respond to a review. Return None if that needs a read from the API server and `may_wait` is false.

        Never raises. If an error occurs after the request was parsed, the pod continues unchanged.
        """
        admission: JsonObject | None = None
        try:
            with self.metrics.in_flight.track_inprogress():
                admission = read_review(body)
                return self._decide(admission, call, may_wait=may_wait)
        except BadReview as error:
            return error_response(HTTPStatus.BAD_REQUEST, str(error), error.uid)
        except OversizedReview as error:
            return self._skip_oversized(error.request, error.fields)
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
        else:
            injection = inject(admission, None, self.settings)
        if injection is None:
            return None
        retry_reason = _retry_reason(injection.decision)
        # In observe mode, no VM waits for the webhook.
        applied = self.settings.action is Action.INJECT
        if applied and retry_reason and self._may_retry(admission, call, started, once=retry_reason is STARTING):
            return error_response(
                HTTPStatus.SERVICE_UNAVAILABLE,
                retry_reason,
                admission["uid"],
                [("Retry-After", str(self.retries.retry_after))],
            )
        return self._respond(admission, injection, started)

    def _may_retry(self, admission: JsonObject, call: Call, now: float, *, once: bool) -> bool:
        return self.retries.may_retry(
            admission["uid"], call.timeout, now, call_age(admission, self.wall_clock()), once=once
        )

    def _respond(self, admission: JsonObject, injection: Injection, started: float) -> Response:
        if self.settings.action is Action.OBSERVE and injection.decision.recorded and _is_dry_run(admission):
            # Nothing else shows the client that the webhook was called.
            injection = replace(injection, warnings=(observed(injection.decision), *injection.warnings))
        body_out = write_review(admission["uid"], injection)
        seconds = self.clock() - started
        subject = subject_of(mapping(admission, "object"), namespace_of(admission), self.settings)
        self.metrics.count_decision(injection.decision, subject, seconds, dry_run=_is_dry_run(admission))
        self._log(admission, injection, seconds)
        self.backend.record(admission, injection.decision)
        return Response(HTTPStatus.OK, body_out)

    def _skip_oversized(self, admission: JsonObject, fields: list[str]) -> Response:
        decision = inject(admission, None, self.settings).decision
        # The webhook handles such a pod, as far as the rest of it shows.
        if decision.reason in (Reason.CACHE_NOT_SYNCED, Reason.NO_CLAIMS):
            sentence = f"the field {fields[0]} is too large to evaluate"
            decision = replace(decision, reason=Reason.UNJUDGED, message=sentence)
        return self._respond(admission, Injection(decision), self.clock())

    def _fail_open(self, admission: JsonObject | None, error: Exception) -> Response:
        if admission is None:
            log.error("request failed", exc_info=error)
            return error_response(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error")
        sentence = f"the webhook failed ({type(error).__name__}) and left the pod unchanged"
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
            vm=_truncate(vmi_name(pod)),
            outcome=decision.outcome,
            reason=decision.reason,
            node=decision.node,
            claims=_truncate(claims_line(decision), 2000),
            opted_in_by=decision.opted_in_by,
            ms=round(seconds * 1000, 3),
            dry_run=_is_dry_run(admission),
            exc_info=injection.error,
        )


def _retry_reason(decision: Decision) -> str:
    """Return why a later decision may be a better one; empty if there is no reason to wait."""
    if decision.reason is Reason.CACHE_NOT_SYNCED:
        return NOT_SYNCED
    undecided = decision.reason in (Reason.SHARE_MANAGER_STARTING, Reason.NO_SHARE_MANAGER)
    starting = any(finding.reason is Reason.SHARE_MANAGER_STARTING for finding in decision.claims)
    return STARTING if undecided and starting else ""


def _is_dry_run(admission: JsonObject) -> bool:
    return admission.get("dryRun") is True


def _truncate(name: str, length: int = 253) -> str:
    return name[:length]  # Kubernetes names are not longer; cutting keeps malformed requests from filling the log
