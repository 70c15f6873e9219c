"""Read the objects of one VM from a live cluster."""

from collections.abc import Iterator

from webhook.cluster.caches import fact_readers as objects
from webhook.cluster.caches.kinds import CLAIMS, NAMESPACES, PODS, VIRTUAL_MACHINES, VM_POD_SELECTOR, VMIS, object_path
from webhook.cluster.client import ClusterClient, ClusterError
from webhook.cluster.kind_fields import METADATA_LIST
from webhook.cluster.machines import Inventory
from webhook.fleet.instance_type import has_instance_type
from webhook.fleet.vm_pod_template import needs_state_claim
from webhook.placement.objects.facts import Key
from webhook.placement.objects.fields import JsonObject, text
from webhook.placement.objects.kubevirt import STATE_CLAIM_LABEL
from webhook.reading.api import answered, describe_failure, list_objects
from webhook.reading.documents import BadInput
from webhook.reading.listing import read_extras
from webhook.reading.on_demand import OnDemand

KINDS = {
    "vm": VIRTUAL_MACHINES,
    "vmi": VMIS,
    "pod": PODS,
    "namespace": NAMESPACES,
}  # by their names on the command line
_FORBIDDEN, _MISSING = 403, 404


def find_namespaces(cluster: ClusterClient, kind: str, name: str) -> list[str]:
    """List the namespaces that have a VM, a VMI or a pod of this name. Raises BadInput if the request fails."""
    found = _listed(cluster, KINDS[kind].path, fieldSelector=f"metadata.name={name}")
    return sorted(text(item, "metadata", "namespace") for item in found if text(item, "metadata", "name") == name)


def list_names(cluster: ClusterClient, kind: str, namespace: str) -> list[str]:
    """List the names of the objects of a namespace, empty for all namespaces. Empty if the request fails."""
    path = KINDS[kind].path_in(namespace)
    try:
        return sorted({text(each, "metadata", "name") for each in list_objects(cluster, path, accept=METADATA_LIST)})
    except ClusterError:
        return []


def find_pod(cluster: ClusterClient, namespace: str, name: str) -> JsonObject | None:
    """Read a pod; return None if it doesn't exist. Raises BadInput if the request fails."""
    with answered():
        return cluster.get(object_path(PODS, (namespace, name)))


def read_one_vm(cluster: ClusterClient, longhorn: str, key: Key) -> Inventory:
    """Return an inventory like that of `read_vm`, whose store reads the rest of the cluster on demand.

    Raises BadInput if a request fails or a right is missing.
    """
    inventory = Inventory(OnDemand(cluster, longhorn))
    if problem := read_vm(cluster, inventory, *key):
        raise BadInput(problem)
    return inventory


def read_vm(cluster: ClusterClient, inventory: Inventory, namespace: str, name: str) -> str:
    """Read a VM, its VMI, and the VM pods of its namespace into the inventory. Raises BadInput if a request fails.

    Without the right to read the VM or the VMI, the inventory lacks it, and the result says so.
    """
    problem = ""
    for kind in (VIRTUAL_MACHINES, VMIS):
        try:
            with answered(_FORBIDDEN):
                item = cluster.get(object_path(kind, (namespace, name)))
        except ClusterError as error:
            problem = problem or describe_failure(error)
            continue
        if item is not None:
            inventory.keep(kind.name, item)
    with answered():
        read_extras(cluster, inventory, namespace)
    if vm := inventory.vms.get((namespace, name)):
        inventory.store.put(objects.read_virtual_machine(vm))
        if has_instance_type(vm) or needs_state_claim(vm):
            for claim in _listed(cluster, CLAIMS.path_in(namespace), labelSelector=f"{STATE_CLAIM_LABEL}={name}"):
                inventory.store.put(objects.read_claim(claim))
    for pod in _listed(cluster, PODS.path_in(namespace), labelSelector=VM_POD_SELECTOR):
        inventory.keep("Pod", pod)
        if fact := objects.read_pod(pod):
            inventory.store.put(fact)
    return problem


def _listed(cluster: ClusterClient, path: str, **query: str) -> Iterator[JsonObject]:
    with answered():
        return list_objects(cluster, path, (_MISSING,), **query)  # KubeVirt may not be installed
