"""The whole fleet: the node of each VM, the node of its storage, and the decision if the VM started now.

`report`, `explain`, the metrics and the dashboard use this module, so they never disagree.
"""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field
from msgspec.structs import replace

from webhook.fleet.forecast_catalog import forecast
from webhook.fleet.release import why_not_scheduled, why_pin_fails
from webhook.fleet.volumes import VolumeUser, other_users
from webhook.placement.affinity import CO_SCHEDULED_NODE, recorded_reason
from webhook.placement.catalog import Catalog
from webhook.placement.eligibility import mode_of
from webhook.placement.guard.candidate import Candidate
from webhook.placement.guard.feasibility import CHECKS, first_failed_check
from webhook.placement.injector import predict
from webhook.placement.objects.facts import Key, Namespace, Node, Pod
from webhook.placement.objects.fields import JsonObject
from webhook.placement.objects.longhorn import share_manager_name, tolerations
from webhook.placement.objects.pod import Manifest
from webhook.placement.objects.pod_object import NO_POD, NO_SPEC, PodObject, PodSpec
from webhook.placement.objects.selectors import selects
from webhook.placement.opt_in import Applicant, opted_in_by, opts_out
from webhook.placement.reasons import (
    NEVER_SERVED_REASONS,
    NODE_REASONS,
    ClaimFinding,
    Decision,
    OptedInBy,
    Outcome,
    Reason,
)
from webhook.placement.resolve import resolve, resolve_claims
from webhook.placement.settings import OPT_IN_KEY, Action, Settings
from webhook.placement.votes import choose, voters
from webhook.placement.voting_consumers import avoided_nodes
from webhook.placement.wording import unchanged

NAMESPACE_NAME = "kubernetes.io/metadata.name"  # the label with the name of a namespace
_CHECKS_OF_NODE = [check for check in CHECKS if check.reason in NODE_REASONS]
# The guard doesn't risk these, but the scheduler may place the pod.
_UNRISKED = (Reason.CACHE_STALE, Reason.RELEASED, Reason.START_FAILED, Reason.UNJUDGED)
SCHEDULER_CHECKS = [check for check in CHECKS if check.reason not in _UNRISKED]


class State(StrEnum):
    """Where a VM is relative to its storage."""

    TOGETHER = "Together"
    APART = "Apart"
    UNSERVED = "Unserved"
    WAITING = "Waiting"
    STOPPED = "Stopped"
    NOT_CONCERNED = "NotConcerned"


class Future(StrEnum):
    """Where a start places a VM. With `FOLLOWS`, its share-managers start after the VM, on the VM's node."""

    PINNED = "pinned"
    PREFERS = "prefers"
    FOLLOWS = "follows"
    ANYWHERE = "anywhere"


class RefusedServer(Struct, frozen=True):
    """A share-manager pod for which the scheduler finds no node."""

    pod: Key
    message: str  # the scheduler's


class Machine(Struct, frozen=True):
    """A VM, or a VMI without a VM. The caches don't hold the fields from `manifest` on."""

    namespace: str
    name: str
    applicant: Applicant  # decides on the opt-in of its next pod
    pod: Pod | None = None  # the virt-launcher pod that runs the VM
    hotplugged: tuple[str, ...] = ()  # claims that its hotplug pods mount
    strategy: str | None = ""  # the VM's run strategy; empty if the VM is unknown, None for a VMI without a VM
    migrating: bool = False
    paused: bool = False
    manifest: Manifest | None = None  # the same pod as the API server stores it
    template: Manifest | None = None  # the pod that KubeVirt would create now; None if unknown
    target: Manifest | None = None  # the pod that it would create for the VMI now, to migrate it; None if unknown
    missing: str = ""  # an object that `template` depends on but that wasn't found
    age: float | None = None  # of the pod, in seconds
    vm: JsonObject = field(default_factory=dict)  # the object of KubeVirt; empty if missing or unknown
    vmi: JsonObject = field(default_factory=dict)  # the object of KubeVirt, as `vm`
    quotas: tuple[JsonObject, ...] = ()  # the ResourceQuotas of its namespace
    # specs of the running share-manager pods by volume; under "", what is known of the others
    servers: Mapping[str, PodSpec] = field(default_factory=dict)
    refused: Mapping[str, RefusedServer] = field(default_factory=dict)  # by volume

    @property
    def key(self) -> Key:
        """Return the VM's namespace and name."""
        return self.namespace, self.name

    @property
    def next_pod(self) -> Manifest:
        """Return the pod that KubeVirt would create now, an empty one if it is unknown."""
        return self.template or Manifest(NO_POD, self.namespace)

    @property
    def is_vm(self) -> bool:
        """Return whether it is a VM. If the VM of a VMI is unknown, it counts as one: only few VMIs have none."""
        return self.strategy is not None


