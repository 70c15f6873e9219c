"""`kubevirt-scheduler doctor`: check the cluster before an installation, and the installed webhook."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

import click
import msgspec

from webhook.commands.options import connect, live_options, output_option, wants_color
from webhook.placement.objects.fields import JsonObject, printable
from webhook.placement.settings import read_settings

if TYPE_CHECKING:
    from webhook.commands.doctor.result import Result

NAME = "kubevirt-scheduler"
DOCS = "docs/reference/doctor.md"

EXIT_UNKNOWN = 2
Finding: TypeAlias = "tuple[str, Result]"


@click.command(short_help="check the cluster and the installed webhook")
@click.option("--pre", is_flag=True, help="Check the cluster before you install the chart.")
@click.option(
    "--calls",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="Check only whether the API server calls the webhook for a pod that you create, and retry for this time.",
)
@click.option(
    "-n",
    "--namespace",
    default="default",
    show_default=True,
    metavar="NAME",
    help="The namespace in which to create a VM's pod as a dry run.",
)
@click.option(
    "--release-namespace",
    default=NAME,
    show_default=True,
    metavar="NAME",
    help="With --pre: the namespace in which you will install the chart.",
)
@click.option(
    "--webhook-configuration",
    "configuration",
    default=NAME,
    show_default=True,
    metavar="NAME",
    help="The MutatingWebhookConfiguration of the installed chart.",
)
@output_option("list", "json")
@live_options
def doctor(  # noqa: PLR0913, PLR0917 (options)
    pre: bool,
    calls: float | None,
    namespace: str,
    release_namespace: str,
    configuration: str,
    output: str,
    **live: str | None,
) -> None:
    """Check the cluster and the installed webhook, and print problems with their remedies.

    The command changes nothing. With --calls, you need only
    the right to create pods; `helm test` runs it.

    \b
    Exit status:
      0  no check failed; warnings are possible
      1  a check failed
      2  no check failed, but you lack the right for one; or the cluster can't be read

    \b
    Examples:
      kubevirt-scheduler doctor --pre
      kubevirt-scheduler doctor
      kubevirt-scheduler doctor -n shop -o json
      kubevirt-scheduler doctor --calls 0
    """  # noqa: D301 (click's mark for a block whose line breaks are kept)
    # Imported here: the Kubernetes client takes a second to import, and --help doesn't need it.
    from webhook.commands.doctor.inspection import Inspection  # noqa: PLC0415
    from webhook.commands.doctor.result import Level  # noqa: PLC0415
    from webhook.commands.doctor.run import run_after, run_before, run_own_calls  # noqa: PLC0415

    settings = read_settings(os.environ)
    inspection = Inspection(connect(**live), settings, configuration, namespace, release_namespace)
    if calls is not None:
        findings = list(run_own_calls(inspection, calls))
    else:
        findings = list(run_before(inspection) if pre else run_after(inspection))
    if output == "json":
        click.echo(_as_json(findings))
    else:
        click.echo("".join(_lines(findings, colored=wants_color())).encode(), nl=False)
    levels = {result.level for _, result in findings}
    if levels & {Level.FAILURE, Level.UNKNOWN}:
        raise click.exceptions.Exit(1 if Level.FAILURE in levels else EXIT_UNKNOWN)


def _as_json(findings: Iterable[Finding]) -> str:
    checks: list[JsonObject] = [
        {
            "check": name,
            "level": result.level.value,
            "finding": result.finding,
            "advice": result.advice,
            "docs": f"{DOCS}#{name}",
        }
        for name, result in findings
    ]
    counts = {
        level: sum(check["level"] == level for check in checks) for level in ("ok", "warning", "failure", "unknown")
    }
    return msgspec.json.format(msgspec.json.encode({"checks": checks, "summary": counts}), indent=2).decode()


def _lines(findings: Iterable[Finding], *, colored: bool) -> Iterator[str]:
    marks = {"ok": ("✓", "green"), "warning": ("‼", "yellow"), "unknown": ("?", "yellow"), "failure": ("✗", "red")}
    for name, result in findings:
        mark, color = marks[result.level.value]
        shown = click.style(mark, fg=color) if colored else mark
        yield f"{shown} {printable(result.finding)}\n"
        if result.advice:
            yield f"    {printable(result.advice)} ({DOCS}#{name})\n"
