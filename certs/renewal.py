"""What is due, when and why: from a bundle, what is published, the time and a policy to the next step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from certs.authority import BACKDATED, CA_LIFE, LEAF_LIFE, Certificate, read, signed_by
from certs.bundle import Bundle, InvalidBundle
from certs.cluster import Cause
from certs.names import canonical

NEVER = datetime.max.replace(tzinfo=UTC)
LEFT = 3  # a certificate is renewed when a third of its life is left


class Step(StrEnum):
    """What can be done to a bundle: the label of a metric."""

    START = "start"
    RENEW = "renew"
    INTRODUCE = "introduce"
    PUBLISH = "publish"
    PUBLISHED = "published"
    WITHDRAWN = "withdrawn"
    SIGN = "sign"
    DROP = "drop"
    HURRY = "hurry"
    REPLACE = "replace"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Policy:
    """What is wanted. `spread` is how long every API server gets to see a bundle; no `names` are those of the leaf."""

    names: tuple[str, ...] = ()
    leaf_life: timedelta = LEAF_LIFE
    ca_life: timedelta = CA_LIFE
    spread: timedelta = timedelta(minutes=5)

    def __post_init__(self) -> None:
        """Write the names as a certificate holds them. Raises BadName."""
        object.__setattr__(self, "names", tuple(dict.fromkeys(map(canonical, self.names))))

    def lacking(self, leaf: Certificate) -> list[str]:
        """Return the names that are wanted and not there."""
        return [name for name in self.names if name not in leaf.names]

    def names_after(self, leaf: Certificate) -> tuple[str, ...]:
        """Return the names of the leaf that follows this one.

        While replicas with other settings are being replaced, each kind wants names of its own: a leaf with both ends
        the argument. The renewal after that leaves the old ones out.
        """
        if self.lacking(leaf):
            return tuple(dict.fromkeys((*self.names, *leaf.names)))
        return self.names or leaf.names


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step, why it is taken, and from when on."""

    step: Step
    why: str
    due: datetime

    def is_due(self, now: datetime) -> bool:
        """Say whether its time has come."""
        return self.due <= now


def next_step(
    found: Bundle | InvalidBundle, published: Sequence[bytes] | None, now: datetime, policy: Policy
) -> PlannedStep:
    """Return what is to be done next, be it now or later.

    `published` is the `caBundle` of each webhook as it was read, None where it could not be read.
    """
    if isinstance(found, InvalidBundle):
        if found.cause is Cause.FOREIGN:
            return PlannedStep(Step.NOTHING, "the Secret is not ours", NEVER)
        return PlannedStep(Step.START, str(found), now)
    at_once = next(_at_once(found, published, now, policy), None)
    if at_once:
        return PlannedStep(*at_once, now)
    # Of two that are due at one time the first one: what can be done before what is waited for.
    return min(_in_time(found, published, now, policy), key=lambda candidate: candidate.due)


def _at_once(
    bundle: Bundle, published: Sequence[bytes] | None, now: datetime, policy: Policy
) -> Iterator[tuple[Step, str]]:
    ca, leaf = read(bundle.authority.certificate), read(bundle.leaf.certificate)
    if not ca.is_valid(now):
        yield Step.START, _invalid("the CA", ca, now)
    if bundle.published and _differs(bundle, published):
        yield Step.WITHDRAWN, "a caBundle was changed while it spread: the wait begins anew"
    # Not at once: where one clock is a little behind, its replica would undo again and again what the others note.
    if bundle.published and bundle.published > now + BACKDATED:
        yield Step.WITHDRAWN, "the clock went back while the caBundle spread: the wait begins anew"
    if policy.names and not any(ca.permits([name]) for name in policy.names):
        yield Step.START, "the CA may sign for none of the names that are wanted"
    if bundle.next_ca:
        yield from _of_the_coming(bundle, read(bundle.next_ca.certificate), published, now)
    elif not ca.permits(policy.names):
        yield Step.INTRODUCE, "the CA may not sign for the names that are wanted"
    if not leaf.is_valid(now):
        yield Step.RENEW, _invalid("the certificate", leaf, now)
    if not signed_by(bundle.leaf.certificate, bundle.authority.certificate):
        yield Step.RENEW, "the certificate was not signed by the CA"
    if missing := [name for name in policy.lacking(leaf) if ca.permits([name])]:
        yield Step.RENEW, f"the certificate lacks {', '.join(missing)}"


def _of_the_coming(
    bundle: Bundle, next_ca: Certificate, published: Sequence[bytes] | None, now: datetime
) -> Iterator[tuple[Step, str]]:
    if not next_ca.is_valid(now):
        yield Step.INTRODUCE, _invalid("the coming CA", next_ca, now)
    if not bundle.published and published is not None and not _differs(bundle, published):
        yield Step.PUBLISHED, "every webhook trusts the coming CA: from now on it spreads"


def _in_time(bundle: Bundle, published: Sequence[bytes] | None, now: datetime, policy: Policy) -> Iterator[PlannedStep]:
    ca, leaf = read(bundle.authority.certificate), read(bundle.leaf.certificate)
    if leaf.not_after < ca.not_after:  # else a new one would not live longer
        yield PlannedStep(Step.RENEW, "a third of the certificate's life is left", _renewal(leaf))
    else:
        yield PlannedStep(Step.NOTHING, "the certificate ends with its CA", leaf.not_after)
    for one in bundle.retiring:
        yield PlannedStep(Step.DROP, "the old CA is needed no more", one.until)
    if not bundle.next_ca:
        yield PlannedStep(Step.INTRODUCE, "a third of the CA's life is left", _renewal(ca))
    elif bundle.published and published is not None:
        yield PlannedStep(
            Step.SIGN, "every API server has had the time to see the coming CA", bundle.published + policy.spread
        )
    else:
        why = (
            "not every webhook trusts the coming CA yet" if published is not None else "what is published can't be read"
        )
        yield PlannedStep(Step.PUBLISH, why, now)


def _renewal(certificate: Certificate) -> datetime:
    life = certificate.not_after - certificate.not_before - BACKDATED
    return certificate.not_after - life / LEFT


def _differs(bundle: Bundle, published: Sequence[bytes] | None) -> bool:
    ca_bundle = bundle.ca_bundle()
    return any(one != ca_bundle for one in published or ())


def _invalid(what: str, certificate: Certificate, now: datetime) -> str:
    if now >= certificate.not_after:
        return f"{what} has expired"
    return f"{what} is not valid yet: the clock went back"
