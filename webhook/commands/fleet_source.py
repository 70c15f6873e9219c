"""Read the fleet from a snapshot or from a live cluster, and select the VMs to report on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from webhook import __version__
from webhook.cluster.machines import Inventory
from webhook.commands.options import connect, live_webhook
from webhook.commands.progress import Progress
from webhook.fleet.states import Machine, Status, assess
from webhook.fleet.webhook import Webhook
from webhook.placement.objects.fields import JsonObject, mapping, printable, text
from webhook.placement.objects.selectors import labels_match
from webhook.placement.settings import Settings
from webhook.reading import snapshot

if TYPE_CHECKING:
    from webhook.cluster.client import ClusterClient

MAX_MALFORMED = 3  # malformed objects of a snapshot that are named
SECRETS_WARNING = (
    "Warning: the snapshot contains {}. Delete the file, and write one without secrets: "
    "kubevirt-scheduler snapshot -o FILE"
)


@dataclass(frozen=True, slots=True)
class Scope:
    """The VMs to report on. `namespace` is None for all namespaces."""

    namespace: str | None
    selector: JsonObject

    def selects(self, machine: Machine, inventory: Inventory) -> bool:
        """Return whether a VM is in the namespace and has the labels."""
        if self.namespace not in (None, machine.namespace):
            return False
        key = machine.namespace, machine.name
        owner = inventory.vms.get(key) or inventory.vmis.get(key) or machine.manifest or {}
        return labels_match(self.selector, mapping(owner, "metadata", "labels"))

    @property
    def not_found(self) -> str:
        """Return a clause for a scope that selects no VM."""
        labeled = " with these labels" if any(self.selector.values()) else ""
        return f"No VM{labeled} found" + (f" in namespace {self.namespace}" if self.namespace else "")


@dataclass(frozen=True, slots=True)
class Fleet:
    """The VMs of a cluster, and the webhook there.

    `cluster` is the context of the kubeconfig, and `namespace` that of the context; both are empty if unknown.
    """

    inventory: Inventory
    webhook: Webhook
    cluster: str
    namespace: str = ""

    def origin(self) -> JsonObject:
        """Return the keys of a report that say where it comes from."""
        webhook = self.webhook.as_json()
        settings = webhook.pop("settings")
        named = {"time": self.inventory.time or None, "cluster": self.cluster or None, "version": __version__}
        return named | {"settings": settings, "webhook": webhook}


def utc_now() -> str:
    """Return the time in RFC 3339."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _read_files(paths: Sequence[Path]) -> Fleet:
    found = snapshot.read(paths)
    if found.secrets:
        click.echo(SECRETS_WARNING.format(" and ".join(sorted(found.secrets))), err=True)
    for malformed in found.malformed[:MAX_MALFORMED]:
        click.echo(printable(f"Warning: {malformed}; ignored"), err=True)
    if (more := len(found.malformed) - MAX_MALFORMED) > 0:
        click.echo(f"Warning: {more} more malformed objects ignored", err=True)
    inventory = replace(found.inventory, time=text(found.description, "metadata", "creationTimestamp"))
    webhook = Webhook.from_snapshot(found.description, os.environ)
    return Fleet(inventory, webhook, text(found.description, "cluster"))


def read_fleet(
    snapshots: Sequence[Path], live: Mapping[str, str | None], progress: Progress
) -> tuple[Fleet, ClusterClient | None]:
    """Read the fleet from files, or without any from a live cluster, which is returned. Raises BadInput.

    Malformed objects, and fields of files that may hold secrets, give a warning.
    """
    if snapshots:
        return _read_files(snapshots), None
    from webhook.reading.listing import read_inventory  # noqa: PLC0415 (imports the Kubernetes client, which files don't need)

    cluster, objects, time = connect(**live), 0, utc_now()
    webhook = live_webhook(cluster)

    def count(kind: str, read: int) -> None:
        nonlocal objects
        objects += read
        progress(f"reading {kind}", objects, None)

    inventory = read_inventory(cluster, webhook.settings, count)
    for kind, number in sorted(inventory.skipped.items()):
        click.echo(f"Warning: cannot read {number} of the {kind}; ignored", err=True)
    return Fleet(replace(inventory, time=time), webhook, cluster.name, cluster.namespace), cluster


def assess_all(inventory: Inventory, scope: Scope, settings: Settings, progress: Progress) -> Iterator[Status]:
    """Yield the status of each VM in the scope."""
    machines = [each for each in inventory.machines(settings) if scope.selects(each, inventory)]
    for done, machine in enumerate(machines, 1):
        status = assess(machine, inventory.store, settings)
        progress("deciding", done, len(machines))
        yield status
