"""What a person asks for: a new certificate now, another CA now, or what that would mean."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime

from certs import bundle as bundles
from certs.bundle import Bundle, InvalidBundle
from certs.cluster import Cause, CertificateError, CertificateObjects
from certs.renewal import PlannedStep, Policy, Step, next_step
from certs.rotate import AFTER_A_LOST_RACE, EVERY, Clock, PassResult, run_pass
from certs.steps import apply_step

# An API server that restarts is away for half a minute. Whoever calls `rotate-ca` a second time may begin a second one.
RESTARTED_AFTER = 60.0  # seconds

Wait = Callable[[float], None]


def renew(place: CertificateObjects, policy: Policy, now: Clock, wait: Wait) -> PassResult:
    """Issue a new serving certificate under the same CA. Raises Trouble."""
    _ours(place)
    while True:
        passed = _pass(place, policy, now, wait, Step.RENEW)
        if passed.step.step in (Step.RENEW, Step.START):
            return passed


def rotate(place: CertificateObjects, policy: Policy, now: Clock, wait: Wait, *, drop_old: bool) -> Iterator[str]:
    """Begin a rotation, or go on with one that has begun, and tell each step and each wait. Raises Trouble.

    It ends when the new CA signs, with `drop_old` when the old one is trusted no more, and neither is one that was to
    follow it. It may be broken off at any time: how far it has come stands in the Secret, and the replicas go on from
    there.
    """
    bundle, told = _ours(place), ""
    place.read_configuration()  # raises before anything is written: else the replicas would go on with what is refused
    old = _old(bundle, drop_old=drop_old)
    while not _is_over(bundle, old, drop_old=drop_old):
        passed = _pass(place, policy, now, wait, _forced(bundle, old, drop_old=drop_old))
        bundle, step = passed.bundle, passed.step
        if passed.trouble and passed.trouble.cause not in (Cause.CONFLICT, Cause.UNREACHABLE):
            raise passed.trouble
        if passed.due and step.step is not Step.PUBLISH:
            yield f"{step.step}: {step.why}"
            continue
        if _is_over(bundle, old, drop_old=drop_old):  # a replica was faster, and what is next is no part of it
            break
        if told != step.step:
            told = step.step
            yield f"waiting for {step.step} until {step.due:%Y-%m-%d %H:%M:%S} UTC at least"
        wait(min(EVERY, max(AFTER_A_LOST_RACE, (step.due - now()).total_seconds())))
    yield from (f"trusted until {one.until:%Y-%m-%d %H:%M:%S} UTC: the CA that has left" for one in bundle.retiring)


def _old(bundle: Bundle, *, drop_old: bool) -> frozenset[bytes]:
    """Whoever has taken the key of the CA that signs has that of the coming one: both are in the Secret.

    One that comes in a hurry was made by this command, when it was called before.
    """
    next_ca = {bundle.next_ca.certificate} if drop_old and bundle.next_ca and not bundle.hurry else set()
    return frozenset({bundle.authority.certificate} | next_ca)


def _forced(bundle: Bundle, old: frozenset[bytes], *, drop_old: bool) -> Step | None:
    if bundle.authority.certificate not in old:
        return None
    if not bundle.next_ca:
        return Step.INTRODUCE
    if bundle.next_ca.certificate in old:
        return Step.REPLACE
    return Step.HURRY if drop_old and not bundle.hurry else None


def _is_over(bundle: Bundle, old: frozenset[bytes], *, drop_old: bool) -> bool:
    return bundle.authority.certificate not in old and not (drop_old and _still_trusts(bundle, old))


def _still_trusts(bundle: Bundle, old: frozenset[bytes]) -> bool:
    return any(one.certificate in old for one in bundle.retiring)


def plan(found: Bundle, now: datetime, policy: Policy, *, drop_old: bool) -> Iterator[PlannedStep]:
    """Yield each step of a rotation, with the time from which on it may be taken. Nothing is written."""
    bundle, old, time = found, _old(found, drop_old=drop_old), now
    while bundle.authority.certificate in old or _still_trusts(bundle, old):
        forced = _forced(bundle, old, drop_old=drop_old)
        step = next_step(bundle, [bundle.ca_bundle()], time, policy)
        if forced:
            step = PlannedStep(forced, "it was asked for", time)
        time = max(time, step.due)
        bundle = apply_step(step.step, bundle, time, policy)
        yield replace(step, due=time)


def planned(place: CertificateObjects, now: datetime, policy: Policy, *, drop_old: bool) -> list[PlannedStep]:
    """Return the steps that a rotation would take from here. Raises Trouble."""
    return list(plan(_ours(place), now, policy, drop_old=drop_old))


def _ours(place: CertificateObjects) -> Bundle:
    found = bundles.read(place.read_secret())
    if isinstance(found, InvalidBundle):
        raise found
    return found


def _pass(place: CertificateObjects, policy: Policy, now: Clock, wait: Wait, forced: Step | None) -> PassResult:
    left = RESTARTED_AFTER
    while True:
        try:
            return run_pass(place, policy, now, forced)
        except CertificateError as trouble:
            if trouble.cause is not Cause.CONFLICT and (trouble.cause is not Cause.UNREACHABLE or left <= 0):
                raise
            pause = AFTER_A_LOST_RACE if trouble.cause is Cause.CONFLICT else EVERY
        wait(pause)
        left -= pause
