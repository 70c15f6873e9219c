"""`kubevirt-scheduler certs`: how the certificates are doing, and what a person may do about them."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import TYPE_CHECKING

import click

from certs import by_hand, health
from certs.authority import Certificate, read
from certs.cluster import ASKED_AGAIN, ApiError, CertificateError, CertificateObjects
from certs.health import Status
from certs.renewal import Policy
from webhook.cluster.documents import BadInput, printable
from webhook.commands.options import color_option, live_options, namespace_and_name, wants_color

if TYPE_CHECKING:
    from rich.console import Console

NAME = "kubevirt-scheduler"
SECRET = f"{NAME}/{NAME}-tls"
WIDEST = 140  # columns: a name of a Service beside its dates


@click.group(short_help="show and renew the certificates that the API server trusts")
def certs() -> None:
    """Show and renew the certificates that the API server trusts.

    The replicas look after them by themselves: these commands show how, and do at once what they would do later.

    \b
    Examples:
      kubevirt-scheduler certs status
      kubevirt-scheduler certs rotate-ca --dry-run
    """  # noqa: D301 (click's mark of a block that keeps its lines)


def _where(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option(
            "--webhook-configuration",
            "configuration",
            default=NAME,
            show_default=True,
            metavar="NAME",
            help="The MutatingWebhookConfiguration whose caBundle is looked at.",
        ),
        click.option(
            "--secret", default=SECRET, show_default=True, metavar="NAMESPACE/NAME", help="Where the certificates are."
        ),
    ):
        command = option(command)
    return live_options(command)


@certs.command(short_help="show the certificates, what comes next, and who trusts them")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="For a person or for a program.",
)
@color_option
@_where
def status(output: str, color: bool | None, secret: str, configuration: str, **live: str | None) -> None:
    """Show the certificates of a Secret, what comes next and when, and which webhooks trust them.

    A Secret of cert-manager, or one that you made, is shown as well.

    \b
    Exit status:
      0  each webhook trusts the serving certificate, and there is no problem
      1  one does not, or there is a problem; the page says which
      2  the Secret can't be read
    """  # noqa: D301 (click's mark of a block that keeps its lines)
    now = datetime.now(UTC)
    with _told():
        found = health.status(_place(secret, configuration, live), now, Policy())
    if output == "json":
        click.echo(json.dumps(_document(secret, found, now), indent=2))
    else:
        click.echo(_page(secret, found, now, colored=wants_color(color)), nl=False)
    if found.problem or not all(trusts for _, trusts in found.webhooks.values()):
        raise click.exceptions.Exit(1)


@certs.command(short_help="issue a new serving certificate now")
@_where
def renew(secret: str, configuration: str, **live: str | None) -> None:
    """Issue a new serving certificate now, under the same CA. The replicas serve it within seconds."""
    with _told():
        passed = by_hand.renew(_place(secret, configuration, live), Policy(), _now, time.sleep)
    end = read(passed.bundle.leaf.certificate).not_after
    click.echo(f"a new serving certificate is in Secret {secret}; it ends on {_moment(end)}")
    if passed.trouble:
        click.echo(printable(f"Warning: {passed.trouble}"), err=True)


@certs.command("rotate-ca", short_help="replace the CA, step by step")
@click.option("--dry-run", is_flag=True, help="Tell each step and its time, and write nothing.")
@click.option(
    "--drop-old",
    is_flag=True,
    help="Trust the old CA no more a minute after the new one signs: where its key is in wrong hands. A replica that "
    "has not seen its new certificate by then is not called until it has.",
)
@click.option(
    "--spread",
    type=click.IntRange(0),
    default=round(Policy().spread.total_seconds()),
    show_default=True,
    metavar="SECONDS",
    help="How long every API server gets to see the new CA before it signs. Not longer than the replicas wait: then "
    "they sign.",
)
@_where
def rotate_ca(dry_run: bool, drop_old: bool, spread: int, secret: str, configuration: str, **live: str | None) -> None:
    """Replace the CA: trust both, wait until every API server does, sign with the new one, drop the old one.

    It may be interrupted at any time: the replicas go on from there, and so does this command when it is called again.
    """
    place, policy = _place(secret, configuration, live), Policy(spread=timedelta(seconds=spread))
    with _told():
        if dry_run:
            for step in by_hand.planned(place, _now(), policy, drop_old=drop_old):
                click.echo(f"{_moment(step.due)}  {step.step}: {step.why}")
            return
        try:
            for line in by_hand.rotate(place, policy, _now, time.sleep, drop_old=drop_old):
                click.echo(line)
        except KeyboardInterrupt:
            click.echo("interrupted; the replicas go on from here, and so does this command", err=True)
            raise click.exceptions.Exit(130) from None


def _place(secret: str, configuration: str, live: dict[str, str | None]) -> CertificateObjects:
    named = namespace_and_name(secret, "--secret")
    from webhook.cluster.client import ClusterClient  # noqa: PLC0415 (its import takes a second, which --help need not wait for)

    try:
        return CertificateObjects(ClusterClient.connect(**live), named, configuration)
    except ApiError as error:
        raise BadInput(f"{str(error).rstrip('.')}; give --kubeconfig FILE") from None


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except CertificateError as trouble:
        raise BadInput(str(trouble).removesuffix(ASKED_AGAIN)) from None


def _now() -> datetime:
    return datetime.now(UTC)


def _moment(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"


def _days_left(certificate: Certificate, now: datetime) -> float:
    return round((certificate.not_after - now) / timedelta(days=1), 1)


def _document(secret: str, found: Status, now: datetime) -> dict[str, object]:
    return {
        "secret": secret,
        "problem": found.problem,
        "certificates": [
            {
                "what": what,
                "subject": one.subject,
                "names": list(one.names),
                "notBefore": one.not_before.isoformat(),
                "notAfter": one.not_after.isoformat(),
                "daysLeft": _days_left(one, now),
                "serial": f"{one.serial:x}",
                "fingerprint": one.fingerprint,
            }
            for what, one in found.certificates
        ],
        "next": found.next and {"step": found.next.step, "why": found.next.why, "due": found.next.due.isoformat()},
        "webhooks": [
            {"name": name, "caBundle": verdict, "trusted": trusts} for name, (verdict, trusts) in found.webhooks.items()
        ],
    }


def _page(secret: str, found: Status, now: datetime, *, colored: bool) -> str:
    # Here, because no other command needs it, and --help of all imports this file.
    from rich.console import Console  # noqa: PLC0415

    page = StringIO()
    width = min(shutil.get_terminal_size((WIDEST, 24)).columns, WIDEST)
    console = Console(file=page, width=width, no_color=not colored, force_terminal=colored, highlight=False)
    console.print(f"Secret {printable(secret)}", style="bold", markup=False)
    certificates = [
        (what, one.subject, "\n".join(one.names), _moment(one.not_after), str(_days_left(one, now)))
        for what, one in found.certificates
    ]
    webhooks = [(name, verdict, "yes" if trusts else "NO") for name, (verdict, trusts) in found.webhooks.items()]
    _print_table(console, ("what", "subject", "names", "not after", "days left"), certificates)
    _print_table(console, ("webhook", "its caBundle", "trusts the certificate"), webhooks)
    if found.next:
        console.print(f"Next: {found.next.step}, {found.next.why}: {_moment(found.next.due)}", markup=False)
    if found.problem:
        console.print(f"Problem: {printable(found.problem)}", style="red", markup=False)
    return "".join(f"{line.rstrip()}\n" for line in page.getvalue().split("\n")[:-1])


def _print_table(console: Console, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415 (as above)
    from rich.table import Column, Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(*(Column(head, overflow="fold") for head in heads), box=SIMPLE_HEAD)
    for row in rows:
        # A certificate may hold anything, and a terminal obeys some of it.
        table.add_row(*(Text("\n".join(map(printable, cell.split("\n")))) for cell in row))
    console.print(table)
