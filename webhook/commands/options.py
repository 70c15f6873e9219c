"""Options that several subcommands share, the connection to the selected cluster, and output for programs.

The commands have no parameters for the options that say which cluster and which VMs: `given` returns their values.
"""

import re
from collections.abc import Callable
from functools import partial, reduce
from pathlib import Path
from typing import Any

import click
import msgspec

from webhook.cluster.client import ClusterClient
from webhook.cluster.credentials import ClusterError
from webhook.commands.completion import complete
from webhook.commands.label_selector import parse_selector
from webhook.placement.objects.fields import is_dns_subdomain
from webhook.reading import kubernetes_yaml
from webhook.reading.documents import BadInput

Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    context.meta[str(parameter.name)] = value
    if context.meta.get("all_namespaces") and (context.meta.get("namespace") or context.meta.get("names")):
        raise click.UsageError("-A cannot be combined with -n or names")


def given(name: str) -> Any:
    """Return the value of a kept option of the command, None if the command doesn't have it."""
    return click.get_current_context().meta.get(name)


kept_option = partial(click.option, expose_value=False, callback=_keep)

vm_names = click.argument(
    "names", nargs=-1, metavar="[NAME]...", shell_complete=complete("vm"), expose_value=False, callback=_keep
)

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

snapshot_option = kept_option(
    "--snapshot",
    "snapshots",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    help="Read the cluster from a file or folder that `kubevirt-scheduler snapshot` wrote, by default all namespaces. "
    "Can be repeated.",
)

all_namespaces_option = kept_option("-A", "--all-namespaces", is_flag=True, help="Select all namespaces.")

namespace_option = kept_option(
    "-n",
    "--namespace",
    metavar="NAME",
    shell_complete=complete("namespace"),
    help="The namespace. Default: that of the kubeconfig context.",
)

selector_option = kept_option(
    "-l",
    "--selector",
    type=parse_selector,
    metavar="SELECTOR",
    help="Select VMs by label, such as app=db,!old.",
)

yes_option = click.option("--yes", is_flag=True, help="Apply the changes. Without --yes, the command only prints them.")
DRY_RUN = "Dry run: nothing changed. To apply the changes, add --yes"


class Seconds(click.IntRange):
    """Whole seconds: a FloatRange accepts `nan`, and a run would never end with `inf`."""

    name = "number of seconds"


SECONDS = Seconds(0, 24 * 60 * 60)


def checked(is_valid: Callable[[str], object], expected: str) -> Callable[[str], str]:
    """Return the type of an option whose values have this form."""

    def check(value: str) -> str:
        if not is_valid(value):
            raise click.BadParameter(f"expected {expected}, got {value!r}")
        return value

    return check


object_name = checked(is_dns_subdomain, "a name")  # without one, the API server would return a list


def output_option(*formats: str, text: str = "The output format.") -> Decorator:
    """Return the option -o with these formats, of which the first is the default."""
    return click.option("-o", "--output", type=click.Choice(formats), default=formats[0], show_default=True, help=text)


def together(*decorators: Decorator) -> Decorator:
    """Return one decorator for several options, in the order of the help."""
    return lambda command: reduce(lambda decorated, decorate: decorate(decorated), reversed(decorators), command)


live_options = together(
    kept_option(
        "--kubeconfig", type=click.Path(), metavar="FILE", help="The kubeconfig file. Default: the same as for kubectl."
    ),
    kept_option(
        "--context",
        metavar="NAME",
        shell_complete=complete("context"),
        help="The kubeconfig context. Default: the current context.",
    ),
    kept_option("--as", "user", metavar="USER", help="Impersonate a user, also a service account."),
    kept_option(
        "--as-group", "groups", metavar="GROUP", multiple=True, help="Impersonate this group, too. Can be repeated."
    ),
)

prometheus_options = together(
    kept_option(
        "--prometheus",
        type=checked(re.compile("https?://").match, "a URL such as http://localhost:9090"),
        metavar="URL",
        help="Read the disk traffic of VMs from this Prometheus, and sort by what crosses the network.",
    ),
    kept_option(
        "--prometheus-token",
        envvar="PROMETHEUS_TOKEN",
        default="",
        metavar="TOKEN",
        help="The bearer token for Prometheus. Default: the environment variable PROMETHEUS_TOKEN.",
    ),
)


scope_options = together(all_namespaces_option, namespace_option, selector_option)
# Of the commands that report on the VMs of a cluster or a snapshot.
fleet_options = together(scope_options, snapshot_option, prometheus_options, live_options)

configuration_option = click.option(
    "--webhook-configuration",
    "configuration",
    type=object_name,
    metavar="NAME",
    help="The MutatingWebhookConfiguration. Default: that of the installed chart.",
)


def connect() -> ClusterClient:
    """Connect to the live cluster of the options. Raises BadInput if there are no usable credentials."""
    if given("groups") and not given("user"):
        raise click.UsageError("--as-group requires --as: the user to impersonate")
    try:
        cluster = ClusterClient.connect(given("kubeconfig"), given("context"))
        return cluster.impersonating(given("user"), given("groups")) if given("user") else cluster
    except ClusterError as error:
        alternative = "" if given("snapshots") is None else ", or --snapshot FILE"
        raise BadInput(f"{str(error).rstrip('.')}; specify --kubeconfig FILE{alternative}") from None


def namespace_and_name(value: str) -> tuple[str, str]:
    """Split the value of an option, NAMESPACE/NAME. Raises BadParameter for any other form."""
    namespace, _, name = value.partition("/")
    if not (namespace and name) or "/" in name:
        raise click.BadParameter(f"expected NAMESPACE/NAME, got {value!r}")
    return namespace, name


def as_data(value: Any, output: str = "json") -> str:
    """Return a value as JSON or YAML, for programs."""
    encoded = msgspec.json.encode(value)
    if output == "yaml":
        return kubernetes_yaml.to_yaml(msgspec.json.decode(encoded))  # without enums
    # JSON needs no escape for these characters, but they control terminals.
    written = msgspec.json.format(encoded, indent=2).decode()
    return re.sub("[\x7f-\x9f]", lambda match: f"\\u{ord(match[0]):04x}", written) + "\n"
