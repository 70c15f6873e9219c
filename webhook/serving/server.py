"""gunicorn around the loop: its master, one worker, its signals, and beside it the plain listener for probes."""

import gc
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from signal import SIGTERM
from threading import Event, Thread
from typing import Any
from wsgiref.types import WSGIApplication

from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.workers.base import Worker
from waitress.server import create_server

from certs.rotate import CertificateController
from certs.serving import ServingCertificate, memory_folder
from webhook.cluster.backend import Backend
from webhook.placement.settings import LogLevel, Settings
from webhook.serving.connection import RequestHandler
from webhook.serving.listeners import Listeners, address_of
from webhook.serving.loop import DRAIN, FAREWELL, Loop
from webhook.serving.metrics import Metrics

# Seconds for which a thread keeps the interpreter; Python's own are 0.005. While a large cluster is listed, reflectors
# calculate for seconds, and the loop waits for its turn after each system call: a review took 8.5 ms, and now 3.8.
TURN = 0.001
HUNG = 30  # seconds without a turn of the loop, then gunicorn's master starts another worker
GRACE = int(DRAIN + FAREWELL + 3)  # seconds; 3 for the last events to be told


class _Worker(Worker):
    """gunicorn's worker: its signals, its heartbeat, and our loop, which is there from the fork on."""

    loop: Loop | None = None
    _notified = 0.0

    def on_turn(self) -> None:
        """Tell gunicorn's master, once a second, that we live; and end when it does not."""
        now = time.monotonic()
        if now - self._notified > 1:
            self._notified = now
            self.notify()
            if os.getppid() != self.ppid:
                self._end(force=True)

    def run(self) -> None:
        """Serve until a signal comes, and all is answered."""
        assert self.loop, "made in post_worker_init"  # noqa: S101 (for the type checker)
        self.on_turn()  # until the first time the heartbeat has the time of day, and no worker is ever late
        self.loop.run()

    def handle_exit(self, sig: int, frame: Any) -> None:  # noqa: ARG002 (gunicorn's)
        """Drain; the second time, hurry."""
        self._end(force=False)

    def handle_quit(self, sig: int, frame: Any) -> None:  # noqa: ARG002
        """End at once, but with an answer to whoever waits for one."""
        self._end(force=True)

    def _end(self, *, force: bool) -> None:
        self.alive = False
        for _ in range(1 + force):
            if self.loop:
                self.loop.drain()
            else:
                raise SystemExit(0)


class _Arbiter(Arbiter):
    """gunicorn's master. Once told to end it only waits for its worker; a second SIGTERM is passed on all the same."""

    _told = False

    def signal(self, sig: int, frame: Any) -> None:
        """Note a signal, or pass it on."""
        if sig == SIGTERM and self._told:
            self.kill_workers(sig)
        self._told = self._told or sig == SIGTERM
        super().signal(sig, frame)


class _Gunicorn(BaseApplication):
    """gunicorn as a library: no command line, no configuration file."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        super().__init__()

    def load_config(self) -> None:
        for name, value in self._options.items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        return None  # our loop has its own

    def run(self) -> None:
        _Arbiter(self).run()


@dataclass(frozen=True, slots=True)
class Server:
    """All that is served: reviews over TLS, and probes, made from why we take no requests and whether we make progress.

    `keeper` looks after the certificate, in a thread of its own.
    """

    answering: RequestHandler
    probes: Callable[[Callable[[], str], Callable[[], float]], WSGIApplication]
    listeners: Listeners
    certificate: ServingCertificate
    settings: Settings
    backend: Backend
    metrics: Metrics
    keeper: CertificateController

    def run(self) -> None:
        """Serve until a signal ends the process: SystemExit, in the master and in its worker."""
        ready_line, stop = self._ready_line(), Event()
        # The soft limit is often 1,024 for the sake of select(), which nobody here calls.
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        https = self.listeners.https.detach()  # gunicorn's from now on

        def started(worker: _Worker) -> None:
            # After the fork: threads do not survive one.
            sys.setswitchinterval(TURN)
            socket_of_ours: Any = worker.sockets[0]  # gunicorn's wrapper
            loop = Loop(socket_of_ours.sock, self.certificate.context, self.answering, worker.on_turn)
            worker.loop = loop
            self.metrics.show(loop.connections, loop.dropped)
            self.backend.start()
            self._serve_probes(lambda: "it is ending" if loop.draining else self._without_certificate(), loop.stuck)
            Thread(target=self.keeper.run, args=(stop,), name="certificates", daemon=True).start()
            Thread(target=self._settle, args=(ready_line if worker.age == 1 else "",), daemon=True).start()

        def ended(_arbiter: object, _worker: object) -> None:
            stop.set()
            self.backend.stop()

        _Gunicorn(self.options(https) | {"post_worker_init": started, "worker_exit": ended}).run()

    def _without_certificate(self) -> str:
        return "" if self.certificate.context() else f"there is no certificate yet; {self.keeper.problem}".rstrip("; ")

    def _settle(self, ready_line: str) -> None:
        while not (self.backend.synced() and self.certificate.context()):
            time.sleep(0.02)
        # What has been read stays: no later collection need look through it, which takes 0.1 s on a large cluster.
        gc.collect()
        gc.freeze()
        # What a decision makes goes by itself: there is little to collect, and looking for it oftener costs a 20th.
        gc.set_threshold(10_000, 20, 20)
        sys.stdout.write(ready_line)
        sys.stdout.flush()

    def options(self, https: int) -> dict[str, Any]:
        """Return gunicorn's settings; `https` is the file descriptor of the TLS listener."""
        # Its debug lines quote what was received, and that may hold a passphrase.
        level = LogLevel.INFO if self.settings.log_level is LogLevel.DEBUG else self.settings.log_level
        return {
            "bind": [f"fd://{https}"],
            "workers": 1,  # one cache, one set of watches, one registry of metrics; scale by replicas
            "worker_class": _Worker,
            "max_requests": 0,
            "timeout": HUNG,
            "graceful_timeout": GRACE,
            "worker_tmp_dir": memory_folder(),  # for the heartbeat file: on a disk it may block
            "control_socket_disable": True,
            "errorlog": None,  # its logger has our handler
            "loglevel": level.value,
        }

    def _ready_line(self) -> str:
        line = {
            "https": address_of(self.listeners.https),
            "http": address_of(self.listeners.http),
            "ca": str(self.certificate.authority),
        }
        return json.dumps(line) + "\n"

    def _serve_probes(self, unready: Callable[[], str], stuck: Callable[[], float]) -> None:
        plain = create_server(
            self.probes(unready, stuck),
            sockets=[self.listeners.http],
            threads=2,
            ident=None,
            # By waitress' own (100, 120 s, 1 GiB) whoever stays idle silences the probes, and the kubelet restarts us;
            # and a body fills TMPDIR, the memory that keys are written to. No probe has one.
            connection_limit=500,
            channel_timeout=10,
            cleanup_interval=5,
            max_request_body_size=1,
            asyncore_use_poll=True,  # select() knows no file descriptor over 1023, and the TLS connections come first
        )
        Thread(target=plain.run, name="probes", daemon=True).start()
