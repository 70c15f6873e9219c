"""Print the status of the certificates: as a page with tables, or as JSON."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from io import StringIO
from typing import TYPE_CHECKING

from certs.authority import Certificate
from certs.health import Status
from webhook.placement.objects.fields import printable

if TYPE_CHECKING:
    from rich.console import Console

MAX_WIDTH = 140  # columns: fits a Service's DNS names and the dates in one row


def format_time(time: datetime) -> str:
    """Return a time in UTC, to the second."""
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"


def _days_left(certificate: Certificate, now: datetime) -> float:
    return round((certificate.not_after - now) / timedelta(days=1), 1)


def status_as_json(secret: str, report: Status, now: datetime) -> dict[str, object]:
    """Return the status as JSON."""
    return {
        "secret": secret,
        "problem": report.problem,
        "certificates": [
            {
                "what": what,
                "subject": certificate.subject,
                "names": list(certificate.names),
                "notBefore": certificate.not_before.isoformat(),
                "notAfter": certificate.not_after.isoformat(),
                "daysLeft": _days_left(certificate, now),
                "serial": f"{certificate.serial:x}",
                "fingerprint": certificate.fingerprint,
            }
            for what, certificate in report.certificates
        ],
        "next": report.next and {"step": report.next.step, "why": report.next.why, "due": report.next.due.isoformat()},
        "webhooks": [
            {"name": name, "caBundle": ca_bundle, "trusted": trusts}
            for name, (ca_bundle, trusts) in report.webhooks.items()
        ],
    }


def render_status(secret: str, report: Status, now: datetime, *, colored: bool) -> str:
    """Return the status as a page."""
    # Imported here: `kubevirt-scheduler --help` imports this module, and only `status` needs rich.
    from rich.console import Console  # noqa: PLC0415

    output = StringIO()
    width = min(shutil.get_terminal_size((MAX_WIDTH, 24)).columns, MAX_WIDTH)
    console = Console(file=output, width=width, no_color=not colored, force_terminal=colored, highlight=False)
    console.print(f"Secret {printable(secret)}", style="bold", markup=False)
    certificates = [
        (what, cert.subject, "\n".join(cert.names), format_time(cert.not_after), str(_days_left(cert, now)))
        for what, cert in report.certificates
    ]
    webhooks = [(name, ca_bundle, "yes" if trusts else "NO") for name, (ca_bundle, trusts) in report.webhooks.items()]
    _print_table(console, ("certificate", "subject", "names", "not after", "days left"), certificates)
    _print_table(console, ("webhook", "caBundle", "trusts the certificate"), webhooks)
    if report.next:
        console.print(f"Next: {report.next.step}, {report.next.why}: {format_time(report.next.due)}", markup=False)
    if report.problem:
        console.print(f"Problem: {printable(report.problem)}", style="red", markup=False)
    return "".join(f"{line.rstrip()}\n" for line in output.getvalue().split("\n")[:-1])


def _print_table(console: Console, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415 (only `status` needs it)
    from rich.table import Column, Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(*(Column(heading, overflow="fold") for heading in headings), box=SIMPLE_HEAD)
    for row in rows:
        # A certificate may contain control characters, which a terminal would interpret.
        table.add_row(*(Text("\n".join(map(printable, cell.split("\n")))) for cell in row))
    console.print(table)
