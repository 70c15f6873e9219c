"""Whether live migration can move a VM to the node of its share-manager, and the reason if it can't."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from webhook.fleet.next_pod import target_pod
from webhook.fleet.states import State, Status
from webhook.fleet.traffic import Rates
from webhook.placement.catalog import Catalog
from webhook.placement.guard.candidate import Candidate
from webhook.placement.guard.feasibility import first_failed_check
from webhook.placement.injector import candidate_for
from webhook.placement.migration_nodes import HOSTNAME
from webhook.placement.objects.facts import Key, Pod
from webhook.placement.objects.fields import JsonObject, condition, has_condition, mapping, mappings, text
from webhook.placement.objects.kubevirt import run_strategy
from webhook.placement.objects.pod import is_terminating
from webhook.placement.objects.resources import PODS, amounts, effective_requests, format_quantity
from webhook.placement.reasons import ClaimFinding, OptedInBy, Reason
from webhook.placement.settings import OptIn, Settings

NO_EVICTION = "descheduler.alpha.kubernetes.io/prefer-no-eviction"


class Hindrance(StrEnum):
    """Why live migration can't, or must not, move a VM to its storage now."""

    NOT_APART = "NotApart"
    OPTED_OUT = "OptedOut"
    NOT_RUNNING = "NotRunning"
    NOT_MIGRATABLE = "NotLiveMigratable"
    MIGRATING = "Migrating"
    EVACUATING = "Evacuating"
    SOURCE_NOT_READY = "SourceNotReady"
    PAUSED = "Paused"
    OWN_HOSTNAME = "HostnameSelector"
    NO_EVICTION = "PrefersNoEviction"
    NO_HOSTNAME = "NoHostnameLabel"
    KUBEVIRT_MIGRATES = "KubeVirtMigrates"
    UTILITY_VOLUMES = "UtilityVolumes"
    NO_GAIN = "NoGain"
    QUOTA = "ResourceQuota"
    GUARD = "NodeGuard"
    OLD_KUBEVIRT = "OldKubeVirt"


# These end by themselves, so a later run can move the VM.
TRANSIENT = frozenset({
    Hindrance.MIGRATING,
    Hindrance.EVACUATING,
    Hindrance.SOURCE_NOT_READY,
    Hindrance.PAUSED,
    Hindrance.NOT_RUNNING,
    Hindrance.KUBEVIRT_MIGRATES,
    Hindrance.UTILITY_VOLUMES,
})  # fmt: skip
# KubeVirt migrates a VMI with one of these conditions itself: `doesRequireMigration` in
# pkg/virt-controller/watch/workload-updater/workload-updater.go. Of the first, any status counts.
_OWN_MIGRATIONS = ("HotVCPUChange", "HotMemoryChange", "VolumesChange", "MigrationRequired")
GIBIBYTE = 1024**3
_REQUESTS, _LIMITS = "requests.", "limits."  # of a ResourceQuota


@dataclass(frozen=True, slots=True)
class Refusal:
    """A hindrance and its detail for the operator. `reason` is the guard's reason, None for other hindrances."""

    hindrance: Hindrance
    detail: str
    reason: Reason | None = None

    @property
    def word(self) -> str:
        """Return the guard's reason if there is one, else the hindrance."""
        return (self.reason or self.hindrance).value


