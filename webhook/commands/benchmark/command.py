"""`kubevirt-scheduler benchmark`: measure what a VM gains beside its share-manager, on the user's cluster."""

import click

from webhook.catalog.storage_kinds import LONGHORN_DRIVER, STORAGE_CLASSES, TRUE_VALUES
from webhook.cluster.client import ClusterClient
from webhook.commands.benchmark.comparison import compare, render, sentence
from webhook.commands.benchmark.plan import BESIDE, ELSEWHERE, Plan
from webhook.commands.benchmark.run import BenchmarkRun
from webhook.commands.completion import complete
from webhook.commands.interrupts import interrupts
from webhook.commands.options import DRY_RUN, as_data, connect, live_options, object_name, output_option, yes_option
from webhook.commands.tables import terminal_columns
from webhook.placement.objects.fields import mapping, printable, text
from webhook.reading.api import read_object
from webhook.reading.documents import BadInput
from webhook.reading.installation import find_installed, find_webhook, serving_container

EXIT_LEFT = 1
CACHED = "The disk refuses O_DIRECT, so a node's page cache may have answered reads."


@click.command(short_help="measure what a VM gains beside its share-manager")
@click.option("--storage-class", required=True, type=object_name, metavar="NAME", help="The StorageClass of the claim.")
@click.option(
    "-n",
    "--namespace",
    default="",
    metavar="NAME",
    shell_complete=complete("namespace"),
    help="An existing namespace for the claim and the pods. Default: a temporary one.",
)
@click.option("--image", default="", metavar="IMAGE", help="The image of the pods. Default: that of the webhook.")
@yes_option
@output_option("table", "json")
@live_options
def benchmark(storage_class: str, namespace: str, image: str, yes: bool, output: str) -> None:
    """Measure how long disk operations take beside a share-manager and on another node, within five minutes.

    Without --yes, the command only says what it would create. It deletes everything at the end, also after Ctrl-C.

    Exit status 1: something could not be deleted. 2: the cluster can't run the benchmark.

    \b
    Examples:
      kubevirt-scheduler benchmark --storage-class longhorn
      kubevirt-scheduler benchmark --storage-class longhorn --yes
      kubevirt-scheduler benchmark --storage-class longhorn -n lab --yes -o json
    """  # noqa: D301 (click's mark for a block whose line breaks are kept)
    cluster = connect()
    plan = _plan(cluster, storage_class, namespace, image)
    click.echo(printable(plan.words), err=True)
    if not yes:
        click.echo(DRY_RUN, err=True)
        return
    with interrupts() as presses:
        run = BenchmarkRun(cluster, plan, presses)
        try:
            visits, nodes = run.run()
        finally:
            left = run.delete()
            for path, problem in left.items():
                click.echo(printable(f"Not deleted: {path}: {problem}"), err=True)
    rows = compare(visits[BESIDE], visits[ELSEWHERE])
    words = sentence(rows)
    direct = all(each.direct for side in visits.values() for each in side)
    if output == "json":
        found = {"storageClass": storage_class, "nodes": nodes, "direct": direct, "operations": rows, "text": words}
        click.echo(as_data(found), nl=False)
    else:
        click.echo(f"{render(rows, terminal_columns())}\n{words}" + f"\n{CACHED}" * (not direct))
    if left:
        raise SystemExit(EXIT_LEFT)


def _plan(cluster: ClusterClient, storage_class: str, namespace: str, image: str) -> Plan:
    """Check the StorageClass, and find the image. Raises BadInput."""
    found = read_object(cluster, f"{STORAGE_CLASSES.path}/{storage_class}")
    if found is None:
        raise BadInput(f'StorageClass "{storage_class}" not found; to list all: kubectl get storageclasses')
    if text(found, "provisioner") != LONGHORN_DRIVER or text(found, "parameters", "migratable") in TRUE_VALUES:
        raise BadInput(
            f"StorageClass {storage_class}: its volumes have no share-manager; specify one with the provisioner "
            f"{LONGHORN_DRIVER} and without the parameter migratable"
        )
    installed = None if image else find_installed(cluster)
    webhook = installed.webhook if installed else find_webhook(cluster)
    image = image or text(serving_container(mapping(installed and installed.deployment, "spec", "template")), "image")
    if not image:
        raise BadInput("the webhook is not installed, so its image is unknown; specify --image")
    return Plan(
        storage_class, image, webhook.settings.longhorn_namespace, text(found, "reclaimPolicy") == "Retain", namespace
    )
