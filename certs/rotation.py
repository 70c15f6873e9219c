"""Decide how a bundle changes next, when and why, from the bundle, the published CAs and the time.

API servers read a changed `caBundle` late, and replicas read a changed Secret late. So a CA signs only when every API
server trusts it, and it stays trusted while a replica may serve a leaf that it signed. A rotation takes three steps:

1. START issues the next CA. The controller then publishes the old CA and the next one in each `caBundle`.
2. Each pass observes the configuration. When every `caBundle` has been read back with both CAs, the bundle records the
   time as `published`. If a `caBundle` differs, or if the clock is set back, the wait starts again. This is no step.
3. RENEW, when `published` is SPREAD ago, issues the leaf from the next CA. This CA signs from now on, and the old one
   retires.
4. DROP removes the retired CA when the last leaf that it signed has expired.

At any other time, RENEW issues a leaf from the CA that signs. If that CA can't be used, each step but DROP starts over:
a new CA signs at once, because no leaf of the old one is valid anyway.

Nothing here depends on who took the step before, so any replica may take the next one, also after a crash.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from certs.authority import (
    BACKDATED,
    CA_LIFETIME,
    LEAF_LIFETIME,
    Certificate,
    issue_ca,
    issue_leaf,
    read,
    signed_by,
)
from certs.secret import Bundle, RetiringCA

RENEWAL_DIVISOR = 3  # a certificate is renewed when a third of its lifetime is left
READ_BY_ALL = timedelta(seconds=60)  # until every replica has read the Secret, also after some failed passes
# Replicas whose clocks differ by a year replace the CA in turn. Without a limit, the Secret (1 MiB at most) would fill
# up within 15 minutes, and could never be written again.
MAX_RETIRING = 8
# No leaf of a retiring CA lives longer, by any clock that certificates tolerate.
LONGEST_RETIREMENT = LEAF_LIFETIME + BACKDATED
CLOCK_TOLERANCE = timedelta(hours=1)  # between replicas
SPREAD = timedelta(minutes=5)  # from the publication of a CA until it signs, so that every API server reads it

Change = Callable[[Bundle, datetime], Bundle]


class Step(StrEnum):
    """A change of certificates. Each value is a label of a metric."""

    START = "start"
    RENEW = "renew"
    DROP = "drop"


class PlannedStep(Struct, frozen=True):
    """A step, and when it may be taken."""

    step: Step
    why: str  # the reason, as a sentence for people
    due: datetime  # the earliest time


def observe(bundle: Bundle, published: Sequence[bytes] | None, now: datetime) -> Bundle:
    """Return the bundle with the time since which every webhook trusts the next CA; None while one does not.

    `published` is the `caBundle` of each webhook, None if the configuration could not be read.
    """
    ca_bundle = bundle.ca_bundle()
    if not bundle.next_ca or published is None or any(one != ca_bundle for one in published):
        return replace(bundle, published=None)
    # Otherwise a replica whose clock is slightly behind would start the wait again and again.
    if bundle.published and bundle.published <= now + CLOCK_TOLERANCE:
        return bundle
    return replace(bundle, published=now)


def next_step(bundle: Bundle, now: datetime, names: Sequence[str] = ()) -> PlannedStep:
    """Return the next step of an observed bundle, due now or later. Without `names`, a leaf keeps its names."""
    # Of several steps that are due, `min` takes the first.
    return min(_steps(bundle, now, names), key=lambda planned: max(planned.due, now))


def plan(bundle: Bundle, first: Change | None, now: datetime) -> Iterator[PlannedStep]:
    """Yield each step, with its earliest time, from a requested one until only the CA that signs last is trusted."""
    if first:
        bundle = first(bundle, now)
        yield PlannedStep(Step.START, "requested by a command", now)
    while bundle.next_ca or bundle.retiring:
        bundle = observe(bundle, [bundle.ca_bundle()], now)
        planned = next_step(bundle, now)
        now = max(now, planned.due)
        bundle = apply_step(planned.step, bundle, now)
        yield replace(planned, due=now)


def _steps(bundle: Bundle, now: datetime, names: Sequence[str]) -> Iterator[PlannedStep]:
    ca, leaf = read(bundle.authority.certificate), read(bundle.leaf.certificate)
    next_ca = bundle.next_ca and read(bundle.next_ca.certificate)
    for what, authority in ("the CA", ca), ("the next CA", next_ca):
        if authority and not authority.is_valid(now):
            yield PlannedStep(Step.START, _why_invalid(what, authority, now), now)
    if not leaf.is_valid(now):
        yield PlannedStep(Step.RENEW, _why_invalid("the certificate", leaf, now), now)
    if not signed_by(bundle.leaf.certificate, bundle.authority.certificate):
        yield PlannedStep(Step.RENEW, "the CA did not sign the certificate", now)
    if missing := [name for name in names if name not in leaf.names]:
        yield PlannedStep(Step.RENEW, f"the certificate lacks {', '.join(missing)}", now)
    if leaf.not_after < ca.not_after:  # otherwise a new leaf would not live longer
        renewal = leaf.not_after - LEAF_LIFETIME / RENEWAL_DIVISOR
        yield PlannedStep(Step.RENEW, "a third of the certificate's lifetime is left", renewal)
    for retired in bundle.retiring:
        if retired.until > now + LONGEST_RETIREMENT:
            yield PlannedStep(Step.DROP, "an old CA is trusted longer than any of its certificates can live", now)
        yield PlannedStep(Step.DROP, "the last certificate of the old CA has expired", retired.until)
    if not next_ca:
        renewal = ca.not_after - CA_LIFETIME / RENEWAL_DIVISOR
        yield PlannedStep(Step.START, "a third of the CA's lifetime is left", renewal)
    else:
        spread = (bundle.published or now) + SPREAD
        yield PlannedStep(Step.RENEW, "every API server has had time to read the next CA", spread)


def _why_invalid(what: str, certificate: Certificate, now: datetime) -> str:
    if now >= certificate.not_after:
        return f"{what} has expired"
    return f"{what} is not valid yet: the clock was set back"


def apply_step(step: Step, bundle: Bundle, now: datetime, names: Sequence[str] = ()) -> Bundle:
    """Return an observed bundle after a step. Without `names`, a new leaf has the names of the old one."""
    names = names or read(bundle.leaf.certificate).names
    if step is Step.DROP:
        return replace(bundle, retiring=_unexpired(bundle.retiring, now))
    if not read(bundle.authority.certificate).is_valid(now):
        return new_bundle(names, now, _all_retired(bundle))
    if step is Step.START:
        return replace(bundle, next_ca=issue_ca(now), published=None)
    if bundle.next_ca and bundle.published and bundle.published + SPREAD <= now:
        return Bundle(bundle.next_ca, issue_leaf(bundle.next_ca, names, now), retiring=_all_retired(bundle))
    return replace(bundle, leaf=issue_leaf(bundle.authority, names, now))


def drop_old(bundle: Bundle, now: datetime) -> Bundle:
    """Return a bundle whose new CA signs at once. The others stay trusted until the replicas have read the Secret."""
    last = now + READ_BY_ALL
    old = (RetiringCA(retired.certificate, min(retired.until, last)) for retired in _all_retired(bundle))
    return new_bundle(read(bundle.leaf.certificate).names, now, old)


def new_bundle(names: Sequence[str], now: datetime, retiring: Iterable[RetiringCA] = ()) -> Bundle:
    """Issue a CA and a leaf; of the retiring CAs, trust the last few. Raises BadCertificate if there is no name."""
    ca = issue_ca(now)
    return Bundle(ca, issue_leaf(ca, names, now), retiring=_unexpired(retiring, now)[-MAX_RETIRING:])


def _all_retired(bundle: Bundle) -> tuple[RetiringCA, ...]:
    """Return the retiring CAs of a bundle after its signing CA has retired as well."""
    signing = RetiringCA(bundle.authority.certificate.decode(), read(bundle.leaf.certificate).not_after)
    return (*bundle.retiring, signing)


def _unexpired(retiring: Iterable[RetiringCA], now: datetime) -> tuple[RetiringCA, ...]:
    return tuple(one for one in retiring if now < one.until <= now + LONGEST_RETIREMENT)