class Lingering(Struct, frozen=True):
    """Share-managers that follow their VM only if they stop before it starts: after a restart, they still run."""

    pods: tuple[Key, ...]
    reason: Reason  # why the VM isn't pinned to their node


class Start(Struct, frozen=True):
    """The decision if the VM started or restarted now."""

    decision: Decision  # as if the VM were opted in
    future: Future  # where this decision places the VM
    stopped_by: Reason | None = None  # the rule of eligibility that would end the decision
    enforced: bool = True  # the webhook changes pods; otherwise, the VM starts anywhere
    stopped: frozenset[str] = frozenset()  # Longhorn volumes that only this VM uses: their share-managers stop with it
    # the first of the other VMs and pods that use the volumes that the target node serves
    users: tuple[VolumeUser, ...] = ()
    apart: str = ""  # why the share-managers can't follow the VM
    lingering: Lingering | None = None  # the share-managers that have to stop before the VM starts
    refused: str = ""  # a node that the VM may start on, and where its last starts failed

    @property
    def helps(self) -> bool:
        """Return whether the VM and its storage would be together."""
        return self.enforced and self.future in (Future.PINNED, Future.FOLLOWS) and not self.refused

    @property
    def cold(self) -> bool:
        """Return whether all share-managers of a running VM stop with it."""
        return bool(self.stopped) and self.decision.node is None


class Status(Struct, frozen=True):
    """The state of one VM."""

    machine: Machine
    state: State
    reason: Reason | None = None  # explains the state
    claim: str | None = None  # the claim that decides
    storage_node: str | None = None  # the node of its share-manager
    detail: str = ""  # why a pinned pod can't be scheduled; empty for all others
    start: Start | None = None  # None if the next pod is unknown
    opted_in_by: OptedInBy = OptedInBy.NOTHING  # what opts in the VM's next pod
    opt_in_pending: bool = False  # nothing opts in the pod that runs the VM: no share-manager follows it yet
    opted_out: bool = False  # an annotation or a label opts the VM out
    excluded_by: str = ""  # the setting that excludes its namespace
    opt_in_key: str = OPT_IN_KEY  # of the annotation that would opt it in
    claims: tuple[ClaimFinding, ...] = ()  # all claims of a running VM

    @property
    def opted_in(self) -> bool:
        """Return whether the VM's next pod is opted in."""
        return self.opted_in_by is not OptedInBy.NOTHING

    @property
    def volume(self) -> str:
        """Return the Longhorn volume of the claim that decides, empty if unknown."""
        claims = self.claims or (self.start.decision.claims if self.start else ())
        return next((each.volume for each in claims if each.claim == self.claim and each.volume), "")

    @property
    def outage(self) -> RefusedServer | None:
        """Return a share-manager without which the running VM has no disk, and for which the scheduler has no node."""
        refused = self.machine.refused
        if not refused or not self.node:
            return None
        return next((refused[each.volume] for each in self.claims if each.volume and each.volume in refused), None)

    @property
    def node(self) -> str | None:
        """Return the node that the VM's pod is bound to."""
        return (self.machine.pod.node if self.machine.pod else None) or None


class Workload(Struct, frozen=True):
    """An opted-in pod that runs no VM. Its state is like a VM's."""

    pod: Pod
    state: State
    claim: str  # the claim that decides
    volume: str  # its Longhorn volume
    storage_node: str | None  # the node of its share-manager


