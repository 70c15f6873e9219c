"""Run the commands `certs renew` and `certs rotate-ca`: steps that an operator requests before they are due."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime

from certs import secret as bundles
from certs.cluster import CertificateObjects
from certs.controller import CONFLICT_RETRY, FORCED, PASS_INTERVAL, Clock, PassResult, run_pass
from certs.rotation import PlannedStep, Policy, Step, apply_step, next_step
from certs.secret import Bundle, Cause, CertificateError, InvalidBundle

# Seconds. A restarting API server is unavailable for half a minute. Retry through a restart: if the command fails and
# the operator calls `rotate-ca` again, that call may begin a second rotation.
RETRY_TIMEOUT = 60.0

Wait = Callable[[float], None]


def renew(objects: CertificateObjects, policy: Policy, now: Clock, wait: Wait) -> PassResult:
    """Issue a new serving certificate under the same CA. Raises CertificateError."""
    read_bundle(objects)
    while True:
        passed = _run_pass(objects, policy, now, wait, Step.RENEW)
        if passed.step.step in (Step.RENEW, Step.START):
            return passed


def rotate(objects: CertificateObjects, policy: Policy, now: Clock, wait: Wait, *, drop_old: bool) -> Iterator[str]:
    """Begin or continue a rotation of the CA, and yield a line for each step and each wait. Raises CertificateError.

    The rotation ends when the new CA signs. With `drop_old`, it ends when no webhook trusts the old CA, or a next CA
    that existed before. The caller may stop at any time: the Secret stores the state of the rotation, and the replicas
    continue it.
    """
    bundle, last_wait = read_bundle(objects), ""
    # Fail before the first write. Otherwise, replicas would continue a rotation that this command reports as failed.
    objects.read_configuration()
    old = _old_cas(bundle, drop_old=drop_old)
    while not _is_complete(bundle, old, drop_old=drop_old):
        passed = _run_pass(objects, policy, now, wait, _forced_step(bundle, old, drop_old=drop_old))
        bundle, step = passed.bundle, passed.step
        if passed.configuration_error and passed.configuration_error.cause not in (Cause.CONFLICT, Cause.UNREACHABLE):
            raise passed.configuration_error
        if passed.due and step.step is not Step.PUBLISH:
            yield f"{step.step}: {step.why}"
            continue
        if _is_complete(bundle, old, drop_old=drop_old):  # a replica took the last step, so `step` is a later one
            break
        if last_wait != step.step:
            last_wait = step.step
            yield f"waiting for {step.step}, not before {step.due:%Y-%m-%d %H:%M:%S} UTC"
        wait(min(PASS_INTERVAL, max(CONFLICT_RETRY, (step.due - now()).total_seconds())))
    yield from (f"the old CA stays trusted until {one.until:%Y-%m-%d %H:%M:%S} UTC" for one in bundle.retiring)


def _old_cas(bundle: Bundle, *, drop_old: bool) -> frozenset[bytes]:
    """Return the CAs to replace: the signing CA, and with `drop_old` also the next CA.

    The Secret contains both keys, so a thief has both. A next CA with `drop_old_early` stays: an earlier call of this
    command introduced it.
    """
    next_ca = {bundle.next_ca.certificate} if drop_old and bundle.next_ca and not bundle.drop_old_early else set()
    return frozenset({bundle.authority.certificate} | next_ca)


def _forced_step(bundle: Bundle, old: frozenset[bytes], *, drop_old: bool) -> Step | None:
    if bundle.authority.certificate not in old:
        return None
    if not bundle.next_ca:
        return Step.INTRODUCE
    if bundle.next_ca.certificate in old:
        return Step.REPLACE
    return Step.DROP_EARLY if drop_old and not bundle.drop_old_early else None


def _is_complete(bundle: Bundle, old: frozenset[bytes], *, drop_old: bool) -> bool:
    retiring = [one.certificate for one in bundle.retiring] if drop_old else []
    return old.isdisjoint([bundle.authority.certificate, *retiring])


def plan(objects: CertificateObjects, now: datetime, policy: Policy, *, drop_old: bool) -> Iterator[PlannedStep]:
    """Yield each step of a rotation from the current bundle, with its earliest time. Raises CertificateError."""
    bundle, time = read_bundle(objects), now
    old = _old_cas(bundle, drop_old=drop_old)
    while not _is_complete(bundle, old, drop_old=True):
        step = next_step(bundle, [bundle.ca_bundle()], time, policy)
        if forced := _forced_step(bundle, old, drop_old=drop_old):
            step = PlannedStep(forced, FORCED, time)
        time = max(time, step.due)
        bundle = apply_step(step.step, bundle, time, policy)
        yield replace(step, due=time)


def read_bundle(objects: CertificateObjects) -> Bundle:
    """Read the certificates of the Secret. Raises CertificateError if they aren't the webhook's own."""
    found = bundles.read(objects.read_secret())
    if isinstance(found, InvalidBundle):
        raise found
    return found


def _run_pass(objects: CertificateObjects, policy: Policy, now: Clock, wait: Wait, forced: Step | None) -> PassResult:
    left = RETRY_TIMEOUT
    while True:
        try:
            return run_pass(objects, policy, now, forced)
        except CertificateError as error:
            if error.cause is not Cause.CONFLICT and (error.cause is not Cause.UNREACHABLE or left <= 0):
                raise
            pause = CONFLICT_RETRY if error.cause is Cause.CONFLICT else PASS_INTERVAL
        wait(pause)
        left -= pause
