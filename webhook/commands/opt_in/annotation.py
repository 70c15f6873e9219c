"""Write the opt-in annotation into the templates of VMs."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from webhook.cluster.caches.kinds import VIRTUAL_MACHINES
from webhook.cluster.client import ClusterClient, ClusterError
from webhook.commands.suggestions import close_match
from webhook.fleet.gitops import managed_by
from webhook.placement.objects.fields import JsonObject, mapping, text
from webhook.reading.api import answered, list_objects
from webhook.reading.documents import BadInput
from webhook.reading.listing import list_names

MAX_ATTEMPTS = 5  # KubeVirt writes a VM's status a few times while it starts, and each write changes the version
WRITE_TIMEOUT = 15.0  # seconds
CONFLICT, NOT_FOUND = 409, 404
FIELD_MANAGER = "kubevirt-scheduler"


class Result(StrEnum):
    """What happened to a VM, or would happen to it."""

    CHANGED = "changed"
    UNCHANGED = "unchanged"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for one VM, and its reason."""

    namespace: str
    name: str
    result: Result
    detail: str


@dataclass(frozen=True, slots=True)
class DesiredOptIn:
    """The desired opt-in of VMs. `keys` are the opt-in annotations; the command writes the first one."""

    opt_in: bool
    keys: Sequence[str]

    def change(self, vm: JsonObject) -> dict[str, str | None]:
        """Return the annotations to change in the VM's template; None removes one. Empty if nothing needs a change."""
        present = mapping(vm, "spec", "template", "metadata", "annotations")
        if self.opt_in:
            return {} if any(present.get(key) == "true" for key in self.keys) else {self.keys[0]: "true"}
        others: dict[str, str | None] = {key: None for key in self.keys[1:] if present.get(key) == "true"}
        return others | ({} if present.get(self.keys[0]) == "false" else {self.keys[0]: "false"})


def find_vms(cluster: ClusterClient, namespace: str, names: Sequence[str], selector: str) -> list[JsonObject]:
    """Read the VMs of these names, or those of a namespace with these labels; an empty namespace stands for all.

    Raises BadInput if a name is unknown.
    """
    with answered():
        if names:
            return [_named(cluster, namespace, name) for name in dict.fromkeys(names)]
        query = {"labelSelector": selector} if selector else {}
        path = VIRTUAL_MACHINES.path_in(namespace)
        return list(list_objects(cluster, path, **query))


def _named(cluster: ClusterClient, namespace: str, name: str) -> JsonObject:
    vm = cluster.get(VIRTUAL_MACHINES.object_path((namespace, name)))
    if vm is None:
        found = f'VirtualMachine "{name}" not found in namespace "{namespace}"'
        question = close_match(name, list_names(cluster, "vm", namespace))
        raise BadInput(f"{found}; {question or f'to list all: kubectl get vm -n {namespace}'}")
    return vm


def plan(vm: JsonObject, desired: DesiredOptIn) -> Outcome:
    """Return what `apply` would do to a VM."""
    namespace, name = text(vm, "metadata", "namespace"), text(vm, "metadata", "name")
    changes = desired.change(vm)
    if not changes:
        return Outcome(namespace, name, Result.UNCHANGED, f"already opted {'in' if desired.opt_in else 'out'}")
    if manager := managed_by(vm):
        return Outcome(namespace, name, Result.SKIPPED, f"managed by {manager}: change its source")
    return Outcome(namespace, name, Result.CHANGED, ", ".join(_words(key, value) for key, value in changes.items()))


def _words(key: str, value: str | None) -> str:
    return f"{key} removed" if value is None else f'{key}: "{value}"'


def apply(cluster: ClusterClient, vm: JsonObject, desired: DesiredOptIn) -> Outcome:
    """Write the annotation. If the VM has changed since it was read, read it and plan again."""
    outcome, current = plan(vm, desired), vm
    for _ in range(MAX_ATTEMPTS):
        if outcome.result is not Result.CHANGED:
            return outcome
        try:
            _patch(cluster, current, desired)
        except ClusterError as error:
            if error.code != CONFLICT:
                return _failed(outcome, "the VM was deleted" if error.code == NOT_FOUND else str(error))
        else:
            return outcome
        try:
            current = _named(cluster, outcome.namespace, outcome.name)
        except (BadInput, ClusterError) as error:
            return _failed(outcome, str(error))
        outcome = plan(current, desired)
    return _failed(outcome, f"the VM changed during each of {MAX_ATTEMPTS} attempts; run the command again")


def _failed(planned: Outcome, detail: str) -> Outcome:
    return Outcome(planned.namespace, planned.name, Result.FAILED, detail)


def _patch(cluster: ClusterClient, vm: JsonObject, desired: DesiredOptIn) -> None:
    # With the version, the API server refuses the patch if another program has changed the VM, which may manage it now.
    body = {
        "metadata": {"resourceVersion": text(vm, "metadata", "resourceVersion")},
        "spec": {"template": {"metadata": {"annotations": desired.change(vm)}}},
    }
    path = VIRTUAL_MACHINES.object_path((text(vm, "metadata", "namespace"), text(vm, "metadata", "name")))
    cluster.send("PATCH", f"{path}?fieldManager={FIELD_MANAGER}", body, WRITE_TIMEOUT)
