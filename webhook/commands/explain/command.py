"""`kubevirt-scheduler explain`: print every step of a placement decision."""

import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click

from webhook.commands.admission_requests import pod_name, read_documents, request_from
from webhook.commands.explain.explanation import Explanation, explain_machine, explain_pod, explain_request
from webhook.commands.explain.lines import NO, YES
from webhook.commands.fleet_source import Fleet, read_fleet, show_settings
from webhook.commands.options import (
    as_data,
    live_options,
    namespace_option,
    optional_file_option,
    output_option,
    snapshot_option,
)
from webhook.commands.subjects import USAGE, Found, existing_pod, find, parse_subject
from webhook.fleet.move import Surroundings
from webhook.fleet.next_pod import before_scheduling, creation_request
from webhook.fleet.states import Machine
from webhook.placement.objects.fields import printable, text
from webhook.reading import documents
from webhook.reading.documents import BadInput

STYLES = {YES: "green", NO: "red"}
MAX_WIDTH = 120  # columns; longer lines are hard to read


@click.command(short_help="explain where a VM runs and why")
@click.argument("subject", nargs=-1, metavar="[vm|vmi|pod NAME]")
@namespace_option
@optional_file_option
@snapshot_option
@output_option(
    "text",
    "json",
    "yaml",
    text="The output format. json and yaml print a list with one item for each VM or pod.",
)
@live_options
def explain(
    subject: tuple[str, ...],
    namespace: str | None,
    file: Path | None,
    snapshots: tuple[Path, ...],
    output: str,
    **live: str | None,
) -> None:
    """Explain where a VM runs, how the webhook decides on its next start, and what you can do.

    With -f, the command explains each Pod in FILE: a new pod as inject reads it, an existing pod like pod NAME. For a
    VM that isn't opted in, the command also explains the decision after an opt-in.

    \b
    Examples:
      kubevirt-scheduler explain vm vm1 -n shop
      kubevirt-scheduler explain vm/vm1 -o json
      kubevirt-scheduler explain vm vm1 --snapshot cluster.json
      kubevirt-scheduler explain pod virt-launcher-vm1-x7k2p
      kubevirt-scheduler explain -f pod.yaml --snapshot cluster.json
      kubectl get pod virt-launcher-vm1-x7k2p -o yaml | kubevirt-scheduler explain -f -
    """  # noqa: D301 (click's mark for a block whose line breaks are kept)
    named = parse_subject(subject)
    if (file is None) == (named is None):
        raise click.UsageError(USAGE)
    fleet = read_fleet(snapshots, live)
    if named is None:
        found = list(_explained_file(Path(str(file)), fleet))
    else:
        found = [_explained(each, fleet) for each in find(fleet, named, namespace)]
    if output == "text":
        show_settings(fleet.webhook)
        click.echo("\n".join(map(_render_page, found)), nl=False)
    else:
        webhook = fleet.webhook.as_json()
        click.echo(as_data([each.as_json() | {"webhook": webhook} for each in found], output), nl=False)


def _explained(found: Found, fleet: Fleet) -> Explanation:
    catalog, settings = fleet.inventory.store, fleet.webhook.predicting
    if isinstance(found, Machine):
        return explain_machine(found, catalog, Surroundings(settings))
    return explain_pod(pod_name(creation_request(found, settings)), found, before_scheduling(found), catalog, settings)


def _explained_file(file: Path, fleet: Fleet) -> Iterator[Explanation]:
    settings = fleet.webhook.settings
    items = [(document, *item) for document in read_documents(file) for item in document.objects()]
    requests = [
        (kind, item, request)
        for document, kind, item in items
        if (request := request_from(document, kind, item, settings))
    ]
    if not requests:
        raise BadInput(
            f"{documents.display_name(file)}: no Pod found; to print the pods of VMs: "
            "kubectl get pod -l kubevirt.io=virt-launcher -o yaml"
        )
    for kind, item, request in requests:
        # The node of an existing pod does not end the decision.
        exists = text(item, "spec", "nodeName") or text(item, "metadata", "creationTimestamp")
        if kind == ("v1", "Pod") and exists:
            yield _explained(existing_pod(fleet, item), fleet)
        else:
            yield explain_request(pod_name(request), request, fleet.inventory.store, settings)


def _render_page(explanation: Explanation) -> str:
    width = min(shutil.get_terminal_size((80, 24)).columns, MAX_WIDTH)
    page = [click.style(printable(explanation.name), bold=True, underline=True)]
    for line in explanation.lines:
        if line.level == 0:
            page += ["", click.style(printable(line.words), bold=True)]
            continue
        indent, mark = "  " * line.level, f"{line.mark} " if line.mark else ""
        hanging = f"{indent}{' ' * len(mark)}"
        words = textwrap.fill(
            printable(line.words), width, initial_indent=hanging, subsequent_indent=hanging, break_on_hyphens=False
        )
        styled = click.style(line.mark, fg=STYLES.get(line.mark), dim=line.mark not in STYLES or None) if mark else ""
        page.append(f"{indent}{styled}{words[len(indent) + len(line.mark) :]}")
    return "\n".join([*page, ""])
