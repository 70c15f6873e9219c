"""Decide which step comes next, when and why: from a bundle, the published CAs, the time and the names to serve."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from certs.authority import BACKDATED, Certificate, issue_ca, issue_leaf, read, signed_by
from certs.secret import Bundle, RetiringCA

NEVER = datetime.max.replace(tzinfo=UTC)
RENEWAL_DIVISOR = 3  # a certificate is renewed when a third of its lifetime is left
READ_BY_ALL = timedelta(seconds=60)  # until every replica has read the Secret, also after some failed passes
# A longer rollout has failed (progressDeadlineSeconds). Until then, the API server may call a replica that uses another
# certificate source.
ROLLOUT_TIMEOUT = timedelta(minutes=10)
# Replicas whose clocks differ by a year replace the CA in turn. Without a limit, the Secret (1 MiB at most) would fill
# up within 15 minutes, and could never be written again.
MAX_RETIRING = 8
SPREAD = timedelta(minutes=5)  # from the publication of a CA until it signs, so that every API server reads it
FORCED = "requested by a command"


class Step(StrEnum):
    """A change of a bundle. Each value is a label of a metric."""

    START = "start"
    RENEW = "renew"
    INTRODUCE = "introduce"
    PUBLISH = "publish"
    PUBLISHED = "published"
    WITHDRAWN = "withdrawn"
    SIGN = "sign"
    DROP = "drop"
    REPLACE = "replace"


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step, the reason for it, and the time from which on it may be taken."""

    step: Step
    why: str
    due: datetime


def next_step(
    bundle: Bundle, published: Sequence[bytes] | None, now: datetime, names: Sequence[str] = ()
) -> PlannedStep:
    """Return the next step, due now or later.

    `published` is the `caBundle` of each webhook, None if the configuration could not be read. Without `names`, a leaf
    keeps its names.
    """
    if immediate := next(_immediate_steps(bundle, published, now, names), None):
        return PlannedStep(*immediate, now)
    # Of several steps with the same due time, `min` takes the first: one that can be taken, before one that waits.
    return min(_scheduled_steps(bundle, published, now), key=lambda candidate: candidate.due)


def plan(bundle: Bundle, first: Step | None, now: datetime) -> Iterator[PlannedStep]:
    """Yield each step, with its earliest time, from a requested one until only the CA that signs last is trusted."""
    time, step = now, first and PlannedStep(first, FORCED, now)
    while step or bundle.next_ca or bundle.retiring:
        step = step or next_step(bundle, [bundle.ca_bundle()], time)
        time = max(time, step.due)
        bundle = apply_step(step.step, bundle, time)
        yield replace(step, due=time)
        step = None


def _immediate_steps(
    bundle: Bundle, published: Sequence[bytes] | None, now: datetime, names: Sequence[str]
) -> Iterator[tuple[Step, str]]:
    ca, leaf = read(bundle.authority.certificate), read(bundle.leaf.certificate)
    if not ca.is_valid(now):
        yield Step.START, _why_invalid("the CA", ca, now)
    if bundle.published and _any_differs(bundle, published):
        yield Step.WITHDRAWN, "a caBundle changed during the wait, so the wait starts again"
    # Tolerate an hour: otherwise a replica whose clock is slightly behind would withdraw again and again what the other
    # replicas record.
    if bundle.published and bundle.published > now + BACKDATED:
        yield Step.WITHDRAWN, "the clock was set back during the wait, so the wait starts again"
    if bundle.next_ca:
        next_ca = read(bundle.next_ca.certificate)
        if not next_ca.is_valid(now):
            yield Step.INTRODUCE, _why_invalid("the next CA", next_ca, now)
        if not bundle.published and published is not None and not _any_differs(bundle, published):
            yield Step.PUBLISHED, "every webhook trusts the next CA, so the wait for the API servers starts"
    if not leaf.is_valid(now):
        yield Step.RENEW, _why_invalid("the certificate", leaf, now)
    if not signed_by(bundle.leaf.certificate, bundle.authority.certificate):
        yield Step.RENEW, "the CA did not sign the certificate"
    if missing := [name for name in names if name not in leaf.names]:
        yield Step.RENEW, f"the certificate lacks {', '.join(missing)}"


