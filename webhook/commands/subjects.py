"""Find the VM, VMI, pod, claim or node that a user names, in a snapshot or in a live cluster."""

from collections.abc import Iterable

import click
from msgspec.structs import replace

from webhook.catalog.kinds import PODS, read_pod
from webhook.commands.completion import not_found
from webhook.commands.fleet_source import Fleet
from webhook.fleet.machine import Machine
from webhook.placement.objects.facts import Claim, Node
from webhook.placement.objects.fields import text
from webhook.placement.objects.pod import Manifest
from webhook.placement.objects.pod_object import PodObject
from webhook.placement.objects.typed import convert
from webhook.reading.api import answered, list_objects
from webhook.reading.documents import BadInput

KINDS = dict.fromkeys(("vm", "vms", "virtualmachine", "virtualmachines"), "vm")
KINDS |= dict.fromkeys(("vmi", "vmis", "virtualmachineinstance", "virtualmachineinstances"), "vm")
KINDS |= dict.fromkeys(("pod", "pods", "po"), "pod")
KINDS |= dict.fromkeys(("pvc", "pvcs", "persistentvolumeclaim", "persistentvolumeclaims"), "pvc")
KINDS |= dict.fromkeys(("node", "nodes", "no"), "node")
USAGE = "specify either -f FILE or one of: vm NAME, vmi NAME, pod NAME, pvc NAME, node NAME, vm/NAME"

Found = Machine | Claim | Node | PodObject  # PodObject: an existing pod that runs no VM


def parse_subject(words: Iterable[str]) -> tuple[str, str] | None:
    """Read `vm NAME` or `vm/NAME`: the kind, a value of KINDS, and the name. A VM and its VMI are one.

    Returns None without words. Raises UsageError for anything else.
    """
    parts = [part for word in words for part in word.split("/", 1)]
    if not parts:
        return None
    if len(parts) != 2 or parts[0].lower() not in KINDS or not parts[1] or "/" in parts[1]:
        raise click.UsageError(USAGE)
    return KINDS[parts[0].lower()], parts[1]


def find(fleet: Fleet, kind: str, name: str, namespace: str | None) -> Found:
    """Find the object with this kind and name. Without a namespace, search all of them.

    Raises BadInput if there is none or more than one, or if the API server can't be reached.
    """
    store = fleet.inventory.store
    if kind == "node":
        if node := store.node(name):
            return node
        raise BadInput(not_found(kind, name, None, (each.name for each in store.all_nodes())))
    if kind == "pvc":
        claims = [each for each in store.claims.values() if namespace in (None, each.namespace)]
        names = {each.name for each in claims}
        found: dict[str, Found] = {each.namespace: each for each in claims if each.name == name}
    elif kind == "vm":
        machines = fleet.inventory.machines(fleet.webhook.predicting)
        machines = [each for each in machines if namespace in (None, each.namespace)]
        names = {each.name for each in machines}
        found = {each.namespace: each for each in machines if each.name == name}
    else:
        names = {pod for each, pod in store.pods if namespace in (None, each)}
        pods = _pods(fleet, name, namespace)
        found = {pod.metadata.key[0]: existing_pod(fleet, pod) for pod in pods}
    if not found:
        raise BadInput(not_found(kind, name, namespace, names))
    if len(found) > 1:
        raise BadInput(f'{kind} "{name}" found in several namespaces; specify one: -n {", -n ".join(sorted(found))}')
    return next(iter(found.values()))


def _pods(fleet: Fleet, name: str, namespace: str | None) -> Iterable[PodObject]:
    """Return the pods of this name. The inventory of a cluster lacks those that run no VM."""
    if not fleet.client:
        return [pod for key, pod in fleet.inventory.pods.items() if key[1] == name and namespace in (None, key[0])]
    with answered():
        found = list_objects(fleet.client, PODS.path_in(namespace or ""), fieldSelector=f"metadata.name={name}")
    return (convert(pod, PodObject) for pod in found if text(pod, "metadata", "name") == name)


def existing_pod(fleet: Fleet, pod: PodObject) -> Found:
    """Return the machine of an existing virt-launcher pod, which counts as its pod, or another pod itself."""
    manifest = Manifest(pod, pod.metadata.key[0])
    if not manifest.is_virt_launcher:
        return pod
    inventory, settings = fleet.inventory, fleet.webhook.predicting
    key = manifest.namespace, manifest.vmi_name or manifest.metadata.name
    new = Machine(*key, manifest, strategy=inventory.store.run_strategy(*key))
    machine = next((each for each in inventory.machines(settings) if each.key == key), new)
    return inventory.with_pod(replace(machine, pod=read_pod(pod)), pod, settings)
