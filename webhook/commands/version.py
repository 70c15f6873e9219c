"""`kubevirt-scheduler version`: print the versions of this command and of the installed webhook."""

import click

from webhook import __version__
from webhook.commands.options import as_data, connect, live_options, output_option
from webhook.placement.objects.fields import printable
from webhook.reading.installation import find_webhook


@click.command(short_help="print the versions of this command and of the installed webhook")
@output_option("text", "json")
@live_options
def version(output: str) -> None:
    """Print the versions of this command and of the webhook in the cluster.

    \b
    Examples:
      kubevirt-scheduler version
      kubevirt-scheduler version -o json
    """  # noqa: D301 (click's mark for a block whose line breaks are kept)
    if output == "text":
        click.echo(f"command   {__version__}")  # before the cluster is read, which may fail
    webhook = find_webhook(connect())
    if output == "json":
        found = webhook.as_json()
        known = {key: found[key] for key in ("version", "activity", "source", "detail")}
        click.echo(as_data({"command": __version__, "webhook": known}), nl=False)
        return
    details = ", ".join(each for each in (webhook.source, webhook.activity.value, webhook.detail) if each)
    click.echo(printable(f"webhook   {webhook.version or 'unknown'} ({details})"))
