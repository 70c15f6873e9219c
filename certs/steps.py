"""What a step makes of a bundle: new keys and certificates are made here, and nothing is written."""

from dataclasses import replace
from datetime import datetime, timedelta

from certs.authority import Issued, issue_ca, issue_leaf, read
from certs.bundle import Bundle, InvalidBundle, RetiringCA
from certs.renewal import Policy, Step

# A replica that fails asks again after 30 s at the most, and waits 5 s for each of its answers.
READ_BY_ALL = timedelta(seconds=60)
# A rollout that takes longer has failed (progressDeadlineSeconds); until then, replicas of another source are called.
REPLACED = timedelta(minutes=10)
# Two clocks a year apart begin anew in turn: after 15 minutes the Secret, which takes 1 MiB, would be full for good.
LEAVING_AT_MOST = 8


def apply_step(
    step: Step, found: Bundle | InvalidBundle, now: datetime, policy: Policy, served: tuple[RetiringCA, ...] = ()
) -> Bundle:
    """Return the bundle after a step. Raises BadCertificate where nothing is left to issue for.

    `served` are the CAs by which the replicas are trusted while there is no bundle that says so.
    """
    if isinstance(found, InvalidBundle):
        return replace(_fresh(policy.names, now, policy), retiring=served[:LEAVING_AT_MOST])
    match step:
        case Step.START:
            # The replicas serve the old leaf until they have seen the new one.
            old = _alive((*found.retiring, _left(found)), now)[-LEAVING_AT_MOST:]
            return replace(_fresh(policy.names or _names(found, policy), now, policy), retiring=old)
        case Step.RENEW:
            return replace(found, leaf=_leaf(found.authority, found, now, policy))
        case Step.INTRODUCE | Step.REPLACE:
            next_ca, hurry = issue_ca(now, _names(found, policy), policy.ca_life), found.hurry or step is Step.REPLACE
            return replace(found, next_ca=next_ca, published=None, hurry=hurry)
        case Step.PUBLISHED:
            return replace(found, published=now)
        case Step.WITHDRAWN:
            return replace(found, published=None)
        case Step.SIGN if found.next_ca:
            leaf = _leaf(found.next_ca, found, now, policy)
            retiring = (*found.retiring, _left(found))
            return Bundle(found.next_ca, leaf, retiring=_hurried(retiring, now) if found.hurry else retiring)
        case Step.DROP:
            return replace(found, retiring=_alive(found.retiring, now))
        case Step.HURRY:  # without one that comes, a replica has just signed
            return (
                replace(found, hurry=True) if found.next_ca else replace(found, retiring=_hurried(found.retiring, now))
            )
    return found


def _fresh(names: tuple[str, ...], now: datetime, policy: Policy) -> Bundle:
    ca = issue_ca(now, names, policy.ca_life)
    return Bundle(ca, issue_leaf(ca, names, now, policy.leaf_life))


def _leaf(ca: Issued, found: Bundle, now: datetime, policy: Policy) -> Issued:
    names = [name for name in _names(found, policy) if read(ca.certificate).permits([name])]
    return issue_leaf(ca, names, now, policy.leaf_life)


def _names(found: Bundle, policy: Policy) -> tuple[str, ...]:
    return policy.names_after(read(found.leaf.certificate))


def _left(found: Bundle) -> RetiringCA:
    return RetiringCA(found.authority.certificate, read(found.leaf.certificate).not_after)


def _hurried(retiring: tuple[RetiringCA, ...], now: datetime) -> tuple[RetiringCA, ...]:
    return tuple(replace(one, until=min(one.until, now + READ_BY_ALL)) for one in retiring)


def _alive(retiring: tuple[RetiringCA, ...], now: datetime) -> tuple[RetiringCA, ...]:
    return tuple(one for one in retiring if one.until > now)
