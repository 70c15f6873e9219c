"""Whether live migration can move a VM to the node of its share-manager: the first rule that it breaks."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from itertools import chain

from msgspec import Struct, field

from webhook.fleet.machine import Machine, State, Status
from webhook.fleet.rendering.next_pod import target_pod
from webhook.fleet.starts import refusing_nodes
from webhook.fleet.traffic import Rates
from webhook.placement.catalog import Catalog
from webhook.placement.guard.candidate import Candidate
from webhook.placement.guard.feasibility import first_failed_check
from webhook.placement.objects.facts import Key, Pod
from webhook.placement.objects.fields import JsonObject, condition, has_condition, mapping, mappings, text
from webhook.placement.objects.kubevirt import HOSTNAME, run_strategy
from webhook.placement.objects.pod import Manifest, is_terminating
from webhook.placement.objects.quotas import exceeded_quota
from webhook.placement.reasons import Reason
from webhook.placement.settings import Settings

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
    NO_EVICTION = "PrefersNoEviction"
    KUBEVIRT_MIGRATES = "KubeVirtMigrates"
    UTILITY_VOLUMES = "UtilityVolumes"
    NO_GAIN = "NoGain"
    GUARD = "NodeGuard"
    QUOTA = "ResourceQuota"


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
# These also hinder a migration that KubeVirt creates itself, for example in a drain.
_OF_ANY_MIGRATION = frozenset({Hindrance.NOT_MIGRATABLE, Hindrance.SOURCE_NOT_READY})
# KubeVirt migrates a VMI with one of these conditions itself: `doesRequireMigration` in
# pkg/virt-controller/watch/workload-updater/workload-updater.go. Of the first, any status counts.
_OWN_MIGRATIONS = ("HotVCPUChange", "HotMemoryChange", "VolumesChange", "MigrationRequired")
REFUSED_STARTS = "failed to start the VM twice in a row before"


class Refusal(Struct, frozen=True):
    """A hindrance of a move."""

    hindrance: Hindrance
    detail: str  # for the operator
    reason: Reason | None = None  # the guard's reason; None for other hindrances

    @property
    def word(self) -> str:
        """Return the guard's reason if there is one, else the hindrance."""
        return (self.reason or self.hindrance).value


NOT_PLANNED = Refusal(Hindrance.NOT_APART, "")


def not_apart(status: Status) -> Refusal:
    """Return the refusal of a VM that is not apart from its storage."""
    return Refusal(Hindrance.NOT_APART, f"the VM is {status.state}")


class Move(Struct, frozen=True):
    """A live migration of a VM to the node of its storage."""

    namespace: str
    name: str
    source: str
    target: str
    hostname: str  # the target node's label `kubernetes.io/hostname`, which may differ from its name
    ready: bool = True  # whether the VM was Ready before
    pod: Pod | None = None  # the target pod

    @property
    def key(self) -> Key:
        """Return the VM's namespace and name."""
        return self.namespace, self.name


class Surroundings(Struct, frozen=True):
    """What the rules read besides the catalog."""

    settings: Settings
    unfinished: Collection[Key] = ()  # the VMs that have an unfinished migration
    rates: Rates = field(default_factory=dict)  # empty if unknown


def why_not_moved(status: Status, around: Surroundings, catalog: Catalog) -> Refusal | None:
    """Return why live migration can't, or must not, move a VM to its storage now, wherever that is."""
    return next(chain(_of_the_vm(status, around), _of_the_moment(status), _of_the_cluster(status, catalog)), None)


def migration_to_storage(status: Status, catalog: Catalog, hostnames: Mapping[str, Collection[str]]) -> Move | Refusal:
    """Return the migration of a VM to the node of its storage, or why that node can't run it.

    `hostnames` are the nodes of each hostname.
    """
    machine = status.machine
    source = status.node or ""
    target = status.storage_node or ""
    if machine.target is None:
        return Refusal(Hindrance.NOT_RUNNING, "the VM's pod is unknown")
    candidate = target_candidate(machine, machine.target, target, catalog)
    if failed := first_failed_check(candidate):
        return Refusal(Hindrance.GUARD, f"{target} {failed.detail}", failed.reason)
    if quota := exceeded_quota(candidate.manifest.pod, machine.quotas):
        return Refusal(Hindrance.QUOTA, quota)
    ready = has_condition(machine.vmi, "Ready")
    hostname = _hostname(target, catalog)
    if not {target}.issuperset(hostnames.get(hostname, ())):
        return Refusal(Hindrance.GUARD, f"{target} shares its label {HOSTNAME} with another node", Reason.UNJUDGED)
    return Move(machine.namespace, machine.name, source, target, hostname, ready, candidate.pod_facts)


