"""What the eviction of a pod does: KubeVirt's answer for that of a VM, and PodDisruptionBudgets.

KubeVirt answers by the VM's eviction strategy: `admitLauncherPod` in
https://github.com/kubevirt/kubevirt/blob/d923fdb8/pkg/virt-api/webhooks/validating-webhook/admitters/pod-eviction-admitter.go
"""

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from webhook.fleet.relocation.rules import Hindrance, Refusal, why_not_evacuated
from webhook.fleet.simulation.state import Phase, State, Vm
from webhook.placement.objects.facts import Key, Pod
from webhook.placement.objects.fields import JsonObject, mapping, mappings, text
from webhook.placement.objects.selectors import labels_match

# `handleVMBackup` and `handleUtilityVolumes` in
# https://github.com/kubevirt/kubevirt/blob/d923fdb8/pkg/virt-controller/watch/migration/migration.go#L1581
AFTER_BACKUP = "after its backup, which KubeVirt 1.8 or newer aborts"


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
        stopped = [vm.pod.key for vm in state.vms.values() if vm.phase is not Phase.RUNS]
        self._left = [max(0, each.allowed - len(each.pods.intersection(stopped))) for each in self._budgets]

    def why_not(self, pod: Key) -> str:
        """Return why a pod can't be evicted now, empty if it can."""
        names = [each.name for each in self._budgets if pod in each.pods]
        if len(names) > 1:
            return f"PodDisruptionBudgets {' and '.join(names)} both select its pod, which Kubernetes never evicts"
        closed = (each for each, left in zip(self._budgets, self._left, strict=True) if not left and pod in each.pods)
        return next((f"PodDisruptionBudget {each.name} allows no eviction" for each in closed), "")

    def use(self, pod: Key) -> None:
        """Evict a pod that nothing replaces."""
        self._left = [left - (pod in each.pods) for each, left in zip(self._budgets, self._left, strict=True)]

    def contested(self, pods: Iterable[Key]) -> frozenset[Key]:
        """Return the pods of which only some can be evicted. It depends on a race which ones."""
        used_up = [each for each, left in zip(self._budgets, self._left, strict=True) if each.allowed and not left]
        return frozenset(pod for pod in pods for each in used_up if pod in each.pods)


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
