"""Whether live migration can move a VM to the node of its share-manager, and the reason if it can't."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from webhook.fleet.states import State, Status
from webhook.fleet.target_pod import target_pod
from webhook.placement.catalog import Catalog
from webhook.placement.guard.feasibility import first_failed_check
from webhook.placement.injector import candidate_for
from webhook.placement.migration import HOSTNAME
from webhook.placement.objects.facts import Key
from webhook.placement.objects.fields import JsonObject, condition, mapping, text
from webhook.placement.objects.kubevirt import run_strategy
from webhook.placement.objects.pod import is_terminating
from webhook.placement.reasons import OptedInBy, Reason
from webhook.placement.resolve import resolve_all
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
    PAUSED = "Paused"
    OWN_HOSTNAME = "HostnameSelector"
    NO_EVICTION = "PrefersNoEviction"
    NO_HOSTNAME = "NoHostnameLabel"
    GUARD = "NodeGuard"
    OLD_KUBEVIRT = "OldKubeVirt"


# These end by themselves, so a later run can move the VM.
TRANSIENT = frozenset({Hindrance.MIGRATING, Hindrance.EVACUATING, Hindrance.PAUSED, Hindrance.NOT_RUNNING})


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
    all claims of the VM. `ready` means that the VM was Ready before.
    """

    namespace: str
    name: str
    source: str
    target: str
    hostname: str
    claims: tuple[str, ...] = ()
    ready: bool = True

    @property
    def key(self) -> Key:
        """Return the VM's namespace and name."""
        return self.namespace, self.name


@dataclass(frozen=True, slots=True)
class VmView:
    """What the rules read of one VM: its status, its manifests, and whether a migration of it is unfinished."""

    status: Status
    vm: JsonObject
    vmi: JsonObject
    unfinished: bool
    settings: Settings


def plan_move(view: VmView, catalog: Catalog) -> Move | Refusal:
    """Return the migration that moves the VM to its storage, or the first hindrance."""
    for rule in _RULES:
        if refusal := rule(view):
            return refusal
    if refusal := _opted_out_by_namespace(view, catalog):
        return refusal
    status = view.status
    node = catalog.node(status.storage_node or "")
    hostname = node.labels.get(HOSTNAME) if node else None
    if not hostname:
        return Refusal(Hindrance.NO_HOSTNAME, f"{status.storage_node} has no label {HOSTNAME}")
    machine = status.machine
    if refusal := _refused_by_guard(view, hostname, catalog):
        return refusal
    claims = (*(machine.pod.claims if machine.pod else ()), *machine.hotplugged)
    ready = condition(view.vmi, "Ready").get("status") == "True"
    source, target = status.node or "", status.storage_node or ""
    return Move(machine.namespace, machine.name, source, target, hostname, claims, ready)


def _refused_by_guard(view: VmView, hostname: str, catalog: Catalog) -> Refusal | None:
    machine, target = view.status.machine, view.status.storage_node or ""
    if machine.manifest is None or machine.template is None:
        return Refusal(Hindrance.NOT_RUNNING, "the VM's pod is unknown")
    source = catalog.node(view.status.node or "")
    pod = target_pod(machine.template, machine.manifest, view.vmi, hostname, source.labels if source else {})
    claims = resolve_all(pod, machine.namespace, catalog, view.settings)
    failed = first_failed_check(candidate_for(pod, machine.namespace, target, claims, catalog))
    return Refusal(Hindrance.GUARD, f"{target} {failed.detail}", failed.reason) if failed else None


def _not_apart(view: VmView) -> Refusal | None:
    state = view.status.state
    return None if state is State.APART else Refusal(Hindrance.NOT_APART, f"the VM is {state}")


def _opted_out(view: VmView) -> Refusal | None:
    annotations = mapping(view.vm, "spec", "template", "metadata", "annotations")
    opted_out = (key for key in view.settings.opt_in_annotations if annotations.get(key) == "false")
    found = next(opted_out, None)
    return Refusal(Hindrance.OPTED_OUT, f'the annotation {found} is "false"') if found else None


def _opted_out_by_namespace(view: VmView, catalog: Catalog) -> Refusal | None:
    if view.status.opted_in_by is OptedInBy.ANNOTATION or view.settings.opt_in is OptIn.ANNOTATION:
        return None
    opted_out = catalog.namespace_opt_in(view.status.machine.namespace) is False
    return Refusal(Hindrance.OPTED_OUT, "the label of the namespace opts the VM out") if opted_out else None


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
    if not (view.unfinished or view.status.machine.migrating):
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
)


def can_restart(vm: JsonObject) -> bool:
    """Return whether KubeVirt accepts a request to restart a running VM.

    KubeVirt's source: `RestartVMRequestHandler` in pkg/virt-api/rest/lifecycle.go.
    """
    return run_strategy(vm) not in ("Halted", "Once") and condition(vm, "VolumesChange").get("status") != "True"


def gain(status: Status, sizes: Mapping[str, int], *, restarted: bool) -> int:
    """Return how many bytes of the VM's claims become local by the move or the restart, less those that are local now.

    `sizes` are the requested capacities of its claims. Only claims with a share-manager count.
    """
    served = {each.claim: each.node for each in status.start.decision.claims if each.node} if status.start else {}
    # After a cold start, the share-managers follow the VM.
    follow = restarted and status.start is not None and status.start.cold
    after = sum(sizes.get(claim, 0) for claim, node in served.items() if follow or node == status.storage_node)
    return after - sum(sizes.get(claim, 0) for claim, node in served.items() if node == status.node)
