"""Decide on a share-manager pod: it prefers the node of the VMs that use its volume."""

from msgspec.structs import replace

from webhook.placement import volume_consumers, wording
from webhook.placement.catalog import Catalog
from webhook.placement.guard.candidate import Candidate
from webhook.placement.guard.comparison_limit import Comparisons
from webhook.placement.guard.feasibility import CHECKS, FailedCheck, first_failed_check
from webhook.placement.objects.fields import JsonObject
from webhook.placement.reasons import ClaimFinding, Decision, Mode, Outcome, Reason, Source
from webhook.placement.settings import Settings
from webhook.placement.steps import ConsumersFound, NodeChecked, NodeChosen, Record, ignore
from webhook.placement.votes import Choice
from webhook.placement.wording import unchanged


def place_share_manager(
    pod: JsonObject, namespace: str, catalog: Catalog, settings: Settings, record: Record = ignore
) -> Decision:
    """Place a share-manager pod on the node where most VMs use its volume, if the node guard allows it.

    The node is preferred, never required, so that Longhorn's failover always wins.
    """
    users, avoided = volume_consumers.find_consumers(pod, catalog, settings), volume_consumers.avoided_nodes(pod)
    failing = volume_consumers.failing_nodes(users.volume, catalog, settings)
    record(ConsumersFound(users, avoided | failing))
    if not users.pods:
        return unchanged(Reason.NO_CONSUMER, Mode.PREFERRED, f"no opted-in VM uses volume {users.volume}")
    candidates = volume_consumers.ranked_nodes(users, avoided | failing)
    if not candidates:
        why = "the share-manager failed twice within ten minutes on" if failing else "the pod prefers to avoid"
        sentence = f"{why} the nodes of the VMs that use volume {users.volume}"
        return unchanged(Reason.NODE_AVOIDED, Mode.PREFERRED, sentence)

    # A share-manager pod mounts no claim, so no PV restricts it: Longhorn attaches the volume to the pod's node.
    # In a drain, the node of the migration's source is cordoned, and the new server belongs on the target's node.
    obstacles: dict[str, FailedCheck | None] = {}
    checks = CHECKS if settings.node_guard else ()
    comparisons = Comparisons()  # for all nodes together
    for node in candidates:
        candidate = Candidate(pod, namespace, node, (), catalog, comparisons=comparisons)
        record(NodeChecked(candidate, checks))
        obstacles[node] = first_failed_check(candidate, checks)
        if obstacles[node] is None:
            break
    else:
        node = candidates[0]
    record(NodeChosen(Choice(node, tuple(other for other in candidates if other != node))))
    claims = (ClaimFinding(users.claim, users.volume, node, Source.VIRT_LAUNCHER_POD),)
    if obstacle := obstacles[node]:
        decision = unchanged(obstacle.reason, Mode.PREFERRED, wording.not_steered(node, obstacle.detail))
        return replace(decision, node=node, claims=claims)
    message = wording.steered(node, sum(vm.node == node for vm in users.pods))
    return Decision(
        Outcome.PREFERRED,
        Reason.CO_SCHEDULED,
        message,
        Mode.PREFERRED,
        node,
        claims=claims,
        recorded=True,
        passed_over=comparisons.passed_over,
    )
