"""`kubevirt-scheduler explain`: print every step of a placement decision."""

import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click

from webhook.commands.admission_requests import in_namespace, read_documents, review_from
from webhook.commands.completion import complete
from webhook.commands.explain.explanation import Finding, Section, explain_machine, explain_pod, explain_review
from webhook.commands.explain.storage import explain_claim, explain_node
from webhook.commands.fleet_source import Fleet, read_fleet, selected, show_settings
from webhook.commands.options import (
    all_namespaces_option,
    as_data,
    given,
    live_options,
    namespace_option,
    optional_file_option,
    output_option,
    snapshot_option,
)
from webhook.commands.subjects import USAGE, Found, existing_pod, find, parse_subject
from webhook.fleet.machine import Machine
from webhook.fleet.webhook import Webhook
from webhook.placement.objects.facts import Claim, Node
from webhook.placement.objects.fields import JsonObject, Malformed, printable, text
from webhook.placement.objects.pod_object import PodObject
from webhook.placement.objects.typed import convert
from webhook.placement.settings import Action
from webhook.placement.wording import warning
from webhook.reading import documents, snapshot
from webhook.reading.documents import BadInput

MARKS: dict[bool | None, tuple[str, str]] = {True: ("✓", "green"), False: ("✗", "red")}
MAX_WIDTH = 120  # columns; longer lines are hard to read


@click.command(short_help="explain where a VM runs and why, a claim or a node")
@click.argument("subject", nargs=-1, metavar="[vm|vmi|pod|pvc|node NAME]", shell_complete=complete("subject"))
@all_namespaces_option
@namespace_option
@optional_file_option
@snapshot_option
@output_option(
    "text",
    "json",
    "yaml",
    text="The output format. json and yaml print a list with one item for each object.",
)
@live_options
def explain(subject: tuple[str, ...], file: Path | None, output: str) -> None:
    """Explain where a VM runs, how the webhook decides on its next start, and what you can do.

    For a VM that isn't opted in, the command also explains the decision after an opt-in. Of a claim or a node, it
    explains which VMs use it. With -f, it explains each Pod in FILE: a new pod as inject reads it, an existing pod like
    pod NAME.

    \b
    Examples:
      kubevirt-scheduler explain vm vm1 -n shop
      kubevirt-scheduler explain vm/vm2 -A -o json
      kubevirt-scheduler explain vm vm1 --snapshot cluster.json
      kubevirt-scheduler explain pod virt-launcher-vm1-x7k2p
      kubevirt-scheduler explain pvc disk1 -n shop
      kubevirt-scheduler explain node node-a
      kubevirt-scheduler explain -f pod.yaml --snapshot cluster.json
      kubectl get pod virt-launcher-vm1-x7k2p -o yaml | kubevirt-scheduler explain -f -
    """  # noqa: D301 (click's mark for a block whose line breaks are kept)
    named = parse_subject(subject)
    if (file is None) == (named is None):
        raise click.UsageError(USAGE)
    fleet = read_fleet()
    if named:
        found = [_explained(find(fleet, *named, selected(fleet.namespace).namespace), fleet)]
    elif file and not (found := list(_explained_file(file, fleet))):
        remedy = "to print the pods of VMs: kubectl get pod -l kubevirt.io=virt-launcher -o yaml"
        raise BadInput(f"{documents.display_name(file)}: no Pod found; {remedy}")
    if output == "text":
        show_settings(fleet.webhook)
        click.echo("\n".join(_render(each, fleet.webhook) for each in found), nl=False)
    else:
        webhook = fleet.webhook.as_json()
        click.echo(as_data([each | {"webhook": webhook} for each in found], output), nl=False)


def _explained(subject: Found, fleet: Fleet) -> JsonObject:
    if isinstance(subject, Machine):
        return explain_machine(subject, fleet.inventory, fleet.webhook)
    if isinstance(subject, Claim):
        return explain_claim((subject.namespace, subject.name), fleet.inventory, fleet.webhook)
    if isinstance(subject, Node):
        return explain_node(subject, fleet.inventory, fleet.webhook)
    return explain_pod(subject, fleet.inventory.store, fleet.webhook.settings)


def _explained_file(file: Path, fleet: Fleet) -> Iterator[JsonObject]:
    settings = fleet.webhook.settings
    namespace = given("namespace") or fleet.namespace
    received = read_documents(file)
    for document in received:
        snapshot.add(fleet.inventory, document, namespace)
    for document in received:
        for kind, found in document.objects():
            item = in_namespace(namespace, kind, found)
            review = review_from(document, kind, item, settings)
            # The node of an existing pod does not end the decision.
            exists = text(item, "spec", "nodeName") or text(item, "metadata", "creationTimestamp")
            if kind == ("v1", "Pod") and exists:
                try:
                    yield _explained(existing_pod(fleet, convert(item, PodObject)), fleet)
                except Malformed as error:
                    raise document.error(f"Pod {text(item, 'metadata', 'name')}: {error}") from None
            elif review:
                yield explain_review(review, fleet.inventory.store, settings)


def _render(explained: JsonObject, webhook: Webhook) -> str:
    width = min(shutil.get_terminal_size((80, 24)).columns, MAX_WIDTH)
    page = [click.style(printable(explained["name"]), bold=True, underline=True)]
    decision, advice = (tuple(map(Finding, lines)) for lines in (_decision(explained, webhook), explained["advice"]))
    last = [Section("Decision", decision)] if decision else []
    for section in (*explained["steps"], *last, Section("What to do", advice)):
        page += ["", click.style(printable(section.title), bold=True)]
        page += [_line(finding, width) for finding in section.findings]
    return "\n".join([*page, ""])


def _decision(explained: JsonObject, webhook: Webhook) -> Iterator[str]:
    would = "the webhook would decide: " if webhook.predicting.action is Action.OBSERVE else ""
    for condition, each in (("", explained["decision"]), ("if eligible: ", explained["ifEligible"])):
        if each:
            yield f"{would}{condition}{each['outcome']}, {each['reason']}: {each['message']}"
    if decision := explained["decision"]:
        said = {warning(decision["message"]), warning(f"{decision['reason']}: {decision['message']}")}
        yield from (f"Warning: {each}" for each in explained["warnings"] if each not in said)


def _line(finding: Finding, width: int) -> str:
    mark, color = MARKS.get(finding.holds, ("", ""))
    shown = mark if finding.decisive else f"({mark})"
    indent = f"  {shown} " if shown else "  "
    hanging = " " * len(indent)
    words = textwrap.fill(printable(finding.text), max(width - len(indent), 1), break_on_hyphens=False)
    styled = indent.replace(shown, click.style(shown, fg=color)) if shown else indent
    return styled + words.replace("\n", f"\n{hanging}")
