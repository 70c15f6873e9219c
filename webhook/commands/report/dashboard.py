"""`kubevirt-scheduler dashboard`: serve the page of the report on loopback, and read the cluster while it is open."""

import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import click

from webhook.commands.fleet_source import read_fleet, read_rates, selected
from webhook.commands.options import Seconds, fleet_options
from webhook.commands.report import page
from webhook.commands.report.command import report_on
from webhook.placement.objects.fields import JsonObject
from webhook.reading.documents import BadInput

LOOPBACK = "127.0.0.1"
PATHS = {"/": "text/html", "/report.json": "application/json"}
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@click.command(short_help="serve the report as a page that follows the cluster")
@fleet_options
@click.option("--port", type=click.IntRange(0, 65535), default=8088, show_default=True, help="0 picks a free port.")
@click.option(
    "--interval",
    type=Seconds(1, 3600),
    default=5,
    show_default=True,
    metavar="SECONDS",
    help="Seconds between two readings of a page.",
)
def dashboard(port: int, interval: int) -> None:
    """Serve the page of `report -o html` on this machine, until Ctrl-C. It follows the cluster.

    The address keeps what the page shows: its filters, its view and the selected VM. All users of this machine can open
    it. The cluster is read only while a page is open.

    \b
    Examples:
      kubevirt-scheduler dashboard -A
      kubevirt-scheduler dashboard -n shop --port 0
    """  # noqa: D301 (click's mark for a block whose line breaks are kept)
    context = click.get_current_context()
    first = read_fleet()
    scope = selected(first.namespace)
    inventory = first.inventory
    if not any(map(scope.selects, inventory.machines(first.webhook.predicting))):
        scope.report_none(inventory.namespaces())

    def read() -> JsonObject:
        with context.scope(cleanup=False):  # in the thread of a request
            return report_on(read_fleet(first.client), scope, read_rates())

    try:
        server = PageServer(port, read, interval)
    except OSError as error:
        raise BadInput(f"cannot listen on {LOOPBACK}:{port}: {error.strerror}; specify another --port") from None
    with server:
        click.echo(f"Serving the report at http://{LOOPBACK}:{server.server_port}/ (Ctrl-C ends it)")
        server.serve_forever()


class PageServer(ThreadingHTTPServer):
    """Serves the page and its report, on loopback. One request at a time reads the cluster."""

    daemon_threads = True

    def __init__(self, port: int, read: Callable[[], JsonObject], interval: int) -> None:
        super().__init__((LOOPBACK, port), _Handler)
        self._read = read
        self.interval = interval
        self._lock = threading.Lock()
        self._report = JsonObject()
        self._read_at = float("-inf")
        # Otherwise a site whose name a DNS server changes to 127.0.0.1 could read the page in its visitor's browser.
        self.hosts = {f"{name}:{self.server_port}" for name in (LOOPBACK, "localhost")}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that has closed its connection."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def content(self, path: str) -> str:
        """Return the page, or its report as JSON. Raises BadInput.

        Requests within one interval share a report, even if their pages were closed meanwhile.
        """
        with self._lock:
            if time.monotonic() - self._read_at > self.interval / 2:
                self._report = self._read()
                self._read_at = time.monotonic()
            report = self._report
        return page.render(report, self.interval) if path == "/" else page.embedded_json(report)


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = 10.0  # seconds; a browser opens connections in advance, and sends nothing on them

    def do_GET(self) -> None:
        """Respond with the page, its report, or an error."""
        path = self.path.partition("?")[0]
        host = self.headers.get("Host", "")
        if self.server.hosts.isdisjoint((host, f"{host}:80")):  # browsers omit the default port
            return self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
        # Another site, open in the same browser, can send requests, though it can't read the responses.
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return self.send_error(HTTPStatus.FORBIDDEN)
        if path not in PATHS:
            return self.send_error(HTTPStatus.NOT_FOUND)
        status = HTTPStatus.OK
        media_type = PATHS[path]
        try:
            body = self.server.content(path).encode()
        except BadInput as error:
            status = HTTPStatus.SERVICE_UNAVAILABLE
            media_type = PATHS["/report.json"]
            body = page.embedded_json({"error": str(error)}).encode()
        self.send_response(status)
        if path == "/" and status is not HTTPStatus.OK:
            self.send_header("Refresh", str(self.server.interval))  # until the cluster can be read
        self.send_header("Content-Type", f"{media_type}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        return None

    def end_headers(self) -> None:
        """Add the headers of all responses."""
        for header in HEADERS.items():
            self.send_header(*header)
        super().end_headers()

    def log_message(self, *_: object) -> None:
        """Log no requests."""
