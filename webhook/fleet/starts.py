"""The next start of a VM: the decision, where that places the VM, and whether its share-managers follow."""

from itertools import islice

from msgspec.structs import replace

from webhook.fleet.forecast_catalog import forecast
from webhook.fleet.machine import Future, Lingering, Machine, Start, Status
from webhook.fleet.volumes import other_users
from webhook.placement.affinity import recorded_reason
from webhook.placement.catalog import Catalog
from webhook.placement.eligibility import mode_of
from webhook.placement.guard.candidate import Candidate
from webhook.placement.guard.feasibility import CHECKS, first_failed_check
from webhook.placement.injector import predict
from webhook.placement.objects.facts import Node
from webhook.placement.objects.longhorn import share_manager_name, tolerations
from webhook.placement.objects.pod import Manifest
from webhook.placement.objects.pod_object import NO_SPEC, PodObject, PodSpec
from webhook.placement.objects.selectors import selects
from webhook.placement.reasons import NODE_REASONS, ClaimFinding, Decision, OptedInBy, Outcome, Reason
from webhook.placement.settings import Action, Settings
from webhook.placement.voting_consumers import avoided_nodes
from webhook.placement.wording import unchanged

# A volume can have thousands of users, and each VM of a report lists the others.
MAX_USERS = 10
_CHECKS_OF_NODE = [check for check in CHECKS if check.reason in NODE_REASONS]
# The guard doesn't risk these, but the scheduler may place the pod.
_UNRISKED = (Reason.CACHE_STALE, Reason.RELEASED, Reason.START_FAILED, Reason.UNJUDGED)
SCHEDULER_CHECKS = [check for check in CHECKS if check.reason not in _UNRISKED]


def forecast_start(status: Status, catalog: Catalog, settings: Settings) -> Start:
    """Return the decision if the VM started or restarted now. Its template must be known."""
    machine = status.machine
    stopped = _stopped_volumes(status, catalog)
    decision = decide_start(machine, status.opted_in_by, forecast(catalog, stopped), settings)
    # A VM whose only disks are hotplugged mounts no claim itself: their node counts as the target node.
    claims, node = (decision.claims, decision.node) if decision.claims else (status.claims, status.storage_node)
    served = [each for each in claims if node and each.node == node and each.decides and not each.reason]
    users = other_users(served, machine.namespace, machine.pod.vmi_uid if machine.pod else "", catalog)
    first = tuple(dict.fromkeys(islice(users, MAX_USERS)))
    enforced = settings.action is not Action.OBSERVE  # see also `Webhook.predicting`
    stopped_by = None if status.opted_in else Reason.NOT_OPTED_IN
    future = _future(decision, stopped, settings)
    apart = ""
    if future is Future.FOLLOWS:
        apart = _why_not_followed(machine, [each for each in claims if each.decides], catalog)
    future = Future.ANYWHERE if apart else future
    # After a restart, the share-manager still runs for some seconds.
    lingering = _lingering(status, stopped, catalog, settings) if future is Future.FOLLOWS and stopped else None
    refused = next((node for node in (decision.node, status.storage_node) if node in refusing_nodes(machine)), None)
    return Start(decision, future, stopped_by, enforced, stopped, first, apart, lingering, refused or "")


def refusing_nodes(machine: Machine) -> frozenset[str]:
    """Return the nodes that failed to start the VM twice before its pod was created, which therefore avoids them."""
    manifest = machine.manifest
    if manifest is None or recorded_reason(manifest.annotations) is not Reason.START_FAILED:
        return frozenset()
    return avoided_nodes(manifest.affinity)


def decide_start(machine: Machine, by: OptedInBy, catalog: Catalog, settings: Settings) -> Decision:
    """Return the decision on the machine's next pod as if it were opted in. `by` is what opts it in."""
    manifest = machine.next_pod
    if not manifest.claims:
        return unchanged(Reason.NO_CLAIMS, mode_of(manifest.annotations, settings)[0])
    return predict(manifest, by, catalog, settings)


def _stopped_volumes(status: Status, catalog: Catalog) -> frozenset[str]:
    """Return the served volumes that no other VM or pod uses: Longhorn stops their share-managers with the VM."""
    pod = status.machine.pod
    if pod is None or not pod.node:
        return frozenset()
    served = [each for each in status.claims if each.node and not each.reason and each.volume]
    alone = (each for each in served if not any(other_users([each], pod.namespace, pod.vmi_uid, catalog)))
    return frozenset(each.volume for each in alone if each.volume)


