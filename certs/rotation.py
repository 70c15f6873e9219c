"""Decide which step comes next, when and why: from a bundle, the published CAs, the time and a policy."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from certs.authority import (
    BACKDATED,
    LEAF_LIFETIME,
    Certificate,
    Issued,
    canonical,
    issue_ca,
    issue_leaf,
    read,
    signed_by,
)
from certs.secret import Bundle, Cause, InvalidBundle, RetiringCA

NEVER = datetime.max.replace(tzinfo=UTC)
RENEWAL_DIVISOR = 3  # a certificate is renewed when a third of its lifetime is left
# The time until every replica has read the Secret: a failing replica retries after 30 s at most, with a timeout of 5 s
# per request.
READ_BY_ALL = timedelta(seconds=60)
# A longer rollout has failed (progressDeadlineSeconds). Until then, the API server may call a replica that uses another
# certificate source.
ROLLOUT_TIMEOUT = timedelta(minutes=10)
# Replicas whose clocks differ by a year replace the CA in turn. Without a limit, the Secret (1 MiB at most) would fill
# up within 15 minutes, and could never be written again.
MAX_RETIRING = 8


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
    DROP_EARLY = "drop-early"
    REPLACE = "replace"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings of certificates and rotations. Without `names`, a new leaf has the names of the old one.

    `spread` is the time from the publication of a CA until it signs, so that every API server reads it.
    """

    names: tuple[str, ...] = ()
    leaf_lifetime: timedelta = LEAF_LIFETIME
    spread: timedelta = timedelta(minutes=5)

    def __post_init__(self) -> None:
        """Normalize the names and remove duplicates. Raises BadCertificate."""
        object.__setattr__(self, "names", tuple(dict.fromkeys(map(canonical, self.names))))


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step, the reason for it, and the time from which on it may be taken."""

    step: Step
    why: str
    due: datetime

    def is_due(self, now: datetime) -> bool:
        """Return whether the step may be taken now."""
        return self.due <= now


def next_step(
    found: Bundle | InvalidBundle, published: Sequence[bytes] | None, now: datetime, policy: Policy
) -> PlannedStep:
    """Return the next step, due now or later.

    `published` is the `caBundle` of each webhook, None if the configuration could not be read.
    """
    if isinstance(found, InvalidBundle):
        if found.cause is Cause.FOREIGN:
            return PlannedStep(Step.NOTHING, "the webhook does not own the Secret", NEVER)
        return PlannedStep(Step.START, str(found), now)
    immediate = next(_immediate_steps(found, published, now, policy), None)
    if immediate:
        return PlannedStep(*immediate, now)
    # Of several steps with the same due time, `min` takes the first: one that can be taken, before one that waits.
    return min(_scheduled_steps(found, published, now, policy), key=lambda candidate: candidate.due)


def _immediate_steps(
    bundle: Bundle, published: Sequence[bytes] | None, now: datetime, policy: Policy
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
    if missing := [name for name in policy.names if name not in leaf.names]:
        yield Step.RENEW, f"the certificate lacks {', '.join(missing)}"


def _scheduled_steps(
    bundle: Bundle, published: Sequence[bytes] | None, now: datetime, policy: Policy
) -> Iterator[PlannedStep]:
    ca, leaf = read(bundle.authority.certificate), read(bundle.leaf.certificate)
    if leaf.not_after < ca.not_after:  # otherwise a new leaf would not live longer
        yield PlannedStep(Step.RENEW, "a third of the certificate's lifetime is left", _renewal_time(leaf))
    else:
        yield PlannedStep(Step.NOTHING, "the certificate expires with its CA", leaf.not_after)
    for one in bundle.retiring:
        yield PlannedStep(Step.DROP, "the last certificate of the old CA has expired", one.until)
    if not bundle.next_ca:
        yield PlannedStep(Step.INTRODUCE, "a third of the CA's lifetime is left", _renewal_time(ca))
    elif bundle.published and published is not None:
        yield PlannedStep(
            Step.SIGN, "every API server has had time to read the next CA", bundle.published + policy.spread
        )
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


def apply_step(
    step: Step, found: Bundle | InvalidBundle, now: datetime, policy: Policy, served_cas: tuple[RetiringCA, ...] = ()
) -> Bundle:
    """Return the bundle after a step. Raises BadCertificate if the new certificate would have no name.

    `served_cas` are the CAs of the certificates that replicas serve now. They matter for an invalid bundle only.
    """
    if isinstance(found, InvalidBundle):
        return replace(_new_bundle(policy.names, now, policy), retiring=served_cas[:MAX_RETIRING])
    match step:
        case Step.START:
            # The replicas serve the old leaf until they have read the new one.
            old = _unexpired((*found.retiring, _retire(found)), now)[-MAX_RETIRING:]
            return replace(_new_bundle(_next_names(found, policy), now, policy), retiring=old)
        case Step.RENEW:
            return replace(found, leaf=_new_leaf(found.authority, found, now, policy))
        case Step.INTRODUCE | Step.REPLACE:
            drop_old_early = found.drop_old_early or step is Step.REPLACE
            return replace(found, next_ca=issue_ca(now), published=None, drop_old_early=drop_old_early)
        case Step.PUBLISHED:
            return replace(found, published=now)
        case Step.WITHDRAWN:
            return replace(found, published=None)
        case Step.SIGN if found.next_ca:
            signed = Bundle(
                found.next_ca,
                _new_leaf(found.next_ca, found, now, policy),
                retiring=(*found.retiring, _retire(found)),
            )
            return _drop_early(signed, now) if found.drop_old_early else signed
        case Step.DROP:
            return replace(found, retiring=_unexpired(found.retiring, now))
        case Step.DROP_EARLY:  # no next CA: a replica has just signed with it
            return replace(found, drop_old_early=True) if found.next_ca else _drop_early(found, now)
    return found


def _new_bundle(names: tuple[str, ...], now: datetime, policy: Policy) -> Bundle:
    ca = issue_ca(now)
    return Bundle(ca, issue_leaf(ca, names, now, policy.leaf_lifetime))


def _new_leaf(ca: Issued, found: Bundle, now: datetime, policy: Policy) -> Issued:
    return issue_leaf(ca, _next_names(found, policy), now, policy.leaf_lifetime)


def _next_names(found: Bundle, policy: Policy) -> tuple[str, ...]:
    return policy.names or read(found.leaf.certificate).names


def _retire(found: Bundle) -> RetiringCA:
    return RetiringCA(found.authority.certificate, read(found.leaf.certificate).not_after)


def _drop_early(bundle: Bundle, now: datetime) -> Bundle:
    retiring = (replace(one, until=min(one.until, now + READ_BY_ALL)) for one in bundle.retiring)
    return replace(bundle, retiring=tuple(retiring))


def _unexpired(retiring: tuple[RetiringCA, ...], now: datetime) -> tuple[RetiringCA, ...]:
    return tuple(one for one in retiring if one.until > now)
