"""Decides a review: calls the placement engine, and adds the deadline, retries, logging, metrics and events."""

import logging
import re
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from webhook.cluster.backend import Backend
from webhook.cluster.events import Vmi
from webhook.placement.injector import Injection, failed, inject
from webhook.placement.reasons import OptedInBy, Reason
from webhook.placement.review import Review
from webhook.placement.settings import Settings
from webhook.placement.wording import observed, unchanged
from webhook.serving.review import admission_review
from webhook.serving.review.retry_budget import MARGIN, RetryBudget, Wait
from webhook.serving.telemetry.metrics import Metrics
from webhook.serving.worker.messages import Response, error_response

log = logging.getLogger("webhook")

_NOT_IN_NAMES = re.compile(r"[^-A-Za-z0-9._:= ]")


class Reviewer(Struct, frozen=True):
    """Responds to reviews from a backend; with 503 until it has synced, if the API server can retry in time."""

    backend: Backend
    settings: Settings
    metrics: Metrics
    clock: Callable[[], float] = time.monotonic  # monotonic seconds
    wall_clock: Callable[[], float] = time.time  # seconds since the epoch
    log_decision: Callable[[dict[str, Any]], None] = lambda fields: log.info("decided", extra=fields)
    retries: RetryBudget = field(default_factory=RetryBudget)

    def answer(self, body: bytes, received: float, timeout: float) -> Response:
        """Respond to a review. Never raises. If an error occurs after the uid was read, the pod continues unchanged.

        `received` is when the first byte of this try arrived, and `timeout` the seconds of all tries together.
        """
        review: Review | None = None
        try:
            if admission_review.is_oversized(body):
                sentence = "the review is too large for that of a VM"
                decision = unchanged(Reason.UNJUDGED, self.settings.affinity_mode, sentence)
                decision = replace(decision, opted_in_by=OptedInBy.UNKNOWN)
                review = admission_review.read_uid(body, self.settings)
                return self._respond(review, Injection(decision), self.clock())
            review = admission_review.read_review(body, self.settings)
            return self._decide(review, received, timeout)
        except admission_review.BadReview as error:
            return error_response(HTTPStatus.BAD_REQUEST, str(error), error.uid)
        except Exception as error:  # noqa: BLE001 (logged; fail open)
            return self._fail_open(review, error)

    def _decide(self, review: Review, received: float, timeout: float) -> Response:
        started = self.clock()
        first_received = self.retries.first_seen(review.uid, received)
        if first_received + timeout - MARGIN <= started:
            decision = unchanged(Reason.DEADLINE_EXCEEDED, self.settings.affinity_mode)
            return self._respond(review, Injection(decision), started)
        injection = self.backend.decide(review) if self.backend.synced() else inject(review, None, self.settings)
        # In observe mode, no VM waits for the webhook.
        waits = self._waits(injection) if injection.applied else ()
        for wait in waits:
            age = admission_review.call_age(review, self.wall_clock())
            if self.retries.may_retry(review.uid, wait, timeout, started, age):
                headers = [("Retry-After", str(wait.retry_after))]
                return error_response(HTTPStatus.SERVICE_UNAVAILABLE, wait.sentence, review.uid, headers)
        return self._respond(review, injection, started)

    @staticmethod
    def _waits(injection: Injection) -> Iterator[Wait]:
        """Yield why a later decision may be a better one."""
        decision = injection.decision
        if decision.reason is Reason.CACHE_NOT_SYNCED:
            yield Wait.NOT_SYNCED
        if injection.unseen:
            yield Wait.NOT_SEEN_YET
        if decision.user_unseen:
            yield Wait.USER_NOT_SEEN_YET
        starting = (each for each in decision.claims if each.reason is Reason.SHARE_MANAGER_STARTING)
        if decision.recorded and any(each.decides for each in starting):
            yield Wait.BEING_BOUND

    def _respond(self, review: Review, injection: Injection, started: float) -> Response:
        decision = injection.decision
        is_observed = decision.recorded and not injection.applied
        if review.dry_run and (is_observed or decision.reason is Reason.NOT_FROM_KUBEVIRT):
            # Nothing else shows the client that the webhook was called.
            injection = replace(injection, warnings=(observed(decision), *injection.warnings))
        claims = admission_review.claims_line(decision)
        response = Response(HTTPStatus.OK, admission_review.write_review(review.uid, injection, claims))
        self._record(review, injection, claims, self.clock() - started)
        return response

    def _fail_open(self, review: Review | None, error: Exception) -> Response:
        if review is None:
            log.error("request failed", exc_info=error)
            return error_response(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error")
        return self._respond(review, failed(error, self.settings), self.clock())

    def _record(self, review: Review, injection: Injection, claims: str, seconds: float) -> None:
        """Count and log the decision, and queue its Event. A line has names, never a pod's spec, and at most 1 KB."""
        decision, manifest = injection.decision, review.manifest
        self.metrics.count_decision(decision, review.subject, seconds, dry_run=review.dry_run)
        vmi = Vmi(manifest.namespace, manifest.vmi_name, manifest.vmi_uid)
        if decision.recorded and not review.dry_run:
            self.backend.record(vmi, decision)
        fields: dict[str, Any] = {
            "uid": review.uid[:64],
            "namespace": vmi.namespace[:63],
            "pod": review.pod_name[:128],
            "vm": vmi.name[:128],
            "claims": claims,
        }
        if _NOT_IN_NAMES.search("".join(fields.values())):  # made up; another character may take six bytes
            fields = {key: _NOT_IN_NAMES.sub("?", name) for key, name in fields.items()}
        fields |= {
            "outcome": decision.outcome,
            "reason": decision.reason,
            "node": decision.node,
            "opted_in_by": decision.opted_in_by,
            "ms": round(seconds * 1000, 3),
            "dry_run": review.dry_run,
        }
        if injection.error is None:
            self.log_decision(fields)
        else:
            log.error("decided", extra=fields, exc_info=injection.error)