def nodes_by_hostname(catalog: Catalog) -> Mapping[str, list[str]]:
    """Group the nodes by their label for the hostname."""
    found = defaultdict[str, list[str]](list)
    for node in catalog.all_nodes():
        found[node.labels.get(HOSTNAME, "")].append(node.name)
    return found


def target_candidate(machine: Machine, template: Manifest, target: str, catalog: Catalog) -> Candidate:
    """Return the target pod of a migration to a node, for the guard. `template` is the same pod without its target.

    The node must reach the hotplugged claims, too: KubeVirt attaches them there during the migration.
    """
    source = catalog.node(machine.pod.node) if machine.pod else None
    hostname = _hostname(target, catalog)
    labels = source.labels if source else {}
    pod = target_pod(template, machine.manifest, machine.vmi, hostname, labels)
    return Candidate(pod, target, catalog, hotplugged=machine.hotplugged)


def _hostname(node: str, catalog: Catalog) -> str:
    found = catalog.node(node)
    return (found and found.labels.get(HOSTNAME)) or node


def why_not_evacuated(status: Status, around: Surroundings, catalog: Catalog) -> Refusal | None:
    """Return why KubeVirt can't migrate the VM to any node now, None if it can."""
    rules = chain(_of_the_vm(status, around), _of_the_moment(status), _of_the_cluster(status, catalog))
    return next((each for each in rules if each.hindrance in _OF_ANY_MIGRATION), None)


def _of_the_vm(status: Status, around: Surroundings) -> Iterator[Refusal]:
    vmi, manifest = status.machine.vmi, status.machine.manifest
    if status.state is not State.APART:
        yield not_apart(status)
    if status.opted_out:
        yield Refusal(Hindrance.OPTED_OUT, "an annotation of the VM or the label of its namespace opts it out")
    if status.machine.migrating or status.machine.key in around.unfinished:
        yield Refusal(Hindrance.MIGRATING, "another live migration of the VM is unfinished")
    phase = text(vmi, "status", "phase")
    if is_terminating(vmi):
        yield Refusal(Hindrance.NOT_RUNNING, "the VMI is being deleted")
    if vmi and phase != "Running":
        yield Refusal(Hindrance.NOT_RUNNING, f"the VMI is {phase or 'not Running'}")
    migratable = condition(vmi, "LiveMigratable")
    if migratable.get("status") != "True":
        cause = text(migratable, "message") or text(migratable, "reason")
        yield Refusal(Hindrance.NOT_MIGRATABLE, cause or "no VMI with the condition LiveMigratable")
    if NO_EVICTION in mapping(vmi, "metadata", "annotations") or (manifest and NO_EVICTION in manifest.annotations):
        yield Refusal(Hindrance.NO_EVICTION, f"the annotation {NO_EVICTION} is set")


def _of_the_moment(status: Status) -> Iterator[Refusal]:
    vmi = status.machine.vmi
    if evacuated := text(vmi, "status", "evacuationNodeName"):
        yield Refusal(Hindrance.EVACUATING, f"KubeVirt evacuates the VM from {evacuated}")
    if status.machine.paused:
        yield Refusal(Hindrance.PAUSED, "the VM is paused")
    for kind in _OWN_MIGRATIONS:
        found = condition(vmi, kind)
        if found.get("status") == "True" or (found and kind == _OWN_MIGRATIONS[0]):
            yield Refusal(Hindrance.KUBEVIRT_MIGRATES, f"KubeVirt migrates the VM itself ({kind})")
    if mappings(vmi, "spec", "utilityVolumes"):
        detail = "KubeVirt does not migrate a VM while utility volumes are attached, for example for a backup"
        yield Refusal(Hindrance.UTILITY_VOLUMES, detail)


def _of_the_cluster(status: Status, catalog: Catalog) -> Iterator[Refusal]:
    source = catalog.node(status.node or "")
    if source and source.ready is False:
        detail = f"{source.name} is not Ready, so the VM can't leave it by migration"
        yield Refusal(Hindrance.SOURCE_NOT_READY, detail)
    if status.storage_node in refusing_nodes(status.machine):
        detail = f"{status.storage_node} {REFUSED_STARTS}"
        yield Refusal(Hindrance.GUARD, detail, Reason.START_FAILED)


def restart_helps(status: Status, refusal: Refusal) -> bool:
    """Return whether a restart, after an opt-in if need be, brings a VM that is apart to its storage."""
    if status.state is not State.APART or refusal.hindrance in (*TRANSIENT, Hindrance.OPTED_OUT):
        return False
    return status.start is not None and status.start.helps


def can_restart(vm: JsonObject) -> bool:
    """Return whether a running VM can be restarted (`restart_command`)."""
    return run_strategy(vm) not in ("", "Halted") and condition(vm, "VolumesChange").get("status") != "True"
