"""Read one VM, its VMI and its pods as they are now, and everything else of the cluster on demand."""

from collections.abc import Iterable
from typing import Any

import msgspec

from webhook.cluster import objects, wire
from webhook.cluster.client import ClusterClient, ClusterError
from webhook.cluster.documents import BadInput
from webhook.cluster.fleet import Inventory
from webhook.cluster.kinds import VIRTUAL_MACHINES, object_path
from webhook.cluster.migrations import read_vmi
from webhook.cluster.ondemand import OnDemand
from webhook.placement.catalog import Key
from webhook.placement.shape import JsonObject, text


def read_one_vm(cluster: ClusterClient, longhorn: str, key: Key) -> Inventory:
    """Return an inventory of this VM alone, whose store reads the rest of the cluster. Raises BadInput."""
    inventory = Inventory(OnDemand(cluster, longhorn))
    try:
        vmi, vm = read_vmi(cluster, key), cluster.get(object_path(VIRTUAL_MACHINES, key))
        if vm is not None:
            manifest: JsonObject = msgspec.json.decode(vm)
            inventory.keep("VirtualMachine", manifest)
            inventory.store.put(objects.read_virtual_machine(manifest))
        if vmi is not None:
            inventory.keep("VirtualMachineInstance", vmi)
            _keep_pods(inventory, _pods_of(cluster, key[0], text(vmi, "metadata", "uid")))
    except ClusterError as error:
        raise BadInput(f"the cluster does not answer: {error}") from None
    return inventory


def _pods_of(cluster: ClusterClient, namespace: str, vmi_uid: str) -> Iterable[JsonObject]:
    """Yield the VMI's virt-launcher pods, and all hotplug pods of the namespace, which don't name their VMI."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    for selector in (f"kubevirt.io/created-by={vmi_uid}", "kubevirt.io=hotplug-disk"):
        for _, items in cluster.pages(path, labelSelector=selector):
            yield from map(_decoded_pod, items)


def _decoded_pod(item: msgspec.Raw) -> Any:
    return msgspec.json.decode(item, type=wire.StoredPod)


def _keep_pods(inventory: Inventory, pods: Iterable[JsonObject]) -> None:
    for pod in pods:
        fact = objects.read_pod(pod)
        if fact is not None:
            inventory.keep("Pod", pod)
            inventory.store.put(fact)
