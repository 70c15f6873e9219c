"""At a cold start, find the nodes that have the data of a VM's disks: there, the share-manager's own hop is local, too.

Neither the VM nor its share-manager has a node yet, and the share-manager will follow the VM. With `dataLocality:
best-effort`, Longhorn would otherwise copy the whole volume to their node. At any other moment, a replica has no say.
"""

from collections import Counter
from collections.abc import Iterable

from webhook.placement.catalog import Catalog
from webhook.placement.guard import feasibility
from webhook.placement.guard.candidate import Candidate
from webhook.placement.guard.comparison_limit import Comparisons
from webhook.placement.objects.pod import Manifest
from webhook.placement.objects.selectors import selects
from webhook.placement.reasons import ClaimFinding, LocalNodes
from webhook.placement.settings import ReplicaLocality, Settings

MAX_NODES = 8  # whose guard is evaluated; a volume has three replicas by default
BEST_EFFORT = "best-effort"  # a volume's dataLocality


def local_nodes(
    findings: Iterable[ClaimFinding], manifest: Manifest, catalog: Catalog, settings: Settings
) -> LocalNodes:
    """Return the nodes that the pod of a cold start prefers, sorted by name."""
    if not settings.steering:
        return LocalNodes()
    nodes_of = {
        finding.claim: _nodes(finding, catalog, settings)
        for finding in findings
        if finding.decides and finding.follows and finding.volume
    }
    counts = Counter(node for nodes in nodes_of.values() for node in nodes)
    if not counts:
        return LocalNodes()
    comparisons = Comparisons()  # for all nodes together
    candidates = [Candidate(manifest, node, catalog, comparisons=comparisons) for node in sorted(counts)[:MAX_NODES]]
    checks = (*feasibility.CHECKS, *feasibility.UNSEEN) if settings.node_guard else ()
    suitable = [one.node_name for one in candidates if feasibility.first_failed_check(one, checks) is None]
    most = max((counts[node] for node in suitable), default=0)
    chosen = tuple(node for node in suitable if counts[node] == most)
    return LocalNodes(chosen, tuple(claim for claim, nodes in nodes_of.items() if nodes.intersection(chosen)))


def _nodes(finding: ClaimFinding, catalog: Catalog, settings: Settings) -> set[str]:
    """Return the nodes with a healthy replica that the claim's StorageClass admits for the share-manager."""
    volume = catalog.longhorn_volume(settings.longhorn_namespace, finding.volume or "")
    if volume is None or settings.replica_locality is ReplicaLocality.NEVER:
        return set()
    is_kept_local = volume.data_locality == BEST_EFFORT or volume.number_of_replicas == 1
    if not is_kept_local and settings.replica_locality is not ReplicaLocality.ALWAYS:
        return set()
    names = {replica.node for replica in catalog.replicas_of(volume.name) if replica.healthy}
    return {node.name for node in filter(None, map(catalog.node, names)) if selects(finding.limits, node.labels)}
