"""gunicorn around the app: TLS, one worker with threads, and beside it the plain listener for probes."""

import errno
import json
import os
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any
from wsgiref.types import WSGIApplication

import structlog
from gunicorn import util
from gunicorn.app.base import BaseApplication
from gunicorn.workers.gthread import _DEFER, ThreadWorker  # type: ignore[attr-defined]  # no stub has it
from waitress.server import create_server

from certs.serving import ServingCertificate, authority_of
from webhook.backend import Backend
from webhook.settings import LogLevel, Settings

THREADS = 8
KEEPALIVE = 95  # seconds; the API server keeps idle connections for 90, and whoever closes first may cut a request off
PATIENCE = 10  # seconds; the API server's default timeout: no call that takes longer is still waited for
HELLO = 3  # seconds for the whole TLS handshake: it takes milliseconds, and time for four lost packets in a row
BACKLOG = 1024

log = structlog.get_logger("webhook")


class CannotListen(OSError):
    """An address that can't be listened on. Its text is one line that names it."""


@dataclass(frozen=True, slots=True)
class Listeners:
    """Both sockets, bound before anything else starts, so that what is taken is known at once."""

    https: socket.socket
    http: socket.socket


@contextmanager
def listening(host: str, https_port: int, http_port: int) -> Iterator[Listeners]:
    """Bind both ports, and close them at the end; port 0 picks a free one. Raises CannotListen."""
    with _listen(host, https_port) as https, _listen(host, http_port) as http:
        yield Listeners(https, http)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with ExitStack() as failing:
            listener = failing.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
            failing.pop_all()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "no address"
        raise CannotListen(f"cannot listen on {_shown(host, port)}: {reason}") from None
    return listener


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def address_of(listener: socket.socket) -> str:
    """Return a listener's address as a URL has it: `127.0.0.1:8443`, `[::1]:8443`."""
    return _shown(*listener.getsockname()[:2])


class _ImpatientSocket(ssl.SSLSocket):
    """gunicorn's threads wait for ever for the rest of a TLS hello or a request; eight such peers would be the end."""

    def setblocking(self, flag: bool, /) -> None:
        self.settimeout(PATIENCE if flag else 0)

    def do_handshake(self, block: bool = False) -> None:
        self.settimeout(HELLO)
        try:
            super().do_handshake(block)
        except TimeoutError:
            # As a peer that has gone: gunicorn logs any other error of a socket with a traceback.
            raise ConnectionResetError(errno.ECONNRESET, "no TLS hello in time") from None
        self.settimeout(PATIENCE)


class _Worker(ThreadWorker):
    """gunicorn's worker, but for its error page: HTML that quotes what was received, and so does its log."""

    def handle(self, conn: Any) -> Any:
        # For a burst of reviews the API server dials more connections than it then uses. gunicorn's threads would wait
        # for the first request on each, all eight of them, until the burst has failed; its poller can wait for any.
        if not conn.initialized:
            if not conn.wait_for_data(0):
                return _DEFER
            try:
                conn.init()
            except OSError as error:
                log.debug("no TLS connection", peer=conn.client, reason=type(error).__name__)
                return False
            conn.data_ready = False
            if not conn.sock.pending() and not conn.wait_for_data(0):
                return True  # as a connection that is kept alive
        return super().handle(conn)

    def handle_error(self, _req: Any, client: Any, addr: Any, exc: BaseException) -> None:
        if isinstance(exc, ssl.SSLError):
            log.debug("no TLS connection", peer=addr, reason=exc.reason)
            return
        theirs = type(exc).__module__ == "gunicorn.http.errors"
        if theirs:
            log.warning("refused", code=400, error=f"not HTTP ({type(exc).__name__})")
        else:
            log.error("a request failed", exc_info=exc)
        status, sentence = ("400 Bad Request", "not HTTP") if theirs else ("500 Internal Server Error", "failed")
        body = json.dumps({"error": sentence})
        head = (
            f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        try:
            util.write_nonblock(client, f"{head}\r\n\r\n{body}".encode())
        except OSError:
            log.debug("the peer has gone", peer=addr)


class _Gunicorn(BaseApplication):
    """gunicorn as a library: no command line, no configuration file."""

    def __init__(self, app: WSGIApplication, options: dict[str, Any]) -> None:
        self._app, self._options = app, options
        super().__init__()

    def load_config(self) -> None:
        for name, value in self._options.items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        return self._app


@dataclass(frozen=True, slots=True)
class Server:
    """All that is served: the TLS app, the probes (made from whether we still take requests), and the certificate."""

    app: WSGIApplication
    probes: Callable[[Callable[[], bool]], WSGIApplication]
    listeners: Listeners
    tls: Path
    settings: Settings
    backend: Backend

    def run(self) -> None:
        """Serve until a signal ends the process: SystemExit, in the master and in its worker. Raises Unusable."""
        certificate, ready_line = ServingCertificate(self.tls), self._ready_line()
        https = self.listeners.https.detach()  # gunicorn's from now on

        def ssl_context(_config: object, _default: object) -> ssl.SSLContext:
            context = certificate.context()  # gunicorn asks for each connection; to make one takes a millisecond
            context.sslsocket_class = _ImpatientSocket
            return context

        def started(worker: _Worker) -> None:
            # After the fork: threads do not survive one.
            self.backend.start()
            self._serve_probes(lambda: worker.alive)
            if worker.age == 1:
                Thread(target=self._announce, args=(ready_line,), name="announce", daemon=True).start()

        def ended(_arbiter: object, _worker: object) -> None:
            self.backend.stop()

        hooks = {"ssl_context": ssl_context, "post_worker_init": started, "worker_exit": ended}
        _Gunicorn(self.app, self.options(https) | hooks).run()

    def _announce(self, ready_line: str) -> None:
        while not self.backend.synced():
            time.sleep(0.02)
        sys.stdout.write(ready_line)
        sys.stdout.flush()

    def options(self, https: int) -> dict[str, Any]:
        """Return gunicorn's settings; `https` is the file descriptor of the TLS listener."""
        # Its debug lines quote what was received, and that may hold a passphrase.
        level = LogLevel.INFO if self.settings.log_level is LogLevel.DEBUG else self.settings.log_level
        memory = Path("/dev/shm")  # noqa: S108  # for the heartbeat file: on a disk it may block, and a root may be read-only
        return {
            "bind": [f"fd://{https}"],
            "workers": 1,  # one cache, one set of watches, one registry of metrics; scale by replicas
            "worker_class": _Worker,
            "threads": THREADS,
            "keepalive": KEEPALIVE,
            "max_requests": 0,
            "graceful_timeout": PATIENCE,
            "worker_tmp_dir": str(memory) if os.access(memory, os.W_OK) else None,
            "control_socket_disable": True,
            "certfile": str(self.tls / "tls.crt"),
            "keyfile": str(self.tls / "tls.key"),
            "errorlog": None,  # its logger has our handler
            "loglevel": level.value,
        }

    def _ready_line(self) -> str:
        line = {
            "https": address_of(self.listeners.https),
            "http": address_of(self.listeners.http),
            "ca": str(authority_of(self.tls)),
        }
        return json.dumps(line) + "\n"

    def _serve_probes(self, alive: Callable[[], bool]) -> None:
        plain = create_server(
            self.probes(alive),
            sockets=[self.listeners.http],
            threads=2,
            ident=None,
            asyncore_use_poll=True,  # select() knows no file descriptor over 1023, and the TLS connections come first
        )
        Thread(target=plain.run, name="probes", daemon=True).start()
