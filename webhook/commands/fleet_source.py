"""Read the fleet from a snapshot or from a live cluster, and select the VMs to report on."""

import difflib
import gc
import os
import sys
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
from msgspec import Struct

from webhook import __version__
from webhook.catalog.inventory import Inventory
from webhook.cluster.client import ClusterClient, without_password
from webhook.commands.completion import not_found
from webhook.commands.options import connect, given
from webhook.fleet import history, traffic
from webhook.fleet.machine import Machine, Status
from webhook.fleet.states import Workload, assess, assess_pod
from webhook.fleet.traffic import Rates
from webhook.fleet.webhook import Webhook
from webhook.placement.objects.fields import JsonObject, mapping, printable, text
from webhook.placement.objects.selectors import labels_match
from webhook.placement.settings import Settings
from webhook.reading import snapshot
from webhook.reading.documents import BadInput, display_name
from webhook.reading.installation import find_webhook
from webhook.reading.live import read_inventory
from webhook.reading.prometheus import ask

SECRETS_WARNING = (
    "the snapshot contains passphrases of encrypted volumes, or cloud-init data of VMs. Delete the file, and "
    "write one without secrets: kubevirt-scheduler snapshot -o FILE"
)


class Scope(Struct, frozen=True):
    """The VMs to report on."""

    namespace: str | None  # None for all namespaces
    selector: JsonObject
    names: frozenset[str] = frozenset()  # of VMs; empty for all. `selects` ignores them
    excluded: frozenset[str] = frozenset()  # namespaces, and NAMESPACE/NAME

    def selects(self, machine: Machine) -> bool:
        """Return whether a VM is in the namespace and has the labels."""
        if self.namespace not in (None, machine.namespace) or self.excludes(*machine.key):
            return False
        owner = machine.vm or machine.vmi
        of_pod = machine.manifest.labels if machine.manifest else {}
        return labels_match(self.selector, mapping(owner, "metadata", "labels") if owner else of_pod)

    def require(self, known: Collection[str]) -> None:
        """Raise BadInput if one of the names is not among the known ones."""
        if missing := self.names.difference(known):
            raise BadInput(not_found("vm", min(missing), self.namespace, known))

    @property
    def selects_all(self) -> bool:
        """Return whether each VM of the cluster is selected."""
        return self.namespace is None and not self.selector and not self.names and not self.excluded

    def excludes(self, namespace: str, name: str) -> frozenset[str]:
        """Return what excludes a VM, empty if nothing does."""
        return self.excluded & {namespace, f"{namespace}/{name}"}

    def report_none(self, namespaces: Collection[str]) -> None:
        """Print that no VM is selected. Raises BadInput if the namespace isn't among these; none means unknown."""
        if self.namespace and namespaces and self.namespace not in namespaces:
            close = difflib.get_close_matches(self.namespace, sorted(namespaces), n=1)
            remedy = f'did you mean "{close[0]}"?' if close else "to list all: kubectl get namespaces"
            raise BadInput(f'namespace "{self.namespace}" not found; {remedy}')
        labeled = " with these labels" if self.selector else ""
        where = f" in namespace {self.namespace}. To select all namespaces, add -A" if self.namespace else ""
        click.echo(printable(f"No VM{labeled} found{where}"), err=True)


class Fleet(Struct, frozen=True):
    """The VMs of a cluster, and the webhook there."""

    inventory: Inventory
    webhook: Webhook
    client: ClusterClient | None = None  # None for a snapshot
    cluster: str = ""  # the kubeconfig's context; empty if unknown
    namespace: str = ""  # that of the context; empty if unknown
    source: str = ""  # files that don't describe their cluster, and when they were written; empty otherwise

    def origin(self) -> JsonObject:
        """Return the keys of a report that say where it comes from."""
        webhook = self.webhook.as_json()
        settings = webhook.pop("settings")
        named = {"time": self.inventory.time or None, "cluster": self.cluster or None, "source": self.source or None}
        named["version"] = __version__
        return named | {"settings": settings, "webhook": webhook}


