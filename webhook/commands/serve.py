"""`kubevirt-scheduler serve`: answer the API server's reviews over TLS."""

import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import click

from certs.serving import UnusableCertificate
from webhook.cluster import snapshot
from webhook.cluster.backend import Backend, from_snapshot
from webhook.cluster.documents import printable
from webhook.commands.options import connect, live_options
from webhook.commands.tls import TlsOptions, certificate_problems, tls_options
from webhook.placement.settings import Settings, read_settings
from webhook.serving import logs
from webhook.serving.app import create_app, create_probes, fast_path, make_reviewer
from webhook.serving.connection import RequestHandler
from webhook.serving.listeners import CannotListen, listening
from webhook.serving.log_stream import LogStream
from webhook.serving.metrics import Metrics
from webhook.serving.server import Server
from webhook.serving.wsgi import wsgi_response

PORT = click.IntRange(0, 65535)
STDERR = 2


class CannotStart(click.ClickException):
    """What keeps the server from starting: one line on standard error, exit 2."""

    exit_code = 2


@click.command(short_help="answer the API server's reviews over TLS")
@click.option(
    "--snapshot",
    "snapshots",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE|FOLDER",
    help="The cluster, as kubectl get -o yaml writes it. May be given several times.",
)
@click.option("--bind", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="The address to listen on.")
@click.option("--https-port", type=PORT, default=8443, show_default=True, help="POST /mutate; 0 picks a free one.")
@click.option(
    "--http-port",
    type=PORT,
    default=8080,
    show_default=True,
    help="GET /healthz, /readyz and /metrics, without TLS; 0 picks a free one.",
)
@tls_options
@live_options
def serve(  # noqa: PLR0913, PLR0917 (as many as there are options)
    snapshots: tuple[Path, ...],
    bind: str,
    https_port: int,
    http_port: int,
    kubeconfig: str | None,
    context: str | None,
    **tls: Any,
) -> None:
    """Serve POST /mutate over TLS, and probes and metrics without.

    When it is ready, one line of JSON on standard output says where. Logs go to standard error; settings come from
    CO_SCHEDULE_... in the environment. SIGTERM ends it.

    \b
    Examples:
      kubevirt-scheduler serve
      kubevirt-scheduler serve --snapshot examples/cluster.yaml
      kubevirt-scheduler serve --snapshot cluster/ --bind 0.0.0.0 --tls-dir /etc/webhook/tls
      kubevirt-scheduler serve --tls-secret NAMESPACE/NAME --tls-name webhook.NAMESPACE.svc --webhook-configuration NAME
      CO_SCHEDULE_ACTION=observe kubevirt-scheduler serve --snapshot cluster.yaml --https-port 0
    """  # noqa: D301 (click's mark of a block that keeps its lines)
    choice, settings = TlsOptions(**tls), read_settings(os.environ)
    outlet = LogStream(STDERR)
    logs.configure(settings, outlet)
    metrics = Metrics()
    metrics.hear(outlet)
    if snapshots:
        backend = from_snapshot(snapshot.load(snapshots), settings)
    else:
        backend = _from_cluster(kubeconfig, context, settings, metrics)
    reviewer = make_reviewer(backend, settings, metrics)
    app = create_app(reviewer)
    answering = RequestHandler(fast_path(reviewer), partial(wsgi_response, app), metrics.answered)
    try:
        with ExitStack() as stack:
            listeners = stack.enter_context(listening(bind, https_port, http_port))
            certificate, keeper = stack.enter_context(
                choice.certificate(_names(bind), lambda: connect(kubeconfig, context))
            )
            metrics.certify(certificate, keeper)
            probes = partial(create_probes, metrics, backend.caches, partial(certificate_problems, certificate, keeper))
            Server(answering, probes, listeners, certificate, settings, backend, metrics, keeper).run()
    except (CannotListen, UnusableCertificate) as error:
        raise CannotStart(printable(str(error))) from None


def _from_cluster(kubeconfig: str | None, context: str | None, settings: Settings, metrics: Metrics) -> Backend:
    cluster = connect(kubeconfig, context)
    from webhook.cluster.live_backend import LiveBackend  # noqa: PLC0415 (as the client itself: files need not wait for its import)

    following = LiveBackend(cluster, settings)
    metrics.follow(following)
    return following.backend()


def _names(bind: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(("localhost", "127.0.0.1", "::1", bind)))
