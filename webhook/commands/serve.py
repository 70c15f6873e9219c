"""`kubevirt-scheduler serve`: respond to the API server's admission reviews over TLS."""

import faulthandler
import os
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from certs.authority import BadCertificate, canonical_names, issue
from certs.controller import CertificateController
from certs.files import Folder, InMemory, UnusableCertificate
from certs.secret import Bundle
from certs.serving import ServingCertificate, client_ca
from webhook.cluster.backend import LiveBackend, from_snapshot
from webhook.cluster.server_clock import ServerClock
from webhook.commands.options import connect, given, kept_option, live_options, namespace_and_name, snapshot_option
from webhook.placement.settings import read_settings
from webhook.reading import snapshot
from webhook.reading.documents import BadInput
from webhook.serving.app import PROBE_PATHS, REVIEW_PATHS, Health, create_app, review_shortcut
from webhook.serving.review.reviewer import Reviewer
from webhook.serving.server import Server
from webhook.serving.telemetry import logs
from webhook.serving.telemetry.collectors import certificate_metrics, cluster_metrics, fleet_metrics, log_metrics
from webhook.serving.telemetry.logs import LogLimit, LogStream, UncaughtErrors
from webhook.serving.telemetry.metrics import Metrics
from webhook.serving.worker.connection import RequestHandler
from webhook.serving.worker.listeners import AUTO, CannotListen, listen
from webhook.serving.worker.wsgi import responder

PORT = click.IntRange(0, 65535)
ONE_RUN = timedelta(days=365)  # the lifetime of a certificate that nothing renews
STDOUT, STDERR = 1, 2


def certificate_problems(
    certificate: ServingCertificate, controller: CertificateController, clock: ServerClock
) -> dict[str, str]:
    """Return the certificate problems that don't stop the server, by component. Empty if there are none."""
    problems = {"serving certificate": certificate.problem, "certificates": controller.problem}
    problems["clock"] = clock.problem()
    problems["client CA"] = certificate.client_ca.problem if certificate.client_ca else ""
    return {component: problem for component, problem in problems.items() if problem}


def tls_names() -> tuple[str, ...]:
    """Return the names of --tls-name. Raises UsageError for an invalid name, and for contradictory TLS options."""
    folder = given("tls_dir")
    secret = given("tls_secret")
    if secret and folder:
        raise click.UsageError("specify either --tls-secret or --tls-dir, not both")
    if secret and not given("tls_names"):
        raise click.UsageError("--tls-secret requires --tls-name: the name by which the API server calls it")
    if given("webhook_configuration") and not (secret or folder):
        raise click.UsageError(
            "--webhook-configuration requires --tls-secret or --tls-dir: a self-signed CA is not published"
        )
    try:
        return canonical_names(given("tls_names"))
    except BadCertificate as error:
        raise click.UsageError(f"--tls-name: {error}") from None


def certificate_of(
    bind: str, names: tuple[str, ...], clock: ServerClock
) -> tuple[ServingCertificate, CertificateController]:
    """Return the serving certificate and its controller. Raises UnusableCertificate.

    A certificate for this run is valid for the address `bind`, too.
    """
    folder = given("tls_dir")
    secret = given("tls_secret")
    configuration = given("webhook_configuration")
    served: Folder | InMemory = Folder(folder) if folder else InMemory()
    if not (folder or secret):
        addresses = tuple(dict.fromkeys(("localhost", "127.0.0.1", "::1", *((bind,) if bind != AUTO else ()))))
        served = InMemory(Bundle(issue(addresses, datetime.now(UTC), ONE_RUN)))
    api: Any = replace(connect(), clock=clock) if secret or configuration else None
    controller = CertificateController(
        api, secret=secret, configuration=configuration, names=names, served=served, now=clock.now
    )
    trusted = client_ca(given("client_ca_file")) if given("client_ca_file") else None
    return ServingCertificate(served, client_ca=trusted), controller


def open_closed_outputs() -> None:
    """Send an output that the caller has closed to /dev/null. Otherwise, a socket would get its number, and the log."""
    for descriptor in STDOUT, STDERR:
        try:
            os.fstat(descriptor)
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            if null != descriptor:  # a lower number was free, too
                os.dup2(null, descriptor)
                os.close(null)


