"""Find the VM, VMI or pod that a user names, in a snapshot or in a live cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from webhook.cluster.caches.fact_readers import read_pod
from webhook.cluster.caches.store import Store
from webhook.cluster.machines import Inventory, seconds_since_creation
from webhook.commands.fleet_source import open_inventory
from webhook.commands.suggestions import close_match
from webhook.fleet.move import Surroundings
from webhook.fleet.states import Machine
from webhook.fleet.webhook import Webhook
from webhook.placement.objects.fields import JsonObject, text
from webhook.placement.objects.kubevirt import is_virt_launcher, vmi_name
from webhook.placement.opt_in import new_applicant
from webhook.reading.documents import BadInput

if TYPE_CHECKING:
    from webhook.cluster.client import ClusterClient

KINDS = {
    "vm": "vm", "vms": "vm", "virtualmachine": "vm", "virtualmachines": "vm",
    "vmi": "vmi", "vmis": "vmi", "virtualmachineinstance": "vmi", "virtualmachineinstances": "vmi",
    "pod": "pod", "pods": "pod", "po": "pod",
}  # fmt: skip
NAMES = {"vm": "VirtualMachine", "vmi": "VirtualMachineInstance", "pod": "Pod"}
USAGE = "specify either -f FILE or one of: vm NAME, vmi NAME, pod NAME, vm/NAME"


@dataclass(frozen=True, slots=True)
class Subject:
    """A kind (`vm`, `vmi` or `pod`) and a name."""

    kind: str
    name: str

    def not_found(self, namespace: str | None, known: Iterable[str]) -> BadInput:
        """Return the error for a subject that doesn't exist. `known` are the names of the objects that do."""
        where, option = (f'in namespace "{namespace}"', f"-n {namespace}") if namespace else ("in any namespace", "-A")
        plural = f"{self.kind}s" if self.kind == "pod" else self.kind
        question = close_match(self.name, known) or f"to list all: kubectl get {plural} {option}"
        return BadInput(f'{NAMES[self.kind]} "{self.name}" not found {where}; {question}')


def parse_subject(words: Iterable[str]) -> Subject | None:
    """Read `vm NAME` or `vm/NAME`; None without words. Raises UsageError for anything else."""
    parts = [part for word in words for part in word.split("/", 1)]
    if not parts:
        return None
    if len(parts) != 2 or parts[0].lower() not in KINDS or not parts[1] or "/" in parts[1]:
        raise click.UsageError(USAGE)
    return Subject(KINDS[parts[0].lower()], parts[1])


@dataclass(frozen=True, slots=True)
class Found:
    """The object of a name: a machine, or an existing pod that runs no VM."""

    machine: Machine | None = None
    pod: JsonObject | None = None


class Source:
    """A snapshot, or a live cluster whose objects are read on demand.

    Each method raises BadInput if the API server can't be reached.
    """

    def __init__(
        self, inventory: Inventory, webhook: Webhook, pods: list[JsonObject], cluster: ClusterClient | None = None
    ) -> None:
        """Explain objects of the inventory, and pods. Without a cluster, they are all that exists."""
        self.webhook, self._settings = webhook, webhook.predicting
        self._inventory, self._pods, self._cluster = inventory, pods, cluster

    @property
    def catalog(self) -> Store:
        """Return the catalog for decisions."""
        return self._inventory.store

    def around(self) -> Surroundings:
        """Return what a plan reads besides the catalog."""
        return self._inventory.surroundings(self._settings)

    def find(self, subject: Subject, namespace: str | None, *, everywhere: bool) -> list[Found]:
        """Find all objects with this kind and name. Raises BadInput if there are none."""
        problem = ""
        if self._cluster:
            namespace = None if everywhere else namespace or self._cluster.namespace
            problem = self._read(self._cluster, subject, namespace)
        if subject.kind == "pod":
            pods = [(text(pod, "metadata", "name"), pod) for pod in self._pods if _is_in(namespace, pod)]
            names = {name for name, _ in pods}
            found = [self.existing_pod(pod) for name, pod in pods if name == subject.name]
        else:
            machines = [
                each
                for each in self._inventory.machines(self._settings)
                if namespace in (None, each.namespace) and _is_of_kind(subject.kind, each, self._inventory)
            ]
            names = {each.name for each in machines}
            found = [Found(each) for each in machines if each.name == subject.name]
        if not found:
            raise BadInput(problem) if problem else subject.not_found(namespace, self._names(subject, namespace, names))
        return found

    def _read(self, cluster: ClusterClient, subject: Subject, namespace: str | None) -> str:
        """Read the objects of this name. Return why some can't be read, empty if all can."""
        from webhook.reading.one_vm import find_namespaces, find_pod, read_vm  # noqa: PLC0415 (imports the Kubernetes client, which files don't need)

        namespaces = [namespace] if namespace else find_namespaces(cluster, subject.kind, subject.name)
        if subject.kind == "pod":
            self._pods = [pod for each in namespaces if (pod := find_pod(cluster, each, subject.name))]
            return ""
        return "; ".join(filter(None, [read_vm(cluster, self._inventory, each, subject.name) for each in namespaces]))

    def _names(self, subject: Subject, namespace: str | None, known: Iterable[str]) -> Iterable[str]:
        if not self._cluster:
            return known
        from webhook.reading.one_vm import list_names  # noqa: PLC0415 (as above)

        return list_names(self._cluster, subject.kind, namespace or "")

    def existing_pod(self, pod: JsonObject) -> Found:
        """Return the machine of an existing virt-launcher pod, which counts as its pod, or another pod itself."""
        if not is_virt_launcher(pod):
            return Found(pod=pod)
        inventory, settings = self._inventory, self._settings
        key = text(pod, "metadata", "namespace") or "default", vmi_name(pod) or text(pod, "metadata", "name")
        if self._cluster:
            from webhook.reading.one_vm import read_vm  # noqa: PLC0415 (as above)

            read_vm(self._cluster, inventory, *key)
        known = {(machine.namespace, machine.name): machine for machine in inventory.machines(settings)}
        machine = known.get(key) or Machine(
            *key, new_applicant(pod, key[0], settings), strategy=inventory.strategy(key)
        )
        (template, missing), age = inventory.next_pod(pod, key, settings), seconds_since_creation(pod, inventory.time)
        return Found(replace(machine, pod=read_pod(pod), manifest=pod, template=template, missing=missing, age=age))


def open_source(snapshots: Sequence[Path], **live: str | None) -> Source:
    """Open the snapshot, or the live cluster without one. Raises BadInput."""
    pods: list[JsonObject] = []

    def keep(kind: str, item: JsonObject) -> None:
        if kind == "Pod":
            pods.append(item)

    inventory, webhook, cluster = open_inventory(snapshots, live, keep)
    return Source(inventory, webhook, pods, cluster)


def _is_in(namespace: str | None, pod: JsonObject) -> bool:
    return namespace in (None, text(pod, "metadata", "namespace") or "default")


def _is_of_kind(kind: str, machine: Machine, inventory: Inventory) -> bool:
    """Return whether the machine has an object of this kind. A stopped VM has no VMI."""
    key = machine.namespace, machine.name
    return machine.pod is not None or key in inventory.vmis or (kind == "vm" and machine.is_vm)
