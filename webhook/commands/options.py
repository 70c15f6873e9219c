"""Options that several subcommands share, and the functions that open the selected cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import click

from webhook.commands.suggestions import complete_contexts, complete_namespaces
from webhook.fleet import traffic
from webhook.fleet.traffic import Rates
from webhook.fleet.webhook import Webhook
from webhook.placement.objects.fields import printable
from webhook.reading.documents import BadInput

if TYPE_CHECKING:
    from webhook.cluster.client import ClusterClient

Decorator = Callable[[Callable[..., None]], Callable[..., None]]

optional_file_option, file_option = (
    click.option(
        "-f",
        "--filename",
        "file",
        type=click.Path(path_type=Path),
        required=required,
        metavar="FILE",
        help="A YAML or JSON file with Pods, VMs (only inject), Lists or AdmissionReviews. Use - for standard input.",
    )
    for required in (False, True)
)

snapshot_option = click.option(
    "--snapshot",
    "snapshots",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    help="Read the cluster from a file or folder that `kubevirt-scheduler snapshot` wrote. Can be repeated.",
)

namespace_option = click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    shell_complete=complete_namespaces,
    help="The namespace. Default: that of the kubeconfig context.",
)

selector_option = click.option(
    "-l", "--selector", metavar="SELECTOR", default="", help="Select VMs by label, such as app=db,!old."
)


yes_option = click.option("--yes", is_flag=True, help="Apply the changes. Without --yes, the command only prints them.")
DRY_RUN = "Dry run: nothing changed. To apply the changes, add --yes"


def wants_color() -> bool:
    """Return whether to color the output: on a terminal, or as NO_COLOR (https://no-color.org) or FORCE_COLOR say."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or sys.stdout.isatty()


def all_namespaces_option(text: str) -> Decorator:
    """Return the option -A with this help text."""
    return click.option("-A", "--all-namespaces", is_flag=True, help=text)


def output_option(*formats: str, text: str = "The output format.") -> Decorator:
    """Return the option -o with these formats, of which the first is the default."""
    return click.option("-o", "--output", type=click.Choice(formats), default=formats[0], show_default=True, help=text)


def together(*decorators: Decorator) -> Decorator:
    """Return one decorator for several options, in the order of the help."""
    return lambda command: reduce(lambda decorated, decorate: decorate(decorated), reversed(decorators), command)


live_options = together(
    click.option(
        "--kubeconfig", type=click.Path(), metavar="FILE", help="The kubeconfig file. Default: the same as for kubectl."
    ),
    click.option(
        "--context",
        metavar="NAME",
        shell_complete=complete_contexts,
        help="The kubeconfig context. Default: the current context.",
    ),
)

prometheus_options = together(
    click.option(
        "--prometheus",
        metavar="URL",
        default="",
        help="Read the disk traffic of VMs from this Prometheus, and sort by what crosses the network.",
    ),
    click.option(
        "--prometheus-token",
        envvar="PROMETHEUS_TOKEN",
        default="",
        metavar="TOKEN",
        help="The bearer token for Prometheus. Default: the environment variable PROMETHEUS_TOKEN.",
    ),
)


def read_rates(url: str, token: str) -> Rates:
    """Return the disk traffic of all VMs. Without it, warn, and return nothing. Raises UsageError for another URL."""
    if not url:
        return {}
    if not url.startswith(("http://", "https://")):
        raise click.UsageError(f"--prometheus {url}: expected a URL such as http://localhost:9090")
    from webhook.reading.prometheus import PrometheusError, ask  # noqa: PLC0415 (only with this option)

    try:
        found = traffic.read_rates(ask(url, token, traffic.query()))
        problem = "" if found else f"it has no {traffic.EXAMPLE} of the last {traffic.WINDOW}"
    except PrometheusError as error:
        found, problem = {}, str(error)
    if problem:
        click.echo(f"Warning: no traffic from Prometheus {printable(url)}: {problem}", err=True)
    return found


def connect(kubeconfig: str | None, context: str | None) -> ClusterClient:
    """Connect to the live cluster. Raises BadInput if there are no usable credentials."""
    # Imported here: the Kubernetes client takes a second to import, and commands that read files don't need it.
    from webhook.cluster.client import ClusterClient, ClusterError  # noqa: PLC0415

    try:
        return ClusterClient.connect(kubeconfig, context)
    except ClusterError as error:
        context_of_command = click.get_current_context(silent=True)
        parameters = context_of_command.command.params if context_of_command else []
        alternative = ", or --snapshot FILE" if any(each.name == "snapshots" for each in parameters) else ""
        raise BadInput(f"{str(error).rstrip('.')}; specify --kubeconfig FILE{alternative}") from None


def namespace_and_name(value: str, option: str) -> tuple[str, str]:
    """Split the value of an option, NAMESPACE/NAME. Raises BadParameter for any other form."""
    namespace, _, name = value.partition("/")
    if not (namespace and name) or "/" in name:
        raise click.BadParameter(f"expected NAMESPACE/NAME, got {value!r}", param_hint=option)
    return namespace, name


def live_webhook(cluster: ClusterClient) -> Webhook:
    """Find the webhook of a live cluster. Raises BadInput, and SettingsError for the environment variables."""
    from webhook.reading.installation import find_webhook  # noqa: PLC0415 (imports the Kubernetes client)

    return find_webhook(cluster, os.environ)


def show_settings(webhook: Webhook) -> None:
    """Print which settings a command uses, on standard error."""
    if webhook.sentence:
        click.echo(printable(webhook.sentence), err=True)