def assess_pod(pod: Pod, catalog: Catalog, settings: Settings) -> Workload | None:
    """Return the state of a pod, None if no share-manager follows it."""
    bound = pod.claims and pod.node and pod.alive and not pod.belongs_to_vm
    if not bound or opted_in_by(pod, catalog, settings) is OptedInBy.NOTHING:
        return None
    claims = [resolve(name, pod.namespace, catalog, settings) for name in pod.claims]
    served = [each for each in claims if each.reason is None] or [each for each in claims if each.volume]
    choice = choose(served)
    node = choice.node if choice else None
    deciding = next((each for each in served if node in (None, each.node)), None)
    state = State.TOGETHER if node == pod.node else State.APART
    state = State.UNSERVED if node is None else state
    return Workload(pod, state, deciding.claim, deciding.volume or "", node) if deciding else None


def assess(machine: Machine, catalog: Catalog, settings: Settings) -> Status:
    """Return the status of one machine. Without its template, the status has no start."""
    applicant = machine.template or machine.applicant
    by = opted_in_by(applicant, catalog, settings)
    opted_out = by is OptedInBy.NOTHING and opts_out(applicant, catalog, settings)
    key = settings.opt_in_annotations[0]
    excluded = excluded_by(catalog.namespace(machine.namespace), settings)
    status = Status(machine, State.STOPPED, opted_in_by=by, opted_out=opted_out, excluded_by=excluded, opt_in_key=key)
    if machine.pod is not None:
        status = _of_pod(status, machine.pod, catalog, settings)
        runs_opted_in = opted_in_by(machine.pod, catalog, settings) is not OptedInBy.NOTHING
        status = replace(status, opt_in_pending=status.opted_in and bool(machine.pod.claims) and not runs_opted_in)
    if machine.template is None:
        return status
    start = _start(status, catalog, settings)
    if machine.pod is None:
        served = (each.claim for each in voters(start.decision.claims) if each.node == start.decision.node)
        status = replace(status, storage_node=start.decision.node, claim=next(served, None))
    return replace(status, start=start, reason=status.reason or start.decision.reason)


def _of_pod(status: Status, pod: Pod, catalog: Catalog, settings: Settings) -> Status:
    status = _with_storage(status, pod, catalog, settings)
    deciding = [each for each in status.claims if each.decides]
    concerned = [each for each in deciding if each.reason not in NEVER_SERVED_REASONS]
    if not concerned:
        first = next(iter(deciding or status.claims), None)
        if first is None:
            return replace(status, state=State.NOT_CONCERNED, reason=Reason.NO_CLAIMS, claim=None)
        reason = first.reason if deciding else Reason.SHARED_CLAIM_ONLY
        return replace(status, state=State.NOT_CONCERNED, reason=reason, claim=first.claim)
    status = replace(status, claim=status.claim or concerned[0].claim)
    if not pod.node:
        reason, detail = _why_waiting(status.machine, catalog, settings)
        return replace(status, state=State.WAITING, reason=reason, detail=detail)
    if status.storage_node is None:
        return replace(status, state=State.UNSERVED, reason=concerned[0].reason)
    if status.storage_node == pod.node:
        return replace(status, state=State.TOGETHER, reason=Reason.CO_SCHEDULED)
    return replace(status, state=State.APART, reason=_why_apart(status, pod, catalog, settings))


def _with_storage(status: Status, pod: Pod, catalog: Catalog, settings: Settings) -> Status:
    """Find the claim that decides. A hotplugged claim decides only if no claim of the pod itself has a node.

    Its rank counts beside the claims of the pod: an ISO that other VMs mount too doesn't decide for a VM with a disk.
    """
    rest = pod.namespace, pod.vmi_uid, pod.deciding_claim, catalog, settings, status.opted_in_by
    own = resolve_claims(pod.claims, *rest)
    more = status.machine.hotplugged
    hotplugged = resolve_claims((*pod.claims, *more), *rest)[len(own) :] if more else ()
    status = replace(status, claims=(*own, *hotplugged))
    for claims in (own, hotplugged):
        choice = choose(claims)
        if choice and choice.certain:
            claim = next(each.claim for each in voters(claims) if each.node == choice.node and not each.reason)
            return replace(status, claim=claim, storage_node=choice.node)
    return status