@click.command(short_help="run the webhook server")
@snapshot_option
@click.option(
    "--bind",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="The address to listen on; `auto` for all of the machine, of IPv6 too if it has that.",
)
@click.option("--https-port", type=PORT, default=8443, show_default=True, help="The TLS port. 0 picks a free port.")
@click.option(
    "--http-port",
    type=PORT,
    default=8080,
    show_default=True,
    help="The plain HTTP port for /healthz, /readyz and /metrics. 0 picks a free port.",
)
@click.option(
    "--lease",
    type=namespace_and_name,
    metavar="NAMESPACE/NAME",
    help="The Lease that elects the replica that releases VMs whose pin can't hold. Default: no replica does.",
)
@kept_option(
    "--tls-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="A folder with tls.crt, tls.key and ca.crt. The server reloads the files when they change. Default: "
    "a self-signed certificate for this run, valid for a year.",
)
@kept_option(
    "--tls-secret",
    type=namespace_and_name,
    metavar="NAMESPACE/NAME",
    help="Instead of --tls-dir: a Secret in which the replicas create and renew a certificate.",
)
@kept_option(
    "--tls-name",
    "tls_names",
    multiple=True,
    metavar="DNS",
    help="A DNS name of the webhook for the certificate in the Secret. Can be repeated.",
)
@kept_option(
    "--webhook-configuration",
    metavar="NAME",
    help="The MutatingWebhookConfiguration whose caBundle the replicas keep equal to ca.crt.",
)
@kept_option(
    "--client-ca-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Accept only clients with a certificate from a CA in this file. The server reloads the file when it "
    "changes. Default: accept all clients.",
)
@live_options
def serve(bind: str, https_port: int, http_port: int, lease: tuple[str, str] | None) -> None:
    """Serve POST /mutate over TLS, and probes and metrics without TLS.

    When the server is ready, it prints its addresses as one line of JSON on standard output. It logs to standard
    error. The environment variables CO_SCHEDULE_... configure it. SIGTERM stops it.

    \b
    Examples:
      kubevirt-scheduler serve
      kubevirt-scheduler serve --snapshot examples/cluster.yaml
      kubevirt-scheduler serve --snapshot cluster/ --bind 0.0.0.0 --tls-dir /etc/webhook/tls
      kubevirt-scheduler serve --tls-secret NAMESPACE/NAME --tls-name webhook.NAMESPACE.svc --webhook-configuration NAME
      CO_SCHEDULE_ACTION=observe kubevirt-scheduler serve --snapshot cluster.yaml --https-port 0
    """  # noqa: D301 (click's mark for a block whose line breaks are kept)
    names = tls_names()
    settings = read_settings(os.environ)
    snapshots = given("snapshots")
    if snapshots and lease:
        raise click.UsageError("--lease requires a live cluster: a snapshot has no pods to release")
    open_closed_outputs()
    faulthandler.enable(STDERR)  # a crash in a library prints the frames of all threads, without values
    log_stream = LogStream(STDERR)
    log_limit = LogLimit()
    uncaught_errors = UncaughtErrors()
    uncaught_errors.install()
    log_handler = logs.configure(settings, log_stream, log_limit)
    metrics = Metrics(settings.action)
    metrics.add(partial(log_metrics, log_stream, log_limit, uncaught_errors))
    clock = ServerClock()
    if snapshots:
        backend = from_snapshot(snapshot.read(snapshots)[0].store, settings)
    else:
        live_backend = LiveBackend(replace(connect(), clock=clock), settings, lease)
        metrics.add(partial(cluster_metrics, live_backend))
        metrics.add(partial(fleet_metrics, live_backend.fleet.counts))
        backend = live_backend.backend()
    reviewer = Reviewer(
        backend,
        settings,
        metrics,
        wall_clock=lambda: clock.now().timestamp(),  # a review has the API server's time
        log_decision=log_handler.decided,
    )
    try:
        with ExitStack() as stack:
            # First of all, so that a port in use is reported immediately.
            https, http = (stack.enter_context(listen(bind, port)) for port in (https_port, http_port))
            certificate, controller = certificate_of(bind, names, clock)
            metrics.add(partial(certificate_metrics, certificate, controller, clock))

            health = Health(metrics, backend.caches, partial(certificate_problems, certificate, controller, clock))
            app = create_app(reviewer, health)
            reviews = responder(app, REVIEW_PATHS, review_shortcut(reviewer))
            handler = RequestHandler(reviews, metrics.count_response)
            probes = RequestHandler(responder(app, PROBE_PATHS), body_limit=0)
            Server(handler, probes, health, https, http, certificate, settings, backend, metrics, controller).run()
    except (CannotListen, UnusableCertificate, BadCertificate) as error:
        raise BadInput(str(error)) from None