def _future(decision: Decision, stopped: frozenset[str], settings: Settings) -> Future:
    if decision.outcome is Outcome.PINNED:
        return Future.PINNED
    if decision.outcome is Outcome.PREFERRED:
        return Future.PREFERS
    # A VM whose only disks are hotplugged mounts no claim itself.
    cold = decision.reason is Reason.COLD_START or (decision.reason is Reason.NO_CLAIMS and stopped)
    return Future.FOLLOWS if cold and settings.steering else Future.ANYWHERE


def _why_not_followed(machine: Machine, claims: list[ClaimFinding], catalog: Catalog) -> str:
    """Return why the share-manager of one of the claims can't follow the VM, empty if each can.

    Longhorn renders the next share-manager pod like the one that runs.
    """
    if problem := _why_no_node(machine, catalog):
        return problem
    for claim in claims:
        if (claim.follows or not claim.reason) and (node := _unfollowed_node(machine, claim, catalog)):
            problem = f"the next share-manager of claim {claim.claim} cannot run on {node}"
            return f"{problem}: compare node selectors, affinities and tolerations"
    return ""


def _lingering(status: Status, stopped: frozenset[str], catalog: Catalog, settings: Settings) -> Lingering | None:
    """Return the share-managers of these volumes if the VM isn't pinned to their node as long as they run."""
    decision = decide_start(status.machine, status.opted_in_by, catalog, settings)
    if decision.outcome is Outcome.PINNED:
        return None
    pods = tuple((settings.longhorn_namespace, share_manager_name(volume)) for volume in sorted(stopped))
    return Lingering(pods, decision.reason)


def _why_no_node(machine: Machine, catalog: Catalog) -> str:
    """Return that no node can run the next pod of a running VM. The VM's own node can, unless it is closed by now."""
    here = catalog.node(machine.pod.node) if machine.pod else None
    if here is None or not (here.unschedulable or here.ready is False or here.taints):
        return ""
    if any(_can_run(node, machine, catalog) for node in catalog.all_nodes()):
        return ""
    return (
        f"no node can run the VM's next pod: {here.name} does not admit it any more, and no other node can run it now"
    )


def _can_run(node: Node, machine: Machine, catalog: Catalog) -> bool:
    """Return whether a node can run the next pod of a VM. On its own node, it can take the place of its pod."""
    if machine.pod and machine.pod.node == node.name:
        return admits(node, machine.next_pod, catalog)
    return first_failed_check(Candidate(machine.next_pod, node.name, catalog), SCHEDULER_CHECKS) is None


def _server(machine: Machine, claim: ClaimFinding, catalog: Catalog) -> PodSpec:
    """Return the spec of the share-manager pod that serves the claim, else what is known of the next one."""
    if claim.volume and claim.volume in machine.servers:
        return machine.servers[claim.volume]
    default = machine.servers.get("", NO_SPEC)
    found = catalog.claim(machine.namespace, claim.claim)
    storage_class = catalog.storage_class(found.storage_class) if found else None
    more = tolerations(storage_class.tolerations) if storage_class else ()
    # The StorageClass's selector wins over the selector in Longhorn's setting.
    limited = {each.key for each in claim.limits}
    selector = {key: value for key, value in default.node_selector.items() if key not in limited}
    return replace(default, node_selector=selector, tolerations=(*default.tolerations, *more))


def _unfollowed_node(machine: Machine, claim: ClaimFinding, catalog: Catalog) -> str:
    spec = _server(machine, claim, catalog)
    tainted = catalog.tainted_nodes()
    if not (tainted or claim.limits or spec.node_selector or spec.affinity):
        return ""
    server = Manifest(PodObject(spec=spec), "")
    pod = machine.next_pod
    nodes = catalog.all_nodes()
    doubtful = nodes if server.requires_nodes or spec.node_selector else tainted
    # At a cold start, the VM prefers the nodes within the limits.
    others = (node for node in doubtful if selects(claim.limits, node.labels) and not admits(node, server, catalog))
    if node := next((node for node in others if admits(node, pod, catalog)), None):
        return f"{node.name}, where the VM may start"
    apart = claim.limits and not any(
        selects(claim.limits, node.labels) and _can_run(node, machine, catalog) for node in nodes
    )
    return "any node that can run the VM" if apart and nodes else ""


def admits(node: Node, pod: Manifest, catalog: Catalog) -> bool:
    """Return whether the conditions, taints and labels of a node admit a pod."""
    return first_failed_check(Candidate(pod, node.name, catalog), _CHECKS_OF_NODE) is None
