"""Follow a claim to the node of its share-manager."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from webhook.placement.catalog import Catalog, Claim, Volume
from webhook.placement.claims import mounted_claims
from webhook.placement.decision import ClaimFinding, Reason, Source
from webhook.placement.shape import JsonObject

# States of a ShareManager whose NFS server is running or about to start. A new ShareManager has an empty state.
SERVING_STATES = ("running", "starting", "")


def _serving_node(volume: str, catalog: Catalog, longhorn_namespace: str) -> tuple[str, Source] | Reason:
    for pod in catalog.share_manager_pods(longhorn_namespace, volume):
        if pod.node and pod.alive:
            return pod.node, Source.SHARE_MANAGER_POD
    # No bound share-manager pod is visible yet. The owner is the node where Longhorn reconciles the volume, and
    # most often the node of the future pod.
    manager = catalog.share_manager(longhorn_namespace, volume)
    if manager is None:
        return Reason.NO_SHARE_MANAGER
    if manager.deleting or manager.state not in SERVING_STATES:
        return Reason.SHARE_MANAGER_STOPPED
    if not manager.owner:
        return Reason.SHARE_MANAGER_UNASSIGNED
    return manager.owner, Source.SHARE_MANAGER


def _unusable_reason(claim: Claim | None) -> Reason | None:
    if claim is None:
        return Reason.CLAIM_NOT_FOUND
    if not claim.shared:
        return Reason.CLAIM_NOT_RWX
    if not claim.volume_name:
        return Reason.CLAIM_NOT_BOUND
    return None


def resolve(name: str, namespace: str, catalog: Catalog, longhorn_namespace: str) -> ClaimFinding:
    """Follow one claim to its PV, Longhorn volume and share-manager."""
    claim = catalog.claim(namespace, name)
    reason = _unusable_reason(claim)
    if claim is None or reason:
        return ClaimFinding(name, reason=reason)
    volume = catalog.volume(claim.volume_name)
    # A dynamically provisioned Longhorn volume has the name of its PV, so the PV itself may still be unknown.
    handle = volume.handle if volume else claim.volume_name
    if not handle:
        return ClaimFinding(name, reason=Reason.NOT_LONGHORN)
    found = _serving_node(handle, catalog, longhorn_namespace)
    if isinstance(found, Reason):
        return ClaimFinding(name, handle, reason=found, persistent_state=claim.persistent_state)
    return ClaimFinding(name, handle, *found, persistent_state=claim.persistent_state)


def resolve_all(pod: JsonObject, namespace: str, catalog: Catalog, longhorn_namespace: str) -> tuple[ClaimFinding, ...]:
    """Follow each claim of the pod, in volume order."""
    return tuple(resolve(name, namespace, catalog, longhorn_namespace) for name in mounted_claims(pod))


def known_volumes(findings: Iterable[ClaimFinding], namespace: str, catalog: Catalog) -> Iterator[Volume]:
    """Yield the known PVs of the claims. A PV of any driver may restrict the pod to some nodes."""
    for finding in findings:
        claim = catalog.claim(namespace, finding.claim)
        volume = catalog.volume(claim.volume_name) if claim else None
        if volume:
            yield volume


@dataclass(frozen=True, slots=True)
class Choice:
    """The node with the most votes, and the other nodes with a vote, in the order of their first vote."""

    node: str
    others: tuple[str, ...] = ()


def ranked(votes: Iterable[str]) -> tuple[str, ...]:
    """Return the nodes, those with the most votes first. In a tie, the node with the earlier vote is first."""
    return tuple(node for node, _ in Counter(votes).most_common())  # a stable sort: a Counter keeps insertion order


def most_voted(votes: Iterable[str]) -> Choice | None:
    """Return the node with the most votes. In a tie, the node with the earliest vote wins. None without votes."""
    nodes = tuple(votes)
    if not nodes:
        return None
    winner = ranked(nodes)[0]
    return Choice(winner, tuple(other for other in dict.fromkeys(nodes) if other != winner))


def choose(findings: Iterable[ClaimFinding]) -> Choice | None:
    """Choose the node that serves most of the claims. In a tie, the first claim wins. None if no claim has a node.

    The claim of a persistent vTPM or EFI state is tiny, so it has no vote while another claim has a node.
    """
    found = [(finding.node, finding.persistent_state) for finding in findings if finding.node]
    disks = [node for node, persistent_state in found if not persistent_state]
    return most_voted(disks or (node for node, _ in found))