def _why_waiting(machine: Machine, catalog: Catalog, settings: Settings) -> tuple[Reason | None, str]:
    if machine.manifest is None:
        return None, ""
    if detail := why_not_scheduled(machine.manifest, machine.age):
        return Reason.NOT_SCHEDULED, detail
    obstacle = why_pin_fails(machine.manifest, catalog, settings, settings.release_after)
    if obstacle:
        return obstacle.reason, obstacle.detail
    return recorded_reason(machine.manifest.annotations), ""


def _why_apart(status: Status, pod: Pod, catalog: Catalog, settings: Settings) -> Reason | None:
    manifest = status.machine.manifest
    if opted_in_by(pod, catalog, settings) is OptedInBy.NOTHING:
        return Reason.NOT_REVIEWED if status.opted_in else Reason.NOT_OPTED_IN
    if not pod.claims:  # all claims are hotplugged
        return Reason.NO_CLAIMS
    if manifest is None:
        return None
    reason = recorded_reason(manifest.annotations)
    if reason is not None and manifest.annotations.get(CO_SCHEDULED_NODE) == pod.node:
        still_serves = any(each.node == pod.node and each.decides and not each.reason for each in status.claims)
        return Reason.VOTES_CHANGED if still_serves else Reason.SHARE_MANAGER_MOVED
    if reason in (Reason.CO_SCHEDULED, Reason.COLD_START):  # after a cold start, the share-manager was scheduled later
        return Reason.SCHEDULED_ELSEWHERE
    if pod.is_migration_target:
        return Reason.MIGRATION_TARGET
    return reason or Reason.NOT_REVIEWED


def _start(status: Status, catalog: Catalog, settings: Settings) -> Start:
    machine = status.machine
    stopped = _stopped_volumes(status, catalog)
    decision = decide_start(machine, status.opted_in_by, forecast(catalog, stopped), settings)
    # A VM whose only disks are hotplugged mounts no claim itself: their node counts as the target node.
    claims, node = (decision.claims, decision.node) if decision.claims else (status.claims, status.storage_node)
    served = [each for each in claims if node and each.node == node and each.decides and not each.reason]
    users = other_users(served, machine.namespace, machine.pod.vmi_uid if machine.pod else "", catalog)
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
    return Start(decision, future, stopped_by, enforced, stopped, users, apart, lingering, refused or "")


def refusing_nodes(machine: Machine) -> frozenset[str]:
    """Return the nodes that failed to start the VM twice before its pod was created, which therefore avoids them."""
    manifest = machine.manifest
    if manifest is None or recorded_reason(manifest.annotations) is not Reason.START_FAILED:
        return frozenset()
    return avoided_nodes(manifest.affinity)


def excluded_by(namespace: Namespace | None, settings: Settings) -> str:
    """Return the setting by which nothing opts in the VMs of a namespace, empty without one, or if it is unknown."""
    labels = namespace.labels if namespace else {}
    excluding = (each for each in settings.namespace_selector if namespace and not selects((each,), labels))
    if (requirement := next(excluding, None)) is None:
        return ""
    by_name = requirement.key == NAMESPACE_NAME and requirement.operator == "NotIn"
    return f"webhook.{'excludedNamespaces' if by_name else 'namespaceSelector'}"


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
    alone = (each for each in served if not other_users([each], pod.namespace, pod.vmi_uid, catalog))
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
    # A key of the StorageClass's selector replaces that of Longhorn's setting.
    limited = {each.key for each in claim.limits}
    selector = {key: value for key, value in default.node_selector.items() if key not in limited}
    return replace(default, node_selector=selector, tolerations=(*default.tolerations, *more))


def _unfollowed_node(machine: Machine, claim: ClaimFinding, catalog: Catalog) -> str:
    spec = _server(machine, claim, catalog)
    server = Manifest(PodObject(spec=spec), "")
    limited = server.requires_nodes or spec.node_selector
    nodes = catalog.all_nodes()
    doubtful = nodes if limited else catalog.tainted_nodes()
    if not doubtful and not claim.limits:
        return ""
    pod = machine.next_pod
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
