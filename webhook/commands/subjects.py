"""Find the VM, VMI or pod that a user names, in a snapshot or in a live cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click

from webhook.cluster.caches.fact_readers import read_pod
from webhook.cluster.caches.store import Store
from webhook.cluster.machines import Inventory, seconds_since_creation
from webhook.commands.fleet_source import read_files, utc_now
from webhook.commands.options import connect, live_webhook
from webhook.commands.suggestions import close_match
from webhook.fleet.move import Surroundings
from webhook.fleet.states import Machine
from webhook.fleet.webhook import Webhook
from webhook.placement.objects.fields import JsonObject, text
from webhook.placement.objects.kubevirt import is_virt_launcher, vmi_name
from webhook.placement.opt_in import new_applicant
from webhook.placement.settings import Settings
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


class Source(Protocol):
    """A snapshot or a live cluster. Each method raises BadInput if the API server can't be reached."""

    @property
    def catalog(self) -> Store:
        """Return the catalog for decisions."""

    @property
    def webhook(self) -> Webhook:
        """Return the webhook of the cluster."""

    def around(self) -> Surroundings:
        """Return what a plan reads besides the catalog."""

    def find(self, subject: Subject, namespace: str | None, *, everywhere: bool) -> list[Found]:
        """Find all objects with this kind and name. Raises BadInput if there are none."""

    def existing_pod(self, pod: JsonObject) -> Found:
        """Return the machine of an existing pod, or the pod itself."""


def open_source(snapshots: Sequence[Path], kubeconfig: str | None, context: str | None, *, verbose: bool) -> Source:
    """Open the snapshot, or the live cluster without one. Raises BadInput."""
    if not snapshots:
        cluster = connect(kubeconfig, context)
        return _Live(cluster, live_webhook(cluster))
    pods: list[JsonObject] = []

    def keep(kind: str, item: JsonObject) -> None:
        if kind == "Pod":
            pods.append(item)

    fleet = read_files(snapshots, keep, verbose=verbose)
    return _Snapshot(fleet.inventory, pods, fleet.webhook)


@dataclass(frozen=True, slots=True)
class _Snapshot:
    inventory: Inventory
    pods: list[JsonObject]
    webhook: Webhook

    @property
    def catalog(self) -> Store:
        return self.inventory.store

    def find(self, subject: Subject, namespace: str | None, *, everywhere: bool) -> list[Found]:  # noqa: ARG002 (a snapshot has no default namespace)
        if subject.kind == "pod":
            known = [(text(pod, "metadata", "name"), pod) for pod in self.pods if _is_in(namespace, pod)]
            found = [self.existing_pod(pod) for name, pod in known if name == subject.name]
            names = [name for name, _ in known]
        else:
            machines = [
                each
                for each in self.inventory.machines(self.webhook.predicting)
                if namespace in (None, each.namespace) and _is_of_kind(subject.kind, each, self.inventory)
            ]
            found = [Found(each) for each in machines if each.name == subject.name]
            names = [each.name for each in machines]
        if not found:
            raise subject.not_found(namespace, names)
        return found

    def around(self) -> Surroundings:
        return self.inventory.surroundings(self.webhook.predicting)

    def existing_pod(self, pod: JsonObject) -> Found:
        return _of_pod(pod, self.inventory, self.webhook.predicting)


class _Live:
    def __init__(self, cluster: ClusterClient, webhook: Webhook) -> None:
        from webhook.reading.on_demand import OnDemand  # noqa: PLC0415 (imports the Kubernetes client, which files don't need)

        self.catalog: Store = OnDemand(cluster, webhook.settings.longhorn_namespace)
        self.webhook, self._settings = webhook, webhook.predicting
        self._cluster, self._inventory = cluster, Inventory(self.catalog, time=utc_now())

    def find(self, subject: Subject, namespace: str | None, *, everywhere: bool) -> list[Found]:
        from webhook.reading.one_vm import find_namespaces  # noqa: PLC0415 (as above)

        namespaces = [namespace or self._cluster.namespace]
        if everywhere:
            namespaces = find_namespaces(self._cluster, subject.kind, subject.name)
            if not namespaces:
                raise self._not_found(subject, "")
        find = self._find_pod if subject.kind == "pod" else self._find_vm
        return [find(subject, each) for each in namespaces]

    def around(self) -> Surroundings:
        return self._inventory.surroundings(self._settings)

    def _find_pod(self, subject: Subject, namespace: str) -> Found:
        from webhook.reading.one_vm import find_pod  # noqa: PLC0415 (as above)

        pod = find_pod(self._cluster, namespace, subject.name)
        if pod is None:
            raise self._not_found(subject, namespace)
        return self.existing_pod(pod)

    def _find_vm(self, subject: Subject, namespace: str) -> Found:
        problem = self._read_vm(namespace, subject.name)
        machines = self._inventory.machines(self._settings)
        for machine in machines:
            named = (machine.namespace, machine.name) == (namespace, subject.name)
            if named and _is_of_kind(subject.kind, machine, self._inventory):
                return Found(machine)
        raise BadInput(problem) if problem else self._not_found(subject, namespace)

    def _not_found(self, subject: Subject, namespace: str) -> BadInput:
        from webhook.reading.one_vm import list_names  # noqa: PLC0415 (as above)

        return subject.not_found(namespace or None, list_names(self._cluster, subject.kind, namespace))

    def _read_vm(self, namespace: str, name: str) -> str:
        from webhook.reading.one_vm import read_vm  # noqa: PLC0415 (as above)

        return read_vm(self._cluster, self._inventory, namespace, name)

    def existing_pod(self, pod: JsonObject) -> Found:
        if is_virt_launcher(pod):
            namespace = text(pod, "metadata", "namespace") or "default"
            self._read_vm(namespace, _vm_name(pod))
        return _of_pod(pod, self._inventory, self._settings)


def _is_in(namespace: str | None, pod: JsonObject) -> bool:
    return namespace in (None, text(pod, "metadata", "namespace") or "default")


def _vm_name(pod: JsonObject) -> str:
    return vmi_name(pod) or text(pod, "metadata", "name")


def _of_pod(pod: JsonObject, inventory: Inventory, settings: Settings) -> Found:
    """Return the machine of a virt-launcher pod. The pod counts as the one that runs the VM."""
    if not is_virt_launcher(pod):
        return Found(pod=pod)
    key = text(pod, "metadata", "namespace") or "default", _vm_name(pod)
    known = {(machine.namespace, machine.name): machine for machine in inventory.machines(settings)}
    machine = known.get(key) or Machine(*key, new_applicant(pod, key[0], settings), strategy=inventory.strategy(key))
    (template, missing), age = inventory.next_pod(pod, key, settings), seconds_since_creation(pod, inventory.time)
    return Found(replace(machine, pod=read_pod(pod), manifest=pod, template=template, missing=missing, age=age))


def _is_of_kind(kind: str, machine: Machine, inventory: Inventory) -> bool:
    """Return whether the machine has an object of this kind. A stopped VM has no VMI."""
    key = machine.namespace, machine.name
    return machine.pod is not None or key in inventory.vmis or (kind == "vm" and machine.is_vm)
