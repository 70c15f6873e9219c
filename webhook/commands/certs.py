"""`kubevirt-scheduler certs`: show the certificates, and renew them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial

import click

from certs.authority import Certificate
from certs.cluster import CertificateObjects
from certs.controller import force, read_bundle
from certs.rotation import Change, Step, apply_step, drop_old, plan
from certs.secret import Cause, CertificateError
from certs.status import Status, read_status
from webhook.commands.options import (
    DRY_RUN,
    as_data,
    configuration_option,
    connect,
    live_options,
    namespace_and_name,
    output_option,
    together,
    yes_option,
)
from webhook.commands.tables import render_table
from webhook.placement.objects.facts import Key
from webhook.placement.objects.fields import printable
from webhook.reading.api import Denied
from webhook.reading.documents import BadInput
from webhook.reading.installation import find_installed

NAME = "kubevirt-scheduler"
DEFAULT_SECRET = NAME, f"{NAME}-tls"


@click.group(short_help="show and renew the webhook's certificates")
def certs() -> None:
    """Show and renew the webhook's certificates.

    The replicas renew the certificates automatically. Use these commands to check them, or to renew them now.

    \b
    Examples:
      kubevirt-scheduler certs status
      kubevirt-scheduler certs renew
    """  # noqa: D301 (click's mark for a block whose line breaks are kept)


_certificate_options = together(
    click.option(
        "--secret",
        type=namespace_and_name,
        metavar="NAMESPACE/NAME",
        help="The Secret with the certificates. Default: that of the installed chart.",
    ),
    configuration_option,
    live_options,
)


@certs.command(short_help="show the certificates, the next renewal, and the webhooks that trust them")
@output_option("table", "json")
@_certificate_options
def status(output: str, secret: Key | None, configuration: str | None) -> None:
    """Show the certificates in a Secret, the time of the next renewal, and the webhooks that trust the certificates.

    The command also shows a Secret that cert-manager or you created.

    \b
    Exit status:
      0  all webhooks trust the serving certificate, and there is no problem
      1  a webhook does not trust the certificate, or there is a problem; the output names it
      2  the Secret can't be read

    \b
    Examples:
      kubevirt-scheduler certs status
      kubevirt-scheduler certs status -o json
    """  # noqa: D301 (click's mark for a block whose line breaks are kept)
    now = datetime.now(UTC)
    objects, secret = _find_objects(secret, configuration)
    with _certificate_errors_as_bad_input():
        report = read_status(objects, now)
    shown = as_data(_status_as_json(secret, report, now)) if output == "json" else _render_status(secret, report, now)
    click.echo(shown, nl=False)
    if report.problem or report.difference or not all(report.webhooks.values()):
        raise click.exceptions.Exit(1)


@certs.command(short_help="replace the serving certificate, step by step")
@yes_option
@click.option(
    "--drop-old",
    "at_once",
    is_flag=True,
    help="For a stolen key: the new certificate is served at once, and the old one is trusted for one more minute. If "
    "a replica doesn't serve the new one by then, calls to it fail until it does.",
)
@_certificate_options
def renew(yes: bool, at_once: bool, secret: Key | None, configuration: str | None) -> None:
    """Replace the serving certificate: publish the next one, wait for all API servers, serve it, then drop the old one.

    The command prints each step and its time. With --yes, it takes the first step, and the replicas take the others;
    `certs status` shows the next one.

    \b
    Examples:
      kubevirt-scheduler certs renew
      kubevirt-scheduler certs renew --drop-old --yes
    """  # noqa: D301 (click's mark for a block whose line breaks are kept)
    objects, _ = _find_objects(secret, configuration)
    with _certificate_errors_as_bad_input():
        bundle = read_bundle(objects)
        objects.read_configuration()  # without it, the replicas could not continue
        first: Change | None = partial(apply_step, Step.START)
        if at_once:
            first = drop_old
        elif bundle.next:  # the replicas renew already
            first = None
        steps = list(plan(bundle, first, _now()))
        if yes and first:
            _force(objects, first)
    for planned in steps:
        click.echo(f"{_format_time(planned.due)}  {planned.step}: {planned.why}")
    if not yes:
        click.echo(DRY_RUN, err=True)


def _find_objects(secret: Key | None, configuration: str | None) -> tuple[CertificateObjects, Key]:
    """Return the objects of the options, by default those of the installed chart, and the Secret's key."""
    cluster = connect()
    found = None
    if not (secret and configuration):
        with suppress(Denied):  # the rights on the two objects are enough
            found = find_installed(cluster, configuration)
    secret = secret or (found and found.secret) or DEFAULT_SECRET
    return CertificateObjects(cluster, secret, configuration or (found.name if found else NAME)), secret


def _force(objects: CertificateObjects, change: Change) -> None:
    result = force(objects, change, _now, time.sleep)
    error = result.configuration_error
    if error and error.cause is not Cause.CONFLICT:  # a replica saw the new Secret first, and publishes it
        click.echo(printable(f"Warning: {error}"), err=True)


@contextmanager
def _certificate_errors_as_bad_input() -> Iterator[None]:
    try:
        yield
    except CertificateError as error:
        raise BadInput(str(error)) from None


def _now() -> datetime:
    return datetime.now(UTC)


def _format_time(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"


def _days_left(certificate: Certificate, now: datetime) -> float:
    return round((certificate.not_after - now) / timedelta(days=1), 1)


def _status_as_json(secret: Key, report: Status, now: datetime) -> dict[str, object]:
    return {
        "secret": "/".join(secret),
        "problem": report.problem,
        "difference": report.difference,
        "certificates": [
            {
                "what": what,
                "subject": certificate.subject,
                "names": list(certificate.names),
                "notBefore": certificate.not_before.isoformat(),
                "notAfter": certificate.not_after.isoformat(),
                "daysLeft": _days_left(certificate, now),
                "fingerprint": certificate.fingerprint,
            }
            for what, certificate in report.certificates
        ],
        "next": report.next and {"step": report.next.step, "why": report.next.why, "due": report.next.due.isoformat()},
        "webhooks": [{"name": name, "trusted": trusts} for name, trusts in report.webhooks.items()],
    }


def _render_status(secret: Key, report: Status, now: datetime) -> str:
    certificates = [
        (what, cert.subject, _format_time(cert.not_after), str(_days_left(cert, now)), ", ".join(cert.names))
        for what, cert in report.certificates
    ]
    webhooks = [(name, "yes" if trusts else "NO") for name, trusts in report.webhooks.items()]
    heads = ("CERTIFICATE", "SUBJECT", "NOT AFTER", "DAYS LEFT", "NAMES")
    parts = [
        f"Secret {printable('/'.join(secret))}\n",
        render_table(heads, certificates),
        render_table(("WEBHOOK", "TRUSTS THE CERTIFICATE"), webhooks),
    ]
    if report.next:
        parts.append(f"Next: {report.next.step}, {report.next.why}: {_format_time(report.next.due)}\n")
    problems = filter(None, (report.problem, report.difference))
    parts += [click.style(f"Problem: {printable(each)}\n", fg="red") for each in problems]
    return "\n".join(filter(None, parts))
