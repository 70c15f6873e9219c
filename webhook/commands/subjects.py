"""Find the VM, VMI or pod that a user names, in a snapshot or in a live cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from webhook.cluster.caches.fact_readers import read_pod
from webhook.cluster.caches.kinds import PODS
from webhook.cluster.caches.store import Store
from webhook.cluster.machines import Inventory, seconds_since_creation
from webhook.commands.fleet_source import Fleet, read_fleet
from webhook.commands.progress import progress_bar
from webhook.commands.suggestions import close_match
from webhook.fleet.move import Surroundings
from webhook.fleet.states import Machine
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
    """The objects of a snapshot or of a live cluster.

    Each method raises BadInput if the API server can't be reached.
    """

    def __init__(self, fleet: Fleet, cluster: ClusterClient | None) -> None:
        """Explain objects of the fleet, and pods of the cluster. Without a cluster, the fleet has all pods."""
        self.webhook, self._settings = fleet.webhook, fleet.webhook.predicting
        self._inventory, self._cluster = fleet.inventory, cluster

    @property
    def catalog(self) -> Store:
        """Return the catalog for decisions."""
        return self._inventory.store

    def around(self) -> Surroundings:
        """Return what a plan reads besides the catalog."""
        return self._inventory.surroundings(self._settings)

    def find(self, subject: Subject, namespace: str | None, *, everywhere: bool) -> list[Found]:
        """Find all objects with this kind and name. Raises BadInput if there are none."""
        if self._cluster:
            namespace = None if everywhere else namespace or self._cluster.namespace
        if subject.kind == "pod":
            pods = self._pods(subject.name, namespace)
            names = {name for each, name in self.catalog.pods if namespace in (None, each)}
            found = [self.existing_pod(pod) for pod in pods if text(pod, "metadata", "name") == subject.name]
        else:
            machines = [
                each
                for each in self._inventory.machines(self._settings)
                if namespace in (None, each.namespace) and _is_of_kind(subject.kind, each, self._inventory)
            ]
            names = {each.name for each in machines}
            found = [Found(each) for each in machines if each.name == subject.name]
        if not found:
            raise subject.not_found(namespace, names)
        return found

    def _pods(self, name: str, namespace: str | None) -> Iterable[JsonObject]:
        """Return pods, among them those of this name. The inventory of a cluster lacks those that run no VM."""
        if not self._cluster:
            return [pod for (each, _), pod in self._inventory.pods.items() if namespace in (None, each)]
        from webhook.reading.api import answered, list_objects  # noqa: PLC0415 (imports the Kubernetes client, which files don't need)

        with answered():
            return list_objects(self._cluster, PODS.path_in(namespace or ""), fieldSelector=f"metadata.name={name}")

    def existing_pod(self, pod: JsonObject) -> Found:
        """Return the machine of an existing virt-launcher pod, which counts as its pod, or another pod itself."""
        if not is_virt_launcher(pod):
            return Found(pod=pod)
        inventory, settings = self._inventory, self._settings
        key = text(pod, "metadata", "namespace") or "default", vmi_name(pod) or text(pod, "metadata", "name")
        known = {(machine.namespace, machine.name): machine for machine in inventory.machines(settings)}
        machine = known.get(key) or Machine(
            *key, new_applicant(pod, key[0], settings), strategy=inventory.store.run_strategy(*key)
        )
        (template, missing), age = inventory.next_pod(pod, key, settings), seconds_since_creation(pod, inventory.time)
        return Found(replace(machine, pod=read_pod(pod), manifest=pod, template=template, missing=missing, age=age))


def open_source(snapshots: Sequence[Path], **live: str | None) -> Source:
    """Open the snapshot, or the live cluster without one. Raises BadInput."""
    with progress_bar() as progress:
        return Source(*read_fleet(snapshots, live, progress))


def _is_of_kind(kind: str, machine: Machine, inventory: Inventory) -> bool:
    """Return whether the machine has an object of this kind. A stopped VM has no VMI."""
    key = machine.namespace, machine.name
    return machine.pod is not None or key in inventory.vmis or (kind == "vm" and machine.is_vm)