@dataclass(frozen=True, slots=True)
class Move:
    """A live migration of a VM to the node of its storage.

    `hostname` is the target node's label `kubernetes.io/hostname`, which may differ from the node's name. `claims` are
    all claims of the VM. `ready` means that the VM was Ready before. `pod` holds the facts of the target pod.
    """

    namespace: str
    name: str
    source: str
    target: str
    hostname: str
    claims: tuple[str, ...] = ()
    ready: bool = True
    pod: Pod | None = field(default=None, compare=False)

    @property
    def key(self) -> Key:
        """Return the VM's namespace and name."""
        return self.namespace, self.name


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the rules read besides the catalog.

    `quotas` are the ResourceQuotas, by namespace. `unfinished` are the VMs that have an unfinished migration. Only if
    `supported` can KubeVirt migrate a VM to a chosen node. `rates` are empty if they are unknown.
    """

    settings: Settings
    quotas: Mapping[str, Sequence[JsonObject]] = field(default_factory=dict)
    unfinished: Collection[Key] = ()
    supported: bool = True
    rates: Rates = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class VmView:
    """What the rules read of one VM."""

    status: Status
    around: Surroundings

    @property
    def vm(self) -> JsonObject:
        """Return the VM."""
        return self.status.machine.vm

    @property
    def vmi(self) -> JsonObject:
        """Return the VMI."""
        return self.status.machine.vmi


def plan_move(view: VmView, catalog: Catalog) -> Move | Refusal:
    """Return the migration that moves the VM to its storage, or the first hindrance."""
    for rule in _RULES:
        if refusal := rule(view):
            return refusal
    if refusal := _opted_out_by_namespace(view, catalog) or _source_not_ready(view, catalog) or _no_gain(view, catalog):
        return refusal
    status = view.status
    node = catalog.node(status.storage_node or "")
    hostname = node.labels.get(HOSTNAME) if node else None
    if not hostname:
        return Refusal(Hindrance.NO_HOSTNAME, f"{status.storage_node} has no label {HOSTNAME}")
    machine = status.machine
    candidate = _candidate(view, hostname, catalog)
    if refusal := _refused_by_guard(candidate) or _refused_by_quota(candidate, view.around):
        return refusal
    claims = (*(machine.pod.claims if machine.pod else ()), *machine.hotplugged)
    ready = has_condition(view.vmi, "Ready")
    source, target = status.node or "", status.storage_node or ""
    facts = candidate.pod_facts if candidate else None
    return Move(machine.namespace, machine.name, source, target, hostname, claims, ready, facts)


def _candidate(view: VmView, hostname: str, catalog: Catalog) -> Candidate | None:
    machine, target = view.status.machine, view.status.storage_node or ""
    if machine.manifest is None or machine.template is None:
        return None
    source = catalog.node(view.status.node or "")
    pod = target_pod(machine.template, machine.manifest, view.vmi, hostname, source.labels if source else {})
    # The target node must reach the hotplugged claims, too: KubeVirt attaches them there during the migration.
    return candidate_for(pod, machine.namespace, target, view.status.claims, catalog)


def _refused_by_guard(candidate: Candidate | None) -> Refusal | None:
    if candidate is None:
        return Refusal(Hindrance.NOT_RUNNING, "the VM's pod is unknown")
    failed = first_failed_check(candidate)
    return Refusal(Hindrance.GUARD, f"{candidate.node_name} {failed.detail}", failed.reason) if failed else None


def _refused_by_quota(candidate: Candidate | None, around: Surroundings) -> Refusal | None:
    found = exceeded_quota(candidate.pod, around.quotas.get(candidate.namespace, ())) if candidate else ""
    return Refusal(Hindrance.QUOTA, found) if found else None


def _not_apart(view: VmView) -> Refusal | None:
    state = view.status.state
    return None if state is State.APART else Refusal(Hindrance.NOT_APART, f"the VM is {state}")


def _opted_out(view: VmView) -> Refusal | None:
    annotations = mapping(view.vm, "spec", "template", "metadata", "annotations")
    opted_out = (key for key in view.around.settings.opt_in_annotations if annotations.get(key) == "false")
    found = next(opted_out, None)
    return Refusal(Hindrance.OPTED_OUT, f'the annotation {found} is "false"') if found else None


def _opted_out_by_namespace(view: VmView, catalog: Catalog) -> Refusal | None:
    if view.status.opted_in_by is OptedInBy.ANNOTATION or view.around.settings.opt_in is OptIn.ANNOTATION:
        return None
    opted_out = catalog.namespace_opt_in(view.status.machine.namespace) is False
    return Refusal(Hindrance.OPTED_OUT, "the label of the namespace opts the VM out") if opted_out else None


def _source_not_ready(view: VmView, catalog: Catalog) -> Refusal | None:
    source = catalog.node(view.status.node or "")
    if source is None or source.ready is not False:
        return None
    return Refusal(Hindrance.SOURCE_NOT_READY, f"{source.name} is not Ready, so the VM can't leave it by migration")


def _no_gain(view: VmView, catalog: Catalog) -> Refusal | None:
    gained = gain(view.status, catalog, restarted=False)
    return Refusal(Hindrance.NO_GAIN, describe_gain(gained)) if gained < 0 else None


def _not_running(view: VmView) -> Refusal | None:
    phase = text(view.vmi, "status", "phase")
    if is_terminating(view.vmi):
        return Refusal(Hindrance.NOT_RUNNING, "the VMI is being deleted")
    if phase == "Running":
        return None
    return Refusal(Hindrance.NOT_RUNNING, f"the VMI is {phase}" if phase else "the VM has no VMI")


def _not_migratable(view: VmView) -> Refusal | None:
    found = condition(view.vmi, "LiveMigratable")
    if found.get("status") == "True":
        return None
    cause = text(found, "message") or text(found, "reason")
    return Refusal(Hindrance.NOT_MIGRATABLE, cause or "the VMI has no condition LiveMigratable")


def _migrating(view: VmView) -> Refusal | None:
    machine = view.status.machine
    if not (machine.key in view.around.unfinished or machine.migrating):
        return None
    return Refusal(Hindrance.MIGRATING, "another live migration of the VM is unfinished")


def _evacuating(view: VmView) -> Refusal | None:
    node = text(view.vmi, "status", "evacuationNodeName")
    return Refusal(Hindrance.EVACUATING, f"KubeVirt evacuates the VM from {node}") if node else None


def _paused(view: VmView) -> Refusal | None:
    return Refusal(Hindrance.PAUSED, "the VM is paused") if view.status.machine.paused else None


def _own_hostname(view: VmView) -> Refusal | None:
    found = text(mapping(view.vmi, "spec", "nodeSelector"), HOSTNAME)
    return Refusal(Hindrance.OWN_HOSTNAME, f"the VM's nodeSelector names {found}") if found else None


def _no_eviction(view: VmView) -> Refusal | None:
    manifests = view.vmi, view.status.machine.manifest
    if any(NO_EVICTION in mapping(each, "metadata", "annotations") for each in manifests):
        return Refusal(Hindrance.NO_EVICTION, f"the annotation {NO_EVICTION} is set")
    return None


def _kubevirt_migrates(view: VmView) -> Refusal | None:
    for kind in _OWN_MIGRATIONS:
        found = condition(view.vmi, kind)
        if found.get("status") == "True" or (found and kind == _OWN_MIGRATIONS[0]):
            return Refusal(Hindrance.KUBEVIRT_MIGRATES, f"KubeVirt migrates the VM itself ({kind})")
    return None


def _utility_volumes(view: VmView) -> Refusal | None:
    attached = mappings(view.vmi, "spec", "utilityVolumes")
    detail = "KubeVirt does not migrate a VM while utility volumes are attached, for example for a backup"
    return Refusal(Hindrance.UTILITY_VOLUMES, detail) if attached else None


def _old_kubevirt(view: VmView) -> Refusal | None:
    return None if view.around.supported else Refusal(Hindrance.OLD_KUBEVIRT, "KubeVirt is older than 1.6")


_RULES: tuple[Callable[[VmView], Refusal | None], ...] = (
    _not_apart,
    _opted_out,
    _not_running,
    _not_migratable,
    _own_hostname,
    _no_eviction,
    _migrating,
    _evacuating,
    _paused,
    _kubevirt_migrates,
    _utility_volumes,
    _old_kubevirt,
)


def can_restart(vm: JsonObject) -> bool:
    """Return whether a running VM can be restarted (`restart_command`)."""
    return run_strategy(vm) not in ("", "Halted") and condition(vm, "VolumesChange").get("status") != "True"


def gain(status: Status, catalog: Catalog, *, restarted: bool) -> int:
    """Return how many bytes of the VM's claims become local by the move or the restart, less those that are local now.

    Only claims that a share-manager serves now count, each with its requested capacity.
    """
    start, target, follow = status.start, status.storage_node, frozenset[str]()
    if restarted:
        target, follow = (start.decision.node, start.stopped) if start else (None, follow)
    return sum(
        _size(each, status, catalog) * ((each.volume in follow or each.node == target) - (each.node == status.node))
        for each in status.claims
        if each.node
    )


def _size(finding: ClaimFinding, status: Status, catalog: Catalog) -> int:
    claim = catalog.claim(status.machine.namespace, finding.claim)
    return claim.size if claim else 0


def describe_gain(gained: int) -> str:
    """Return a gain in GiB. It is negative if claims without a vote are larger, such as an image that VMs share."""
    return f"{abs(gained) / GIBIBYTE:.4g}Gi becomes {'remote' if gained < 0 else 'local'}"


def exceeded_quota(pod: JsonObject, quotas: Iterable[JsonObject]) -> str:
    """Return which quota rejects a pod, and why; empty if none does. A quota with scopes may not apply, so it passes.

    Raises Malformed for a quantity that can't be parsed. Source: Kubernetes, pkg/quota/v1/evaluator/core/pods.go
    (`PodUsageFunc`).
    """
    usage = _usage(pod)
    for quota in quotas:
        if mapping(quota, "spec").get("scopes") or mapping(quota, "spec", "scopeSelector"):
            continue
        hard, used = mapping(quota, "status", "hard"), mapping(quota, "status", "used")
        for name in hard:
            resource, wanted = _resource(name), usage.get(name, 0)
            limit, taken = (amounts({resource: each.get(name, 0)})[resource] for each in (hard, used))
            if wanted and taken + wanted > limit:
                counts = (format_quantity(resource, each) for each in (wanted, taken, limit))
                return "{}: {} (requested {}, used {} of {})".format(text(quota, "metadata", "name"), name, *counts)
    return ""


def _resource(name: str) -> str:
    return name.removeprefix(_REQUESTS).removeprefix(_LIMITS).removeprefix("count/")


def _usage(pod: JsonObject) -> Mapping[str, int]:
    requests, limits = effective_requests(pod), effective_requests(_with_limits_as_requests(pod))
    named = {name: amount for name, amount in requests.items() if name in ("cpu", "memory", "ephemeral-storage", PODS)}
    return (
        named
        | {f"{_REQUESTS}{name}": amount for name, amount in requests.items()}
        | {f"{_LIMITS}{name}": amount for name, amount in limits.items()}
        | {f"count/{PODS}": 1}
    )


def _with_limits_as_requests(pod: JsonObject) -> JsonObject:
    spec = mapping(pod, "spec")
    changed: JsonObject = {"resources": {}}
    for kind in ("containers", "initContainers"):
        limits = ((each, mapping(each, "resources", "limits")) for each in mappings(spec, kind))
        changed[kind] = [each | {"resources": {"requests": found}} for each, found in limits]
    return pod | {"spec": spec | changed}