def selected(default: str, excluded: Iterable[str] = ()) -> Scope:
    """Return the scope of -A, -n, -l and the names. `default` is the namespace without -A and -n, empty for all."""
    namespace = None if given("all_namespaces") else given("namespace") or default or None
    return Scope(namespace, given("selector") or {}, frozenset(given("names") or ()), frozenset(excluded))


def show_settings(webhook: Webhook) -> None:
    """Print which settings a command uses, on standard error."""
    if webhook.sentence:
        click.echo(printable(webhook.sentence), err=True)


def show_reading(plural: str, number: int) -> None:
    """Show on a terminal what is being read, on one line. Without a kind, clear the line."""
    if sys.stderr.isatty():
        words = f"reading {plural}: {number:,}" if plural else ""
        click.echo(f"\r\x1b[K{words}", nl=False, err=True)


def read_fleet(client: ClusterClient | None = None) -> Fleet:
    """Read the fleet from the files of --snapshot, or without any from a live cluster, by `client` if there is one.

    Malformed objects, and what may be a secret, give a warning. Raises BadInput, and SettingsError for the environment
    variables.
    """
    # A fleet has no cycles, but most of a million objects: the garbage collector would take a sixth of the time.
    gc.set_threshold(1_000_000)
    if snapshots := given("snapshots"):
        inventory, description = snapshot.read(snapshots)
        if inventory.with_secrets:
            warn(SECRETS_WARNING)
        webhook = Webhook.from_snapshot(description, os.environ)
        source = "" if description else ", ".join(map(_dated, snapshots))
        fleet = Fleet(inventory, webhook, cluster=text(description, "cluster"), source=source)
    else:
        client = client or connect()
        webhook = find_webhook(client)
        inventory = read_inventory(client, webhook.settings, show_reading)
        fleet = Fleet(inventory, webhook, client, client.name, client.namespace)
    inventory.copy_annotations()
    if inventory.malformed:
        more = f", and {len(inventory.malformed) - 1} more" if inventory.malformed[1:] else ""
        warn(f"{inventory.malformed[0]}; ignored{more}")
    return fleet


def _dated(file: Path) -> str:
    written = datetime.fromtimestamp(file.stat().st_mtime, UTC) if file.exists() else None
    return display_name(file) + (f" ({written:%Y-%m-%d %H:%M} UTC)" if written else "")


def assess_all(inventory: Inventory, scope: Scope, settings: Settings) -> Iterator[Status]:
    """Yield the status of each VM in the scope."""
    return (assess(each, inventory.store, settings) for each in inventory.machines(settings) if scope.selects(each))


def assess_pods(inventory: Inventory, scope: Scope, settings: Settings) -> list[Workload]:
    """Return the states of the opted-in pods in the scope that run no VM, sorted by namespace and name."""
    pods = (pod for pod in inventory.store.pods.values() if scope.namespace in (None, pod.namespace))
    chosen = sorted((pod for pod in pods if labels_match(scope.selector, pod.labels)), key=lambda pod: pod.key)
    return [each for pod in chosen if (each := assess_pod(pod, inventory.store, settings))]


def read_rates() -> Rates:
    """Return the disk traffic of all VMs. Without it, warn, and return nothing."""
    if not (url := given("prometheus")):
        return {}
    try:
        found = traffic.read_rates(ask(url, given("prometheus_token"), traffic.query()))
        problem = "" if found else f"it has no {traffic.EXAMPLE} of the last {traffic.WINDOW}"
    except BadInput as error:
        found = {}
        problem = str(error)
    if problem:
        warn(f"no traffic from Prometheus {without_password(url)}: {problem}")
    return found


def read_history() -> list[tuple[int, int]]:
    """Return how many VMs of the cluster were apart in the last day. `read_rates` reports a failing Prometheus."""
    if not (url := given("prometheus")):
        return []
    try:
        return history.read_history(ask(url, given("prometheus_token"), history.QUERY, history.DAY, history.STEP))
    except BadInput:
        return []


def warn(words: str) -> None:
    """Print a warning, once per command, and keep it for the report: a dashboard makes one again and again."""
    kept = click.get_current_context().meta
    kept.setdefault("warnings", []).append(words)
    if words not in kept.setdefault("printed", set()):
        kept["printed"].add(words)
        click.echo(printable(f"Warning: {words}"), err=True)
