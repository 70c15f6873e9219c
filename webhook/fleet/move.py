"""Whether live migration can move a VM to the node of its share-manager, and the reason if it can't."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from webhook.fleet.next_pod import target_pod
from webhook.fleet.states import State, Status
from webhook.fleet.traffic import Rates
from webhook.placement.catalog import Catalog
from webhook.placement.guard.candidate import Candidate
from webhook.placement.guard.feasibility import first_failed_check
from webhook.placement.injector import candidate_for
from webhook.placement.objects.facts import Key, Pod
from webhook.placement.objects.fields import JsonObject, condition, has_condition, mapping, mappings, text
from webhook.placement.objects.kubevirt import HOSTNAME, run_strategy
from webhook.placement.objects.pod import is_terminating
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

    `unfinished` are the VMs that have an unfinished migration. Only if `supported` can KubeVirt migrate a VM to a
    chosen node. `rates` are empty if they are unknown.
    """

    settings: Settings
    unfinished: Collection[Key] = ()
    supported: bool = True
    rates: Rates = field(default_factory=dict)


def plan_move(status: Status, around: Surroundings, catalog: Catalog) -> Move | Refusal:
    """Return the migration that moves the VM to its storage, or the first hindrance."""
    if refusal := next(_hindrances(status, around, catalog), None):
        return refusal
    machine = status.machine
    source, target = status.node or "", status.storage_node or ""
    node = catalog.node(target)
    hostname = node.labels.get(HOSTNAME) if node else None
    if not hostname:
        return Refusal(Hindrance.NO_HOSTNAME, f"{target} has no label {HOSTNAME}")
    candidate = _candidate(status, hostname, catalog)
    if candidate is None:
        return Refusal(Hindrance.NOT_RUNNING, "the VM's pod is unknown")
    if failed := first_failed_check(candidate):
        return Refusal(Hindrance.GUARD, f"{target} {failed.detail}", failed.reason)
    claims = (*(machine.pod.claims if machine.pod else ()), *machine.hotplugged)
    ready = has_condition(machine.vmi, "Ready")
    return Move(machine.namespace, machine.name, source, target, hostname, claims, ready, candidate.pod_facts)


def _candidate(status: Status, hostname: str, catalog: Catalog) -> Candidate | None:
    machine, target = status.machine, status.storage_node or ""
    if machine.manifest is None or machine.template is None:
        return None
    source = catalog.node(status.node or "")
    pod = target_pod(machine.template, machine.manifest, machine.vmi, hostname, source.labels if source else {})
    # The target node must reach the hotplugged claims, too: KubeVirt attaches them there during the migration.
    return candidate_for(pod, machine.namespace, target, status.claims, catalog)


def _hindrances(status: Status, around: Surroundings, catalog: Catalog) -> Iterator[Refusal]:
    """Yield what hinders a VM from moving, whatever the guard of the target node says."""
    yield from _of_the_vm(status, around)
    yield from _of_the_moment(status, around)
    yield from _of_the_cluster(status, around, catalog)


def _of_the_vm(status: Status, around: Surroundings) -> Iterator[Refusal]:
    vmi, manifests = status.machine.vmi, (status.machine.vmi, status.machine.manifest)
    if status.state is not State.APART:
        yield Refusal(Hindrance.NOT_APART, f"the VM is {status.state}")
    annotations = mapping(status.machine.vm, "spec", "template", "metadata", "annotations")
    for key in around.settings.opt_in_annotations:
        if annotations.get(key) == "false":
            yield Refusal(Hindrance.OPTED_OUT, f'the annotation {key} is "false"')
    phase = text(vmi, "status", "phase")
    if is_terminating(vmi):
        yield Refusal(Hindrance.NOT_RUNNING, "the VMI is being deleted")
    if phase != "Running":
        yield Refusal(Hindrance.NOT_RUNNING, f"the VMI is {phase}" if phase else "the VM has no VMI")
    migratable = condition(vmi, "LiveMigratable")
    if migratable.get("status") != "True":
        cause = text(migratable, "message") or text(migratable, "reason")
        yield Refusal(Hindrance.NOT_MIGRATABLE, cause or "the VMI has no condition LiveMigratable")
    if hostname := text(vmi, "spec", "nodeSelector", HOSTNAME):
        yield Refusal(Hindrance.OWN_HOSTNAME, f"the VM's nodeSelector names {hostname}")
    if any(NO_EVICTION in mapping(each, "metadata", "annotations") for each in manifests):
        yield Refusal(Hindrance.NO_EVICTION, f"the annotation {NO_EVICTION} is set")


def _of_the_moment(status: Status, around: Surroundings) -> Iterator[Refusal]:
    machine, vmi = status.machine, status.machine.vmi
    if machine.key in around.unfinished or machine.migrating:
        yield Refusal(Hindrance.MIGRATING, "another live migration of the VM is unfinished")
    if evacuated := text(vmi, "status", "evacuationNodeName"):
        yield Refusal(Hindrance.EVACUATING, f"KubeVirt evacuates the VM from {evacuated}")
    if machine.paused:
        yield Refusal(Hindrance.PAUSED, "the VM is paused")
    for kind in _OWN_MIGRATIONS:
        found = condition(vmi, kind)
        if found.get("status") == "True" or (found and kind == _OWN_MIGRATIONS[0]):
            yield Refusal(Hindrance.KUBEVIRT_MIGRATES, f"KubeVirt migrates the VM itself ({kind})")
    if mappings(vmi, "spec", "utilityVolumes"):
        detail = "KubeVirt does not migrate a VM while utility volumes are attached, for example for a backup"
        yield Refusal(Hindrance.UTILITY_VOLUMES, detail)


def _of_the_cluster(status: Status, around: Surroundings, catalog: Catalog) -> Iterator[Refusal]:
    if not around.supported:
        yield Refusal(Hindrance.OLD_KUBEVIRT, "KubeVirt is older than 1.6")
    by_label = status.opted_in_by is not OptedInBy.ANNOTATION and around.settings.opt_in is not OptIn.ANNOTATION
    if by_label and catalog.namespace_opt_in(status.machine.namespace) is False:
        yield Refusal(Hindrance.OPTED_OUT, "the label of the namespace opts the VM out")
    source = catalog.node(status.node or "")
    if source and source.ready is False:
        detail = f"{source.name} is not Ready, so the VM can't leave it by migration"
        yield Refusal(Hindrance.SOURCE_NOT_READY, detail)
    gained = gain(status, catalog, restarted=False)
    if gained < 0:
        yield Refusal(Hindrance.NO_GAIN, describe_gain(gained))


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
