"""Apply a step to a bundle: issue new keys and certificates in memory, without writing anything."""

from dataclasses import replace
from datetime import datetime, timedelta

from certs.authority import Issued, issue_ca, issue_leaf, read
from certs.bundle import Bundle, InvalidBundle, RetiringCA
from certs.renewal import Policy, Step

# The time until every replica has read the Secret: a failing replica retries after 30 s at most, with a timeout of 5 s
# per request.
READ_BY_ALL = timedelta(seconds=60)
# A longer rollout has failed (progressDeadlineSeconds). Until then, the API server may call a replica that uses another
# certificate source.
ROLLOUT_TIMEOUT = timedelta(minutes=10)
# Replicas whose clocks differ by a year replace the CA in turn. Without a limit, the Secret (1 MiB at most) would fill
# up within 15 minutes, and could never be written again.
MAX_RETIRING = 8


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
            return replace(_new_bundle(policy.names or _next_names(found, policy), now, policy), retiring=old)
        case Step.RENEW:
            return replace(found, leaf=_new_leaf(found.authority, found, now, policy))
        case Step.INTRODUCE | Step.REPLACE:
            next_ca, drop_old_early = (
                issue_ca(now, _next_names(found, policy), policy.ca_lifetime),
                found.drop_old_early or step is Step.REPLACE,
            )
            return replace(found, next_ca=next_ca, published=None, drop_old_early=drop_old_early)
        case Step.PUBLISHED:
            return replace(found, published=now)
        case Step.WITHDRAWN:
            return replace(found, published=None)
        case Step.SIGN if found.next_ca:
            leaf = _new_leaf(found.next_ca, found, now, policy)
            retiring = (*found.retiring, _retire(found))
            return Bundle(
                found.next_ca, leaf, retiring=_drop_early(retiring, now) if found.drop_old_early else retiring
            )
        case Step.DROP:
            return replace(found, retiring=_unexpired(found.retiring, now))
        case Step.DROP_EARLY:  # no next CA: a replica has just signed with it
            return (
                replace(found, drop_old_early=True)
                if found.next_ca
                else replace(found, retiring=_drop_early(found.retiring, now))
            )
    return found


def _new_bundle(names: tuple[str, ...], now: datetime, policy: Policy) -> Bundle:
    ca = issue_ca(now, names, policy.ca_lifetime)
    return Bundle(ca, issue_leaf(ca, names, now, policy.leaf_lifetime))


def _new_leaf(ca: Issued, found: Bundle, now: datetime, policy: Policy) -> Issued:
    names = [name for name in _next_names(found, policy) if read(ca.certificate).permits([name])]
    return issue_leaf(ca, names, now, policy.leaf_lifetime)


def _next_names(found: Bundle, policy: Policy) -> tuple[str, ...]:
    return policy.next_names(read(found.leaf.certificate))


def _retire(found: Bundle) -> RetiringCA:
    return RetiringCA(found.authority.certificate, read(found.leaf.certificate).not_after)


def _drop_early(retiring: tuple[RetiringCA, ...], now: datetime) -> tuple[RetiringCA, ...]:
    return tuple(replace(one, until=min(one.until, now + READ_BY_ALL)) for one in retiring)


def _unexpired(retiring: tuple[RetiringCA, ...], now: datetime) -> tuple[RetiringCA, ...]:
    return tuple(one for one in retiring if one.until > now)
