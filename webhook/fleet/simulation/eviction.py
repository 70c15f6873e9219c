"""What the eviction of a pod does: KubeVirt's answer for that of a VM, and PodDisruptionBudgets.

KubeVirt answers by the VM's eviction strategy: `admitLauncherPod` in
https://github.com/kubevirt/kubevirt/blob/d923fdb8/pkg/virt-api/webhooks/validating-webhook/admitters/pod-eviction-admitter.go
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import StrEnum
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from webhook.fleet.relocation.rules import Hindrance, Refusal, why_not_evacuated
from webhook.fleet.rendering.next_pod import before_scheduling
from webhook.fleet.simulation.places import find_places
from webhook.fleet.simulation.state import Phase, State, Vm
from webhook.placement.guard.candidate import Candidate
from webhook.placement.objects.facts import Key, Pod
from webhook.placement.objects.fields import JsonObject, mapping, mappings, text
from webhook.placement.objects.longhorn import COMPONENT_LABEL, SHARE_MANAGER
from webhook.placement.objects.pod import Manifest
from webhook.placement.objects.pod_object import NO_POD
from webhook.placement.objects.selectors import labels_match

# `handleVMBackup` and `handleUtilityVolumes` in
# https://github.com/kubevirt/kubevirt/blob/d923fdb8/pkg/virt-controller/watch/migration/migration.go#L1581
AFTER_BACKUP = "after its backup, which KubeVirt 1.8 or newer aborts"
FEW = "its PodDisruptionBudget allows too few evictions"


class Answer(StrEnum):
    """What KubeVirt does when the pod of a VM is evicted."""

    MIGRATE = "migrate"
    DELETE = "delete"
    DENY = "deny"


class Budget(Struct, frozen=True):
    """A PodDisruptionBudget, and the pods that it counts."""

    name: str
    allowed: int  # how many of them may be evicted before one is replaced
    pods: frozenset[Key]


class Budgets:
    """The budgets during one drain. An eviction uses one up, unless something replaces the pod.

    So does a VM that an earlier step has stopped.
    """

    def __init__(self, state: State) -> None:
        self._budgets = [_read(each, state.site.pods) for each in state.site.budgets]
        self._gone = {vm.pod.key for vm in state.vms.values() if vm.phase is not Phase.RUNS}

    def why_not(self, pod: Key) -> str:
        """Return why a pod can't be evicted now, empty if it can."""
        selecting = [each for each in self._budgets if pod in each.pods]
        if len(selecting) > 1:
            names = " and ".join(each.name for each in selecting)
            return f"PodDisruptionBudgets {names} both select its pod, which Kubernetes never evicts"
        closed = (each.name for each in selecting if self._is_used_up(each))
        return next((f"PodDisruptionBudget {name} allows no eviction" for name in closed), "")

    def _is_used_up(self, budget: Budget) -> bool:
        return len(budget.pods & self._gone) >= budget.allowed

    def use(self, pod: Key) -> None:
        """Evict a pod that nothing replaces."""
        self._gone.add(pod)

    def contested(self, pods: Collection[Key]) -> frozenset[Key]:
        """Return which of the pods a drain might not evict, because others may use up their budget first."""
        rivals = self._gone.union(pods)
        scarce = (each for each in self._budgets if self._is_used_up(each) and len(each.pods & rivals) > each.allowed)
        return frozenset(pod for each in scarce for pod in each.pods.intersection(pods))


def _read(manifest: JsonObject, pods: Iterable[Pod]) -> Budget:
    namespace = text(manifest, "metadata", "namespace")
    selector = mapping(manifest, "spec").get("selector")
    selected = (pod.key for pod in pods if pod.namespace == namespace and labels_match(selector, pod.labels))
    allowed = mapping(manifest, "status").get("disruptionsAllowed")
    # Without a status, its controller has not seen it yet.
    return Budget(text(manifest, "metadata", "name"), allowed if isinstance(allowed, int) else 0, frozenset(selected))


def answer(vm: Vm, state: State, allowed: Budgets) -> tuple[Answer, str]:
    """Return KubeVirt's answer to the eviction of a VM's pod, and why."""
    if vm.is_ending:
        return Answer.DELETE, "somebody has stopped it"
    site, vmi = state.site, vm.status.machine.vmi
    strategy = text(vmi, "spec", "evictionStrategy") or site.strategy or "None"
    refusal = why_not_migrated(vm, state)
    if strategy == "External":
        return Answer.DENY, "another controller has to move it (evictionStrategy External)"
    if strategy in ("LiveMigrate", "LiveMigrateIfPossible"):
        if refusal is None:
            return Answer.MIGRATE, AFTER_BACKUP if has_backup(vm) else ""
        if strategy == "LiveMigrate" or refusal.hindrance is not Hindrance.NOT_MIGRATABLE:
            return Answer.DENY, f"KubeVirt cannot migrate it: {refusal.detail} (evictionStrategy {strategy})"
    if problem := allowed.why_not(vm.pod.key):
        return Answer.DENY, problem
    return Answer.DELETE, f"the drain deletes its pod (evictionStrategy {strategy})"


def why_not_migrated(vm: Vm, state: State) -> Refusal | None:
    """Return why KubeVirt can't migrate a VM now, None if it can."""
    return why_not_evacuated(replace(vm.status, machine=vm.machine), state.site.around, state.catalog)


def has_backup(vm: Vm) -> bool:
    """Return whether a backup of the VM is under way."""
    return bool(mappings(vm.status.machine.vmi, "spec", "utilityVolumes"))


def waiting_pods(state: State, nodes: Sequence[str], budgets: Budgets) -> Iterator[tuple[Key, str]]:
    """Yield the pods that can't be evicted, and why, without VMs' pods and Longhorn's.

    Longhorn removes the budgets of its instance managers itself.
    """
    for pod in state.site.pods:
        owner = state.site.manifests.get(pod.key, NO_POD).metadata.controller
        of_longhorn = pod.labels.get(COMPONENT_LABEL) in (SHARE_MANAGER, "instance-manager")
        stays = pod.belongs_to_vm or of_longhorn or owner.kind in ("DaemonSet", "Node")
        if pod.node not in nodes or stays:
            continue
        if pod.key in state.site.manifests and not owner.kind:
            yield pod.key, "it has no controller, so kubectl drain evicts nothing: delete it, or add --force"
        elif problem := budgets.why_not(pod.key):
            yield pod.key, problem
        elif not _has_place(state, pod):
            budgets.use(pod.key)


def _has_place(state: State, pod: Pod) -> bool:
    """Return whether a node can run the pod that replaces an evicted one. Without its manifest, one can."""
    manifest = state.site.manifests.get(pod.key)
    if manifest is None:
        return True
    created = Manifest(before_scheduling(manifest), pod.namespace)
    return bool(find_places(partial(Candidate, created), state.catalog, None, 1).nodes)
