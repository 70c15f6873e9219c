"""`kubevirt-scheduler explain`: print every step of a placement decision."""

import shutil
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from webhook.commands.admission_requests import pod_name, read_documents, request_from
from webhook.commands.explain.explanation import Explanation, explain_machine, explain_pod, explain_request
from webhook.commands.explain.lines import NO, YES, Line
from webhook.commands.options import (
    all_namespaces_option,
    live_options,
    namespace_option,
    optional_file_option,
    output_option,
    show_settings,
    snapshot_option,
    wants_color,
)
from webhook.commands.subjects import USAGE, Found, Source, open_source, parse_subject
from webhook.commands.suggestions import complete_subjects
from webhook.fleet.next_pod import before_scheduling, creation_request
from webhook.placement.objects.fields import JsonObject, mapping, printable, text
from webhook.reading import documents, kubernetes_yaml
from webhook.reading.documents import BadInput

STYLES = {YES: "green", NO: "red"}
MAX_WIDTH = 120  # columns; longer lines are hard to read


@click.command(short_help="explain where a VM runs and why")
@click.argument("subject", nargs=-1, metavar="[vm|vmi|pod NAME]", shell_complete=complete_subjects)
@namespace_option
@all_namespaces_option("Explain every object of this name in all namespaces.")
@optional_file_option
@snapshot_option
@output_option(
    "text",
    "json",
    "yaml",
    text="The output format. json and yaml print a list with one item for each VM or pod.",
)
@live_options
def explain(  # noqa: PLR0913, PLR0917 (one parameter per option)
    subject: tuple[str, ...],
    namespace: str | None,
    all_namespaces: bool,
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
      kubevirt-scheduler explain vm/vm1 -A -o json
      kubevirt-scheduler explain vm vm1 --snapshot cluster.json
      kubevirt-scheduler explain pod virt-launcher-vm1-x7k2p
      kubevirt-scheduler explain -f pod.yaml --snapshot cluster.json
      kubectl get pod virt-launcher-vm1-x7k2p -o yaml | kubevirt-scheduler explain -f -
    """  # noqa: D301 (click's mark for a block whose line breaks are kept)
    named = parse_subject(subject)
    if (file is None) == (named is None):
        raise click.UsageError(USAGE)
    if all_namespaces and namespace:
        raise click.UsageError("specify either -A or -n, not both")
    source = open_source(snapshots, **live)
    webhook = source.webhook
    if named is None:
        found = list(_explained_file(Path(str(file)), source))
    else:
        subjects = source.find(named, namespace, everywhere=all_namespaces)
        found = [_explained(each, source) for each in subjects]
    if output == "text":
        pages = (_render_page(each.name, each.lines, colored=wants_color()) for each in found)
        text = "\n".join(pages)
        show_settings(webhook)
    else:
        text = _as_data([each.as_json() | {"webhook": webhook.as_json()} for each in found], output)
    click.echo(text.encode(), nl=False)


def _as_data(explanations: list[JsonObject], output: str) -> str:
    encoded = msgspec.json.encode(explanations)
    if output == "json":
        return msgspec.json.format(encoded, indent=2).decode() + "\n"
    return kubernetes_yaml.to_yaml(msgspec.json.decode(encoded))  # without enums


def _explained(found: Found, source: Source) -> Explanation:
    catalog, settings = source.catalog, source.webhook.predicting
    if found.machine:
        return explain_machine(found.machine, catalog, source.around())
    pod = mapping(found.pod)
    return explain_pod(pod_name(creation_request(pod, settings)), pod, before_scheduling(pod), catalog, settings)


def _exists(pod: JsonObject) -> bool:
    """Return whether a pod from a file already exists in the cluster. Then its node does not end the decision."""
    return bool(text(pod, "spec", "nodeName") or text(pod, "metadata", "creationTimestamp"))


def _explained_file(file: Path, source: Source) -> Iterator[Explanation]:
    settings = source.webhook.settings
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
        if kind == ("v1", "Pod") and _exists(item):
            yield _explained(source.existing_pod(item), source)
        else:
            yield explain_request(pod_name(request), request, source.catalog, settings)


def _render_page(name: str, lines: Iterable[Line], *, colored: bool) -> str:
    width = min(shutil.get_terminal_size((80, 24)).columns, MAX_WIDTH)
    page = [_styled(printable(name), colored, bold=True, underline=True)]
    for line in lines:
        if line.level == 0:
            page += ["", _styled(printable(line.words), colored, bold=True)]
            continue
        indent, mark = "  " * line.level, f"{line.mark} " if line.mark else ""
        hanging = f"{indent}{' ' * len(mark)}"
        words = textwrap.fill(
            printable(line.words), width, initial_indent=hanging, subsequent_indent=hanging, break_on_hyphens=False
        )
        style = (
            _styled(line.mark, colored, fg=STYLES.get(line.mark), dim=line.mark not in STYLES or None) if mark else ""
        )
        page.append(f"{indent}{style}{words[len(indent) + len(line.mark) :]}")
    return "\n".join([*page, ""])


def _styled(words: str, colored: bool, **style: Any) -> str:
    return click.style(words, **style) if colored else words