def _scheduled_steps(bundle: Bundle, published: Sequence[bytes] | None, now: datetime) -> Iterator[PlannedStep]:
    ca, leaf = read(bundle.authority.certificate), read(bundle.leaf.certificate)
    if leaf.not_after < ca.not_after:  # otherwise a new leaf would not live longer
        yield PlannedStep(Step.RENEW, "a third of the certificate's lifetime is left", _renewal_time(leaf))
    for one in bundle.retiring:
        yield PlannedStep(Step.DROP, "the last certificate of the old CA has expired", one.until)
    if not bundle.next_ca:
        yield PlannedStep(Step.INTRODUCE, "a third of the CA's lifetime is left", _renewal_time(ca))
    elif bundle.published and published is not None:
        yield PlannedStep(Step.SIGN, "every API server has had time to read the next CA", bundle.published + SPREAD)
    else:
        why = (
            "not every webhook trusts the next CA yet" if published is not None else "the published CAs cannot be read"
        )
        yield PlannedStep(Step.PUBLISH, why, now)


def _renewal_time(certificate: Certificate) -> datetime:
    lifetime = certificate.not_after - certificate.not_before - BACKDATED
    return certificate.not_after - lifetime / RENEWAL_DIVISOR


def _any_differs(bundle: Bundle, published: Sequence[bytes] | None) -> bool:
    ca_bundle = bundle.ca_bundle()
    return any(one != ca_bundle for one in published or ())


def _why_invalid(what: str, certificate: Certificate, now: datetime) -> str:
    if now >= certificate.not_after:
        return f"{what} has expired"
    return f"{what} is not valid yet: the clock was set back"


def apply_step(step: Step, found: Bundle, now: datetime, names: Sequence[str] = ()) -> Bundle:
    """Return the bundle after a step. Without `names`, a new leaf has the names of the old one."""
    names = names or read(found.leaf.certificate).names
    match step:
        case Step.START | Step.REPLACE:
            # The replicas serve the old leaf until they have read the new one.
            last = now + READ_BY_ALL if step is Step.REPLACE else NEVER
            old = (RetiringCA(one.certificate, min(one.until, last)) for one in (*found.retiring, _retire(found)))
            return new_bundle(names, now, _unexpired(old, now)[-MAX_RETIRING:])
        case Step.RENEW:
            return replace(found, leaf=issue_leaf(found.authority, names, now))
        case Step.INTRODUCE:
            return replace(found, next_ca=issue_ca(now), published=None)
        case Step.PUBLISHED:
            return replace(found, published=now)
        case Step.WITHDRAWN:
            return replace(found, published=None)
        case Step.SIGN if found.next_ca:
            leaf = issue_leaf(found.next_ca, names, now)
            return Bundle(found.next_ca, leaf, retiring=(*found.retiring, _retire(found)))
        case Step.DROP:
            return replace(found, retiring=_unexpired(found.retiring, now))
    return found


def new_bundle(names: Sequence[str], now: datetime, retiring: tuple[RetiringCA, ...] = ()) -> Bundle:
    """Issue a CA and a leaf. Raises BadCertificate if there is no name."""
    ca = issue_ca(now)
    return Bundle(ca, issue_leaf(ca, names, now), retiring=retiring)


def _retire(found: Bundle) -> RetiringCA:
    return RetiringCA(found.authority.certificate.decode(), read(found.leaf.certificate).not_after)


def _unexpired(retiring: Iterable[RetiringCA], now: datetime) -> tuple[RetiringCA, ...]:
    return tuple(one for one in retiring if one.until > now)
