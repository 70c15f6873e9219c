"""`kubevirt-scheduler snapshot`: write the objects that decisions and the report read to a file."""

import os
import sys
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkstemp

import click
import msgspec

from webhook.commands.options import connect, live_options
from webhook.placement.objects.fields import JsonObject, printable
from webhook.reading.documents import BadInput, display_name
from webhook.reading.export import description, export
from webhook.reading.installation import find_webhook

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
def snapshot(output: Path) -> None:
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
    cluster = connect()
    omitted = list[tuple[str, str, bool]]()
    webhook = find_webhook(cluster)
    time = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    settings = webhook.settings
    objects = export(
        cluster, settings.longhorn_namespace, settings.opt_in_annotations, lambda *each: omitted.append(each)
    )
    content, counts = _list_of(description(cluster, webhook, time), objects)
    _write(output, content)
    for plural, cause, _ in omitted:
        click.echo(printable(f"Warning: the snapshot contains no {plural}: {cause}"), err=True)
    counted = ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "no objects"
    click.echo(f"{'standard output' if output == STANDARD_OUTPUT else display_name(output)}: {counted}", err=True)
    sys.exit(any(denied for *_, denied in omitted))


def _list_of(first: JsonObject, objects: Iterable[JsonObject]) -> tuple[bytes, Counter[str]]:
    """Return a List as JSON, with one object per line, and the number of objects by kind. `first` is not counted."""
    lines = [msgspec.json.encode(first)]
    counts = Counter[str]()
    for item in objects:
        counts[item["kind"]] += 1
        lines.append(msgspec.json.encode(item))
    return b'{"apiVersion":"v1","kind":"List","items":[\n' + b",\n".join(lines) + b"\n]}\n", counts


def _write(path: Path, content: bytes) -> None:
    """Write a file that only the user can read, or into a device or a pipe. A failure leaves an old file as it was."""
    if path == STANDARD_OUTPUT:
        click.echo(content, nl=False)
        return
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        target = Path(os.path.realpath(path))  # replaces the file that a symbolic link leads to, not the link
        descriptor, partial = mkstemp(prefix=".snapshot-", dir=target.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            Path(partial).replace(target)
        finally:  # also after Ctrl-C
            Path(partial).unlink(missing_ok=True)
    except OSError as error:
        raise BadInput(f"{display_name(path)}: {error.strerror}; specify a writable file with enough space") from None
