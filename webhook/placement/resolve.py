"""From a claim to the node of its share-manager."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from webhook.placement.catalog import Catalog, Claim, Volume
from webhook.placement.claims import mounted_claims
from webhook.placement.decision import ClaimFinding, Reason, Source
from webhook.placement.shape import JsonObject

# A ShareManager in one of these states has a server, or is about to have one; empty is one just created.
SERVING_STATES = ("running", "starting", "")


def _server(volume: str, catalog: Catalog, longhorn: str) -> tuple[str, Source] | Reason:
    for pod in catalog.share_manager_pods(longhorn, volume):
        if pod.node and pod.alive:
            return pod.node, Source.SHARE_MANAGER_POD
    # The pod does not show yet. The owner is where Longhorn reconciles, most often where the pod will be.
    manager = catalog.share_manager(longhorn, volume)
    if manager is None:
        return Reason.NO_SHARE_MANAGER
    if manager.deleting or manager.state not in SERVING_STATES:
        return Reason.SHARE_MANAGER_STOPPED
    if not manager.owner:
        return Reason.SHARE_MANAGER_UNASSIGNED
    return manager.owner, Source.SHARE_MANAGER


def _unusable(claim: Claim | None) -> Reason | None:
    if claim is None:
        return Reason.CLAIM_NOT_FOUND
    if not claim.shared:
        return Reason.CLAIM_NOT_RWX
    if not claim.volume_name:
        return Reason.CLAIM_NOT_BOUND
    return None


def resolve(name: str, namespace: str, catalog: Catalog, longhorn: str) -> ClaimFinding:
    """Follow one claim to its PV, Longhorn volume and share-manager; `longhorn` is Longhorn's namespace."""
    claim = catalog.claim(namespace, name)
    reason = _unusable(claim)
    if claim is None or reason:
        return ClaimFinding(name, reason=reason)
    volume = catalog.volume(claim.volume_name)
    # For a dynamically provisioned volume PV and Longhorn volume have one name, so a PV not seen yet does no harm.
    handle = volume.handle if volume else claim.volume_name
    if not handle:
        return ClaimFinding(name, reason=Reason.NOT_LONGHORN)
    found = _server(handle, catalog, longhorn)
    if isinstance(found, Reason):
        return ClaimFinding(name, handle, reason=found, persistent_state=claim.persistent_state)
    return ClaimFinding(name, handle, *found, persistent_state=claim.persistent_state)


def resolve_all(pod: JsonObject, namespace: str, catalog: Catalog, longhorn: str) -> tuple[ClaimFinding, ...]:
    """Follow each claim of the pod, in the order of its volumes."""
    return tuple(resolve(name, namespace, catalog, longhorn) for name in mounted_claims(pod))


def known_volumes(findings: Iterable[ClaimFinding], namespace: str, catalog: Catalog) -> Iterator[Volume]:
    """Return the known PVs of the claims, of whatever driver: each may tie the pod to some nodes."""
    for finding in findings:
        claim = catalog.claim(namespace, finding.claim)
        volume = catalog.volume(claim.volume_name) if claim else None
        if volume:
            yield volume


@dataclass(frozen=True, slots=True)
class Choice:
    """The node with the most votes, and the others that got one, in the order of their first vote."""

    node: str
    others: tuple[str, ...] = ()


def most_voted(votes: Iterable[str]) -> Choice | None:
    """Count votes for nodes; of equals the first one named wins. None where nobody votes."""
    count = Counter(votes)
    if not count:
        return None
    node = max(count, key=lambda name: count[name])  # the first of equals: a Counter keeps its order
    return Choice(node, tuple(other for other in count if other != node))


def choose(findings: Iterable[ClaimFinding]) -> Choice | None:
    """Let the claims vote, in volume order. None where no claim has a node.

    The claim of a persistent vTPM or EFI state is tiny: it has no vote while another claim has a node.
    """
    found = [(finding.node, finding.persistent_state) for finding in findings if finding.node]
    disks = [node for node, persistent_state in found if not persistent_state]
    return most_voted(disks or (node for node, _ in found))
