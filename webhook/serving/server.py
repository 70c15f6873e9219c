"""The whole server: starts gunicorn, whose worker serves reviews over TLS, and serves probes on the plain port."""

import gc
import json
import os
import resource
import socket
import sys
import time
from functools import partial
from threading import Event, Thread
from typing import Any

from msgspec import Struct

from certs.controller import CertificateController
from certs.serving import ServingCertificate
from webhook.cluster.backend import Backend
from webhook.placement.settings import LogLevel, Settings
from webhook.serving.app import Health
from webhook.serving.telemetry.collectors import loop_metrics
from webhook.serving.telemetry.metrics import Metrics
from webhook.serving.worker.channel import Channel
from webhook.serving.worker.connection import RequestHandler
from webhook.serving.worker.gunicorn_worker import Gunicorn, LoopWorker
from webhook.serving.worker.listeners import address_of
from webhook.serving.worker.loop import DRAIN_TIMEOUT, FLUSH_TIMEOUT, MAX_CONNECTIONS, Loop
from webhook.serving.worker.tls_channel import tls_opener

# Seconds for which a thread keeps the GIL; Python's default is 0.005. The loop waits for the GIL after each system call
# while reflectors list a large cluster. A review then took 8.5 ms; with 0.001 it took 3.8 ms. With 0.00001, threads
# change so often that reviews take longer again.
SWITCH_INTERVAL = 0.00005
WORKER_TIMEOUT = 30  # seconds without a turn of the loop; then gunicorn's master replaces the worker
FIRST_PASS_TIMEOUT = 5  # seconds that a worker without a certificate waits for one before it accepts connections
MEMORY_FOLDER = "/dev/shm"  # noqa: S108 (gunicorn's file has no name in it)
RESERVED_FILES = 128  # descriptors for everything but the connections of both ports; in use are about 40
GRACEFUL_TIMEOUT = int(DRAIN_TIMEOUT + FLUSH_TIMEOUT + 3)  # seconds; 3 s to write the last Events


class Server(Struct, frozen=True):
    """The whole server: reviews over TLS, probes and metrics over plain HTTP.

    `probes` is the handler of the plain port, and asks `health`. `controller` maintains the certificates in its own
    thread.
    """

    handler: RequestHandler
    probes: RequestHandler
    health: Health
    https: socket.socket
    http: socket.socket
    certificate: ServingCertificate
    settings: Settings
    backend: Backend
    metrics: Metrics
    controller: CertificateController

    def run(self) -> None:
        """Serve until a signal arrives. Raises SystemExit in the master and in the worker."""
        addresses = {"https": address_of(self.https), "http": address_of(self.http)}
        stop = Event()
        max_connections = raise_file_limit()
        https = self.https.detach()  # from here on, gunicorn owns the descriptor
        # What has been imported stays alive. Frozen, no collection writes to it, so master and worker share its memory.
        gc.collect()
        gc.freeze()

        def post_worker_init(worker: LoopWorker) -> None:
            # Start threads here, after the fork: they would not survive it.
            sys.setswitchinterval(SWITCH_INTERVAL)
            listener: Any = worker.sockets[0]  # gunicorn's wrapper
            open_channel = tls_opener(self.certificate.context, self.certificate.trusted_cas)
            loop = Loop(listener.sock, open_channel, self.handler, worker.on_turn, max_connections=max_connections)
            worker.loop = loop
            self.metrics.add(partial(loop_metrics, loop.connections, loop.dropped, loop.take_longest_turn))
            self.backend.start()
            self.health.not_ready_reason = lambda: "shutting down" if loop.draining else self._cert_problem()
            self.health.stalled_seconds = loop.stalled_seconds
            probe_loop = Loop(self.http, Channel, self.probes, max_connections=max_connections)
            Thread(target=probe_loop.run, name="probes", daemon=True).start()
            Thread(target=self.controller.run, args=(stop,), name="certificates", daemon=True).start()
            if not self.certificate.context():
                # After a crash of the last worker, API servers call already. Until then, they wait in the backlog.
                self.controller.first_pass.wait(FIRST_PASS_TIMEOUT)
            Thread(target=self._announce_when_ready, args=(addresses if worker.age == 1 else {},), daemon=True).start()

        def worker_exit(_arbiter: object, _worker: object) -> None:
            stop.set()
            self.backend.stop()

        hooks = {"post_worker_init": post_worker_init, "worker_exit": worker_exit}
        Gunicorn(self.options(https) | hooks).run()

    def _cert_problem(self) -> str:
        if not self.certificate.context():
            return f"no certificate yet; {self.controller.problem}".rstrip("; ")
        return self.controller.untrusted

    def _announce_when_ready(self, addresses: dict[str, str]) -> None:
        while self._cert_problem() or not self.backend.synced():
            time.sleep(0.02)
        # The caches stay alive. Freezing them keeps later collections from scanning them: 0.1 s on a large cluster.
        gc.collect()
        gc.freeze()
        # Reference counting frees the objects of a decision, and collections find little. To scan 20,000 objects takes
        # 10 ms, and 2,000 connections have 80,000.
        gc.set_threshold(20_000, 2, 1000)
        if addresses and sys.stdout:  # not if the caller closed it
            sys.stdout.write(json.dumps(addresses | {"ca": self.certificate.ca_bundle().decode()}) + "\n")
            sys.stdout.flush()

    def options(self, https: int) -> dict[str, Any]:
        """Return gunicorn's settings. `https` is the file descriptor of the TLS listener."""
        # gunicorn's debug messages quote received bytes, which may contain a passphrase.
        level = LogLevel.INFO if self.settings.log_level is LogLevel.DEBUG else self.settings.log_level
        return {
            "bind": [f"fd://{https}"],
            "workers": 1,  # one cache, one set of watches, one metrics registry; scale with replicas
            "worker_class": LoopWorker,
            "max_requests": 0,
            "timeout": WORKER_TIMEOUT,
            "graceful_timeout": GRACEFUL_TIMEOUT,
            # For the heartbeat file; a write to disk could block.
            "worker_tmp_dir": MEMORY_FOLDER if os.access(MEMORY_FOLDER, os.W_OK) else None,
            "control_socket_disable": True,
            "errorlog": None,  # `logs` configures gunicorn's logger
            "loglevel": level.value,
        }


def raise_file_limit() -> int:
    """Raise the soft limit of file descriptors to the hard limit, and return how many connections a port may have.

    The soft limit is often 1,024, for programs that call select(). This one doesn't.
    """
    hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    if hard_limit == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    # A flood of one port must leave descriptors to the other port, to watches, and to a reload of the certificate.
    return max(1, min(MAX_CONNECTIONS, (hard_limit - RESERVED_FILES) // 2))
