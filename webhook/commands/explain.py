"""`kubevirt-scheduler explain`: print every step that leads to a placement decision."""

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from io import StringIO
from pathlib import Path

import click

from webhook.cluster import documents
from webhook.cluster.documents import BadInput, printable
from webhook.cluster.objects import read_pending_pin
from webhook.cluster.store import Store
from webhook.commands.narration import NO, YES, Line, describe_decision, describe_walk, stuck_advice
from webhook.commands.options import (
    color_option,
    connect,
    live_options,
    load_cluster,
    optional_file_option,
    snapshot_option,
    verbose_option,
    wants_color,
)
from webhook.commands.requests import inject_request, pod_name, read_documents, request_from
from webhook.placement.catalog import Catalog
from webhook.placement.release import PENDING_LIMIT, why_kept, why_pin_fails
from webhook.placement.settings import Settings, read_settings
from webhook.placement.shape import JsonObject, text
from webhook.placement.template import before_scheduling, creation_request
from webhook.placement.walk import walk

STYLES = {YES: "green", NO: "red"}
MAX_WIDTH = 120  # columns; longer lines are hard to read


@click.command(short_help="tell why a pod goes where it goes, and what to do about it")
@click.argument("kind", type=click.Choice(["pod", "vm"]), required=False)
@click.argument("name", required=False)
@click.option("-n", "--namespace", metavar="NAME", help="Where it is. Default: the namespace of the context.")
@optional_file_option
@snapshot_option
@color_option
@verbose_option
@live_options
def explain(  # noqa: PLR0913, PLR0917 (one parameter per option)
    kind: str | None,
    name: str | None,
    namespace: str | None,
    file: Path | None,
    snapshots: tuple[Path, ...],
    color: bool | None,
    verbose: bool,
    **live: str | None,
) -> None:
    """Show how it is decided where a pod goes, and what to do about it.

    With -f, each Pod in FILE is explained, which is what inject reads. With pod or vm and a name, the pod that is there
    already: where it is, and what would be decided now.

    \b
    Examples:
      kubevirt-scheduler explain vm vm1 -n shop
      kubevirt-scheduler explain pod virt-launcher-vm1-x7k2p
      kubevirt-scheduler explain -f pod.yaml --snapshot cluster.yaml
      kubectl get pod virt-launcher-vm1-x7k2p -o yaml | kubevirt-scheduler explain -f - --snapshot cluster.yaml
    """  # noqa: D301 (click's mark for a block whose line breaks are kept)
    if (file is None) == (kind is None) or (kind is None) != (name is None):
        raise click.UsageError("give either -f FILE, or pod NAME, or vm NAME")
    settings = read_settings(os.environ)
    pod: JsonObject | None = None
    current_placement: list[Line] = []
    if file is not None:
        requests = _read_requests(file)
    else:
        if snapshots:
            raise click.UsageError(f"{kind} {name} is read from a live cluster; with --snapshot give -f FILE")
        pod, request, current_placement = _live_request(str(kind), str(name), namespace, live)
        requests = [request]
    catalog = load_cluster(snapshots, **live, settings=settings, verbose=verbose)
    advice = _stuck_advice(pod, catalog, settings) if pod else []
    pages = [[*current_placement, *_explanation(request, catalog, settings, advice)] for request in requests]
    names = map(pod_name, requests)
    click.echo("\n".join(map(partial(_render_page, colored=wants_color(color)), names, pages)).encode(), nl=False)


def _read_requests(file: Path) -> list[JsonObject]:
    found = [(document, *item) for document in read_documents(file) for item in document.objects()]
    requests = [request for item in found if (request := request_from(*item))]
    if not requests:
        raise BadInput(
            f"{documents.display_name(file)}: there is no Pod in it; the pod of a VM is shown by: "
            "kubectl get pod -l kubevirt.io=virt-launcher -o yaml"
        )
    return requests


def _live_request(
    kind: str, name: str, namespace: str | None, live: dict[str, str | None]
) -> tuple[JsonObject, JsonObject, list[Line]]:
    """Return an existing pod, the request that created it, and the lines about where it is."""
    from webhook.cluster import running  # noqa: PLC0415 (imports the Kubernetes client, which files don't need)

    find = running.find_vm if kind == "vm" else running.find_pod
    cluster = connect(**live)
    pod = find(cluster, namespace or cluster.namespace, name)
    placement = [Line("Where is it?", level=0), *map(Line, running.describe_placement(pod))]
    heading = Line("What would be decided now?", level=0)
    return pod, creation_request(before_scheduling(pod)), [*placement, heading]


def _stuck_advice(pod: JsonObject, catalog: Store, settings: Settings) -> list[str]:
    """Return what to do about a pinned pod that can't be scheduled. Empty for any other pod."""
    pin, namespace = read_pending_pin(pod), text(pod, "metadata", "namespace")
    if pin is None or not pin.unschedulable_since:
        return []
    after = settings.release_after
    obstacle = why_pin_fails(pod, namespace, catalog, settings, after)
    try:
        vm = catalog.virtual_machine(namespace, pin.vm)
    except BadInput:  # the user may read pods, but not VMs
        vm = None
    return stuck_advice(namespace, pin, obstacle, why_kept(vm, 0, settings), after if obstacle else PENDING_LIMIT)


def _explanation(
    request: JsonObject, catalog: Catalog, settings: Settings, advice: Sequence[str] = ()
) -> Iterator[Line]:
    try:
        steps = list(describe_walk(walk(request, catalog, settings)))
    except BadInput:
        raise
    except Exception as error:  # noqa: BLE001 (as in `injector.inject`; the walk reads more fields)
        steps = [Line(f"the walk can not be shown: a field of the pod or of the cluster ({type(error).__name__})")]
    yield from steps
    yield from describe_decision(inject_request(request, catalog, settings), settings, advice)


def _render_page(name: str, lines: Iterable[Line], *, colored: bool) -> str:
    # Imported here: `kubevirt-scheduler --help` imports this module, and only this function needs rich.
    from rich.console import Console  # noqa: PLC0415
    from rich.padding import Padding  # noqa: PLC0415
    from rich.table import Column, Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    output = StringIO()
    width = min(shutil.get_terminal_size((80, 24)).columns, MAX_WIDTH)
    console = Console(
        file=output,
        width=width,
        color_system="standard" if colored else None,
        no_color=not colored,
        force_terminal=colored,
        highlight=False,
    )
    console.print(Text(printable(name), "bold underline"))
    for line in lines:
        words = Text(printable(line.words), "" if line.level else "bold")
        if line.level == 0:
            console.print()
        if line.mark:
            row = Table.grid("", Column(overflow="fold"), padding=(0, 1))
            row.add_row(Text(line.mark, STYLES.get(line.mark, "dim")), words)
        console.print(Padding(row if line.mark else words, (0, 0, 0, 2 * line.level)))
    return "".join(f"{line.rstrip()}\n" for line in output.getvalue().split("\n")[:-1])
