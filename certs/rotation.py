"""Decide how a bundle changes next, when and why, from the bundle, the published certificates and the time.

API servers read a changed `caBundle` late, and replicas read a changed Secret late. So a certificate is served only
when every API server trusts it, and it stays trusted while a replica may serve it. A renewal takes three steps:

1. START issues the next pair. The controller then publishes both certificates in each `caBundle`.
2. Each pass observes the configuration. When every `caBundle` has been read back with both, the bundle records the time
   as `published`. If a `caBundle` differs, or if the clock is set back, the wait starts again. This is no step.
3. RENEW, when `published` is SPREAD ago, makes the next pair the serving one. The old one retires.
4. DROP removes the retired certificate when it has expired.

If the serving certificate can't be used, each step but DROP starts over: a new pair is served at once.

Nothing here depends on who took the step before, so any replica may take the next one, also after a crash.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from certs.authority import BACKDATED, LIFETIME, Certificate, Issued, issue, read, signed_by
from certs.secret import Bundle, Retiring

RENEWAL_DIVISOR = 3  # a certificate is renewed when a third of its lifetime is left
READ_BY_ALL = timedelta(seconds=60)  # until every replica has read the Secret, also after some failed passes
# Replicas with clocks months apart replace the pair in turn, and so do replicas of different versions. Without a limit,
# the Secret (1 MiB at most) would fill up, and could never be written again.
MAX_RETIRING = 8
# No certificate lives longer, by any clock that they tolerate.
LONGEST_RETIREMENT = LIFETIME + BACKDATED
CLOCK_TOLERANCE = timedelta(hours=1)  # between replicas
SPREAD = timedelta(minutes=5)  # from the publication of a certificate until it is served: every API server reads it

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
    """Return the bundle with the time since which every webhook trusts the next pair; None while one does not.

    `published` is the `caBundle` of each webhook, None if the configuration could not be read.
    """
    ca_bundle = bundle.ca_bundle()
    if not bundle.next or published is None or any(one != ca_bundle for one in published):
        return replace(bundle, published=None)
    # Otherwise a replica whose clock is slightly behind would start the wait again and again.
    if bundle.published and bundle.published <= now + CLOCK_TOLERANCE:
        return bundle
    return replace(bundle, published=now)


def next_step(bundle: Bundle, now: datetime, names: Sequence[str] = ()) -> PlannedStep:
    """Return the next step of an observed bundle, due now or later. Without `names`, the names stay."""
    return _first(_steps(bundle, now, names), now)


def _first(steps: Iterable[PlannedStep], now: datetime) -> PlannedStep:
    # Of several steps that are due, `min` takes the first.
    return min(steps, key=lambda planned: max(planned.due, now))


def plan(bundle: Bundle, first: Change | None, now: datetime) -> Iterator[PlannedStep]:
    """Yield each step, with its earliest time, from a requested one until the old certificates are dropped."""
    if first:
        bundle = first(bundle, now)
        yield PlannedStep(Step.START, "requested by a command", now)
    while bundle.next or bundle.retiring:
        bundle = observe(bundle, [bundle.ca_bundle()], now)
        # Not the next renewal, which begins before the old certificate has expired.
        planned = _first((one for one in _steps(bundle, now, ()) if one.step is not Step.START), now)
        now = max(now, planned.due)
        bundle = apply_step(planned.step, bundle, now)
        yield replace(planned, due=now)


def _steps(bundle: Bundle, now: datetime, names: Sequence[str]) -> Iterator[PlannedStep]:
    serving = read(bundle.serving.certificate)
    names = names or serving.names
    if why := _why_unusable(bundle, now, names):
        yield PlannedStep(Step.START, why, now)
    for retired in bundle.retiring:
        if retired.until > now + LONGEST_RETIREMENT:
            yield PlannedStep(Step.DROP, "an old certificate is trusted longer than any can live", now)
        yield PlannedStep(Step.DROP, "the old certificate has expired", retired.until)
    if bundle.next:
        following = read(bundle.next.certificate)
        if why := _why_invalid(following, now) or _why_names_differ(following, names):
            yield PlannedStep(Step.START, f"the next certificate {why}", now)
        spread = (bundle.published or now) + SPREAD
        yield PlannedStep(Step.RENEW, "every API server has had time to read the next certificate", spread)
        return
    if why := _why_names_differ(serving, names):
        yield PlannedStep(Step.START, f"the certificate {why}", now)
    if bundle.ca:
        yield PlannedStep(Step.START, "a CA signed the certificate, as in earlier versions", now)
    renewal = serving.not_after - LIFETIME / RENEWAL_DIVISOR
    yield PlannedStep(Step.START, "a third of the certificate's lifetime is left", renewal)


def _why_unusable(bundle: Bundle, now: datetime, names: Sequence[str]) -> str:
    """Return why no client accepts the serving certificate, empty if one does. Then there is nothing to wait for."""
    serving = read(bundle.serving.certificate)
    if why := _why_invalid(serving, now) or _why_invalid(read(bundle.anchor.certificate), now):
        return f"the certificate {why}"
    if not set(names) & set(serving.names):
        return f"the certificate {_why_names_differ(serving, names)}"
    if not signed_by(bundle.serving.certificate, bundle.anchor.certificate):
        return "the trusted certificate did not sign the serving one"
    return ""


def _why_invalid(certificate: Certificate, now: datetime) -> str:
    if certificate.is_valid(now):
        return ""
    return "has expired" if now >= certificate.not_after else "is not valid yet: the clock was set back"


def _why_names_differ(certificate: Certificate, names: Sequence[str]) -> str:
    missing = [name for name in names if name not in certificate.names]
    return f"lacks {', '.join(missing)}" if missing else ""


def apply_step(step: Step, bundle: Bundle, now: datetime, names: Sequence[str] = ()) -> Bundle:
    """Return an observed bundle after a step. Without `names`, a new certificate has the names of the old one."""
    names = names or read(bundle.serving.certificate).names
    if step is Step.DROP:
        return replace(bundle, retiring=_unexpired(bundle.retiring, now))
    if _why_unusable(bundle, now, names):
        return new_bundle(names, now, _all_retired(bundle))
    if step is Step.RENEW and bundle.next:
        return _served_next(bundle.next, _all_retired(bundle), now)
    return replace(bundle, next=issue(names, now), published=None)


def drop_old(bundle: Bundle, now: datetime) -> Bundle:
    """Return a bundle whose new pair is served at once. The others stay trusted until the replicas have read it."""
    last = now + READ_BY_ALL
    old = (replace(retired, until=min(retired.until, last)) for retired in _all_retired(bundle))
    return new_bundle(read(bundle.serving.certificate).names, now, old)


def new_bundle(names: Sequence[str], now: datetime, retiring: Iterable[Retiring] = ()) -> Bundle:
    """Issue a pair; of the retiring ones, trust the last few. Raises BadCertificate if there is no name."""
    return _served_next(issue(names, now), retiring, now)


def _served_next(pair: Issued, retiring: Iterable[Retiring], now: datetime) -> Bundle:
    """Return a bundle that serves a pair, and trusts the last few of the retiring certificates."""
    return Bundle(pair, retiring=_unexpired(retiring, now)[-MAX_RETIRING:])


def _all_retired(bundle: Bundle) -> tuple[Retiring, ...]:
    """Return the retiring certificates of a bundle after its serving one has retired as well."""
    anchor = Retiring(bundle.anchor.certificate.decode(), read(bundle.serving.certificate).not_after)
    return (*bundle.retiring, anchor)


def _unexpired(retiring: Iterable[Retiring], now: datetime) -> tuple[Retiring, ...]:
    return tuple(one for one in retiring if now < one.until <= now + LONGEST_RETIREMENT)
