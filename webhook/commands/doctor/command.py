"""`kubevirt-scheduler doctor`: check the cluster before an installation, and the installed webhook."""

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import click
from msgspec.structs import replace

from webhook.commands.doctor import installed_webhook, products, webhook_calls
from webhook.commands.doctor.inspection import Inspection, Level, Result
from webhook.commands.options import SECONDS, as_data, configuration_option, connect, live_options, output_option
from webhook.placement.objects.fields import printable
from webhook.placement.settings import read_settings
from webhook.reading.api import Denied
from webhook.reading.documents import BadInput
from webhook.reading.installation import find_installed

NAME = "kubevirt-scheduler"
DOCS = "docs/reference/doctor.md"

EXIT_UNKNOWN = 2
MARKS = {
    Level.OK: click.style("✓", fg="green"),
    Level.WARNING: click.style("‼", fg="yellow"),
    Level.UNKNOWN: click.style("?", fg="yellow"),
    Level.FAILURE: click.style("✗", fg="red"),
}
Finding = tuple[str, Result]
Check = Callable[[Inspection, Any], Iterator[Result]]  # those of AFTER require an Installation, the others may get None
# The checks in their order, each by the name of its heading in docs/reference/doctor.md.
BEFORE: dict[str, Check] = {
    "kubevirt": products.kubevirt,
    "longhorn": products.longhorn,
    "known-bugs": products.known_bugs,
    "claims": products.claims,
    "loopback-nfs": products.loopback_nfs,
    "rights": installed_webhook.rights_to_install,
}
AFTER: dict[str, Check] = {
    "replicas": installed_webhook.replicas,
    "caches": installed_webhook.caches,
    "certificates": installed_webhook.certificates,
    "accounts": webhook_calls.accounts,
    "calls": webhook_calls.calls,
    "selection": webhook_calls.selection,
    "undecided": webhook_calls.undecided,
    "other-webhooks": webhook_calls.other_webhooks,
    "rights": installed_webhook.rights,
    "nodes": products.nodes,
    "disks": products.disks,
    "waiting": products.waiting,
    "known-bugs": products.known_bugs,
    "loopback-nfs": products.loopback_nfs,
    "data": products.data,
}
CONFIGURATION = "configuration"


@click.command(short_help="check the cluster and the installed webhook")
@click.option("--pre", is_flag=True, help="Check the cluster before you install the chart.")
@click.option(
    "--calls",
    type=SECONDS,
    hidden=True,  # of `helm test`: the API server calls the webhook for its account, and not for others
    help="Check only the calls, with your own account, and retry for this time.",
)
@click.option(
    "-n",
    "--namespace",
    show_default="default; with --pre, kubevirt-scheduler",
    metavar="NAME",
    help="The namespace in which to create a VM's pod as a dry run; with --pre, that of the release.",
)
@configuration_option
@output_option("list", "json")
@live_options
def doctor(pre: bool, calls: int | None, namespace: str | None, configuration: str | None, output: str) -> None:
    """Check the cluster and the installed webhook, and print problems with their remedies.

    The command changes nothing.

    \b
    Exit status:
      0  no check failed; warnings are possible
      1  a check failed
      2  no check failed, but one could not be made; or the cluster can't be read

    \b
    Examples:
      kubevirt-scheduler doctor --pre
      kubevirt-scheduler doctor
      kubevirt-scheduler doctor -n shop -o json
    """  # noqa: D301 (click's mark for a block whose line breaks are kept)
    namespace = namespace or (NAME if pre else "default")
    inspection = Inspection(connect(), read_settings(os.environ), configuration or "", namespace)
    findings = list[Finding]()
    for finding in _check(inspection, calls, pre=pre):
        findings.append(finding)
        if output == "list":  # at once: a later check may wait for an API server that does not answer
            click.echo(_lines(*finding), nl=False)
    if output == "json":
        click.echo(_as_json(findings), nl=False)
    levels = {result.level for _, result in findings}
    if levels & {Level.FAILURE, Level.UNKNOWN}:
        raise click.exceptions.Exit(1 if Level.FAILURE in levels else EXIT_UNKNOWN)


def _check(inspection: Inspection, calls: int | None, *, pre: bool) -> Iterator[Finding]:
    if calls is not None:
        yield "calls", webhook_calls.own_calls(inspection, calls)
        return
    found, checks = None, BEFORE
    if not pre:
        try:
            found = find_installed(inspection.cluster, inspection.configuration)
        except Denied as error:
            yield _not_checked(CONFIGURATION, error)
        else:
            if found is None:
                yield CONFIGURATION, installed_webhook.missing(inspection)
        checks = AFTER if found else {name: check for name, check in BEFORE.items() if name != "rights"}
    if found:
        inspection = replace(inspection, settings=found.webhook.predicting, configuration=found.name)
    for name, check in checks.items():
        try:
            for result in check(inspection, found):
                yield name, result
        except BadInput as error:
            yield _not_checked(name, error)


def _not_checked(name: str, error: BadInput) -> Finding:
    user = "Run the command as a user with this right, for example as a cluster administrator."
    advice = user if isinstance(error, Denied) else "Repeat the command when the API server answers."
    return name, Result(Level.UNKNOWN, f"{name}: not checked: {error}", advice)


def _as_json(findings: Iterable[Finding]) -> str:
    checks = [
        {
            "check": name,
            "level": found.level,
            "finding": found.finding,
            "advice": found.advice,
            "docs": f"{DOCS}#{name}",
        }
        for name, found in findings
    ]
    counts = {level: sum(check["level"] == level for check in checks) for level in Level}
    return as_data({"checks": checks, "summary": counts})


def _lines(name: str, result: Result) -> str:
    advice = f"    {printable(result.advice)} ({DOCS}#{name})\n" if result.advice else ""
    return f"{MARKS[result.level]} {printable(result.finding)}\n{advice}"
