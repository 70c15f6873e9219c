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
from webhook.placement.eligibility import is_share_manager_pod, namespace_of
from webhook.placement.injector import Injection, failed, inject
from webhook.placement.objects.fields import JsonObject, mapping, text
from webhook.placement.objects.kubevirt import vmi_name, vmi_uid
from webhook.placement.reasons import Decision, OptedInBy, Reason, Subject
from webhook.placement.settings import Action, Settings
from webhook.placement.wording import observed, unchanged
from webhook.serving.http.messages import Response, error_response
from webhook.serving.review import admission_review
from webhook.serving.review.retry_budget import MARGIN, RetryBudget, Wait
from webhook.serving.telemetry.metrics import Metrics

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
        admission: JsonObject | None = None
        try:
            if admission_review.is_oversized(body):
                sentence = "the review is too large for that of a VM"
                decision = unchanged(Reason.UNJUDGED, self.settings.affinity_mode, sentence)
                decision = replace(decision, opted_in_by=OptedInBy.UNKNOWN)
                return self._respond(admission_review.read_uid(body), Injection(decision), self.clock())
            admission = admission_review.read_review(body)
            return self._decide(admission, received, timeout)
        except admission_review.BadReview as error:
            return error_response(HTTPStatus.BAD_REQUEST, str(error), error.uid)
        except Exception as error:  # noqa: BLE001 (logged; fail open)
            return self._fail_open(admission, error)

    def _decide(self, admission: JsonObject, received: float, timeout: float) -> Response:
        started = self.clock()
        first_received = self.retries.first_seen(admission["uid"], received)
        if first_received + timeout - MARGIN <= started:
            decision = unchanged(Reason.DEADLINE_EXCEEDED, self.settings.affinity_mode)
            return self._respond(admission, Injection(decision), started)
        injection = self.backend.decide(admission) if self.backend.synced() else inject(admission, None, self.settings)
        # In observe mode, no VM waits for the webhook.
        waits = self._waits(admission, injection.decision) if self.settings.action is Action.INJECT else ()
        for wait in waits:
            age = admission_review.call_age(admission, self.wall_clock())
            if self.retries.may_retry(admission["uid"], wait, timeout, started, age):
                headers = [("Retry-After", str(wait.retry_after))]
                return error_response(HTTPStatus.SERVICE_UNAVAILABLE, wait.sentence, admission["uid"], headers)
        return self._respond(admission, injection, started)

    def _waits(self, admission: JsonObject, decision: Decision) -> Iterator[Wait]:
        """Yield why a later decision may be a better one."""
        if decision.reason is Reason.CACHE_NOT_SYNCED:
            yield Wait.NOT_SYNCED
        if decision.claims and self.backend.lacks_objects(admission, decision):
            yield Wait.NOT_SEEN_YET
        starting = (each for each in decision.claims if each.reason is Reason.SHARE_MANAGER_STARTING)
        if decision.recorded and any(each.decides for each in starting):
            yield Wait.BEING_BOUND

    def _respond(self, admission: JsonObject, injection: Injection, started: float) -> Response:
        decision, dry_run = injection.decision, admission.get("dryRun") is True
        observes = self.settings.action is Action.OBSERVE and decision.recorded
        if dry_run and (observes or decision.reason is Reason.NOT_FROM_KUBEVIRT):
            # Nothing else shows the client that the webhook was called.
            injection = replace(injection, warnings=(observed(decision), *injection.warnings))
        claims = admission_review.claims_line(decision)
        response = Response(HTTPStatus.OK, admission_review.write_review(admission["uid"], injection, claims))
        self._record(admission, injection, claims, self.clock() - started)
        return response

    def _fail_open(self, admission: JsonObject | None, error: Exception) -> Response:
        if admission is None:
            log.error("request failed", exc_info=error)
            return error_response(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error")
        return self._respond(admission, failed(error, self.settings), self.clock())

    def _record(self, admission: JsonObject, injection: Injection, claims: str, seconds: float) -> None:
        """Count and log the decision, and queue its Event. A line has names, never a pod's spec, and at most 1 KB."""
        decision, pod, namespace = injection.decision, mapping(admission, "object"), namespace_of(admission)
        metadata, dry_run = mapping(pod, "metadata"), admission.get("dryRun") is True
        subject = Subject.SHARE_MANAGER if is_share_manager_pod(pod, namespace, self.settings) else Subject.VM
        self.metrics.count_decision(decision, subject, seconds, dry_run=dry_run)
        vmi = Vmi(namespace, vmi_name(pod), vmi_uid(pod))
        if decision.recorded and not dry_run:
            self.backend.record(vmi, decision)
        fields: dict[str, Any] = {
            "uid": admission["uid"][:64],
            "namespace": namespace[:63],
            "pod": (text(metadata, "name") or text(metadata, "generateName"))[:128],
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
            "dry_run": dry_run,
        }
        if injection.error is None:
            self.log_decision(fields)
        else:
            log.error("decided", extra=fields, exc_info=injection.error)
