"""Why a pod goes where it goes: the walk to the decision, for a person."""

import os
import shutil
from collections.abc import Iterable, Iterator
from functools import partial
from io import StringIO
from pathlib import Path

import click

from webhook.cluster import documents
from webhook.cluster.documents import BadInput, printable
from webhook.commands.narration import NO, YES, Line, conclude, narrate
from webhook.commands.options import (
    cluster_from,
    color_option,
    connect,
    live_options,
    optional_file_option,
    snapshot_option,
    verbose_option,
    wants_color,
)
from webhook.commands.requests import creation, decided, name_in, objects_from, request_in
from webhook.placement.catalog import Catalog
from webhook.placement.settings import Settings, read_settings
from webhook.placement.shape import JsonObject
from webhook.placement.walk import walk

STYLES = {YES: "green", NO: "red"}
WIDEST = 120  # columns; longer lines are hard to read


@click.command(short_help="tell why a pod goes where it goes, and what to do about it")
@click.argument("kind", type=click.Choice(["pod", "vm"]), required=False)
@click.argument("name", required=False)
@click.option("-n", "--namespace", metavar="NAME", help="Where it is. Default: the namespace of the context.")
@optional_file_option
@snapshot_option
@color_option
@verbose_option
@live_options
def explain(  # noqa: PLR0913, PLR0917 (as many as there are options)
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
    """  # noqa: D301 (click's mark of a block that keeps its lines)
    if (file is None) == (kind is None) or (kind is None) != (name is None):
        raise click.UsageError("give either -f FILE, or pod NAME, or vm NAME")
    settings = read_settings(os.environ)
    there: list[Line] = []
    if file is not None:
        requests = _requests_in(file)
    else:
        if snapshots:
            raise click.UsageError(f"{kind} {name} is read from a live cluster; with --snapshot give -f FILE")
        request, there = _request_for(str(kind), str(name), namespace, live)
        requests = [request]
    catalog = cluster_from(snapshots, **live, settings=settings, verbose=verbose)
    pages = [[*there, *_lines(request, catalog, settings)] for request in requests]
    names = map(name_in, requests)
    click.echo("\n".join(map(partial(_page, colored=wants_color(color)), names, pages)).encode(), nl=False)


def _requests_in(file: Path) -> list[JsonObject]:
    found = [(document, *one) for document in objects_from(file) for one in document.objects()]
    requests = [request for one in found if (request := request_in(*one))]
    if not requests:
        raise BadInput(
            f"{documents.display_name(file)}: there is no Pod in it; the pod of a VM is shown by: "
            "kubectl get pod -l kubevirt.io=virt-launcher -o yaml"
        )
    return requests


def _request_for(
    kind: str, name: str, namespace: str | None, live: dict[str, str | None]
) -> tuple[JsonObject, list[Line]]:
    from webhook.cluster import running  # noqa: PLC0415 (it knows the Kubernetes client, which files need not wait for)

    find = running.find_vm if kind == "vm" else running.find_pod
    cluster = connect(**live)
    pod = find(cluster, namespace or cluster.namespace, name)
    there = [Line("Where is it?", level=0), *map(Line, running.whereabouts(pod))]
    return creation(running.before_scheduling(pod)), [*there, Line("What would be decided now?", level=0)]


def _lines(request: JsonObject, catalog: Catalog, settings: Settings) -> Iterator[Line]:
    try:
        stations = list(narrate(walk(request, catalog, settings)))
    except BadInput:
        raise
    except Exception as error:  # noqa: BLE001 (the walk asks more than the decision, which catches the same)
        stations = [Line(f"the walk can not be shown: a field of the pod or of the cluster ({type(error).__name__})")]
    yield from stations
    yield from conclude(decided(request, catalog, settings), settings)


def _page(name: str, lines: Iterable[Line], *, colored: bool) -> str:
    # Here, because no other command needs it, and --help of all imports this file.
    from rich.console import Console  # noqa: PLC0415
    from rich.padding import Padding  # noqa: PLC0415
    from rich.table import Column, Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    page = StringIO()
    width = min(shutil.get_terminal_size((80, 24)).columns, WIDEST)
    console = Console(
        file=page,
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
    return "".join(f"{line.rstrip()}\n" for line in page.getvalue().split("\n")[:-1])
