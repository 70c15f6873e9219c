"""Print the status of the certificates: as a page with tables, or as JSON."""

import shutil
from datetime import datetime, timedelta

import click

from certs.authority import Certificate
from certs.health import Status
from webhook.commands.tables import render_table
from webhook.placement.objects.fields import printable

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
    certificates = [
        (what, cert.subject, format_time(cert.not_after), str(_days_left(cert, now)), ", ".join(cert.names))
        for what, cert in report.certificates
    ]
    webhooks = [(name, ca_bundle, "yes" if trusts else "NO") for name, (ca_bundle, trusts) in report.webhooks.items()]
    columns = min(shutil.get_terminal_size((MAX_WIDTH, 24)).columns, MAX_WIDTH)
    heads = ("CERTIFICATE", "SUBJECT", "NOT AFTER", "DAYS LEFT", "NAMES")
    parts = [
        f"Secret {printable(secret)}\n",
        render_table(heads, certificates, columns=columns, prose=1),
        render_table(("WEBHOOK", "CABUNDLE", "TRUSTS THE CERTIFICATE"), webhooks, columns=columns),
    ]
    if report.next:
        parts.append(f"Next: {report.next.step}, {report.next.why}: {format_time(report.next.due)}\n")
    if report.problem:
        problem = f"Problem: {printable(report.problem)}"
        parts.append(f"{click.style(problem, fg='red') if colored else problem}\n")
    return "\n".join(filter(None, parts))
