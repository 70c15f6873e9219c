"""`kubevirt-scheduler snapshot`: write the objects that decisions and the report read to a file."""

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import click
import msgspec

from webhook.commands.fleet_source import utc_now
from webhook.commands.options import connect, live_options, live_webhook
from webhook.placement.objects.fields import JsonObject, printable
from webhook.reading.documents import BadInput, display_name

STANDARD_OUTPUT = Path("-")


@click.command(short_help="write the objects that decisions read to a file, without secrets")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=STANDARD_OUTPUT,
    metavar="FILE",
    help="The file to write. Only you can read it. Default: standard output.",
)
@live_options
def snapshot(output: Path, **live: str | None) -> None:
    """Write the cluster's claims, PVs, nodes, pods and other objects that decisions read to a file.

    The file contains only the fields that decisions and the report read. It contains no environment variables,
    arguments, cloud-init data, managedFields, or annotations of other programs. `inject`, `explain` and `report` read
    the file with --snapshot.

    Exit status 1: the file lacks a kind because you may not list it.

    \b
    Examples:
      kubevirt-scheduler snapshot -o cluster.json
      kubevirt-scheduler snapshot --context production > cluster.json
    """  # noqa: D301 (click's mark for a block whose line breaks are kept)
    from webhook.reading.export import Omission, description, export  # noqa: PLC0415 (imports the Kubernetes client, which takes a second)

    cluster, omissions = connect(**live), list[Omission]()
    webhook, time = live_webhook(cluster), utc_now()
    settings = webhook.settings
    objects = export(cluster, settings.longhorn_namespace, settings.opt_in_annotations, omissions.append)
    content, counts = _list_of(description(cluster, webhook, time), objects)
    _write(output, content)
    for omission in omissions:
        click.echo(printable(f"Warning: the snapshot contains no {omission.plural}: {omission.cause}"), err=True)
    counted = ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "no objects"
    click.echo(f"{'standard output' if output == STANDARD_OUTPUT else display_name(output)}: {counted}", err=True)
    sys.exit(any(omission.denied for omission in omissions))


def _list_of(first: JsonObject, objects: Iterable[JsonObject]) -> tuple[bytes, Counter[str]]:
    """Return a List as JSON, with one object per line, and the number of objects by kind. `first` is not counted."""
    lines, counts = [msgspec.json.encode(first)], Counter[str]()
    for item in objects:
        counts[item["kind"]] += 1
        lines.append(msgspec.json.encode(item))
    return b'{"apiVersion":"v1","kind":"List","items":[\n' + b",\n".join(lines) + b"\n]}\n", counts


def _write(path: Path, content: bytes) -> None:
    if path == STANDARD_OUTPUT:
        click.echo(content, nl=False)
        return
    target = path.resolve()  # replaces the file that a symbolic link leads to, not the link
    try:
        if target.exists() and not target.is_file():  # a device or a pipe, which must not be replaced
            target.write_bytes(content)
        else:
            _replace(target, content)
    except OSError as error:
        raise BadInput(f"{display_name(path)}: {error.strerror}; specify a writable file") from None


def _replace(target: Path, content: bytes) -> None:
    """Write a file atomically: a reader sees the old or the new content, and only the user can read it."""
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)  # mode 0600
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
