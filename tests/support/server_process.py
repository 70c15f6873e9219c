"""Runs `kubevirt-scheduler serve` in a child process, and connects clients to it over real sockets."""

import http.client
import json
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from tests.support.builders import node, storage
from tests.support.log_capture import crashes, whole_lines
from tests.support.paths import REVIEWS

# Warnings are errors, except for one socket: gunicorn leaks it when it inspects the listener.
WARNINGS = ["-W", "error", "-W", "ignore:unclosed <socket:ResourceWarning"]
PROGRAM = [sys.executable, *WARNINGS, "-c", "from webhook.cli import main; main()", "serve"]
VM_START = (REVIEWS / "vm-start.json").read_bytes()
JSON = {"Content-Type": "application/json"}
LOG_TAIL = 25  # log lines that are added to a failure
TIMEOUT = 60.0  # seconds; many times more than any test needs, also for a start on a busy machine, which took over 20


@dataclass
class ServerProcess:
    """A running server: its addresses, its CA and its log."""

    process: subprocess.Popen[str]
    https: tuple[str, int]
    http: tuple[str, int]
    ca: Path
    log_file: Path

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    @property
    def log_lines(self) -> list[dict[str, Any]]:
        """The parsed log; each line is JSON."""
        return [json.loads(line) for line in whole_lines(self.log)]

    def client_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.ca))

    def connect(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(*self.https, timeout=TIMEOUT, context=self.client_context())

    def connect_tls(self, peer: str = "127.0.0.1") -> ssl.SSLSocket:
        """A TLS connection for arbitrary bytes, from this address."""
        return self.client_context().wrap_socket(self.connect_tcp(peer), server_hostname="127.0.0.1")

    def connect_tcp(self, peer: str = "127.0.0.1") -> socket.socket:
        """A TCP connection to the TLS port, before the handshake."""
        return socket.create_connection(self.https, timeout=TIMEOUT, source_address=(peer, 0))

    def probe(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection(*self.http, timeout=TIMEOUT)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def metric(self, series: str) -> float:
        """Return the value of a metric, by its name and labels. The page is up to a second old."""
        return sample(self.probe("/metrics")[1], series)

    def review(self, body: bytes = VM_START) -> dict[str, Any]:
        """Send a review over a new connection and return the `response` of the AdmissionReview."""
        connection = self.connect()
        try:
            connection.request("POST", "/mutate?timeout=10s", body, JSON)
            response = connection.getresponse()
            assert response.status == 200
            return dict(json.loads(response.read())["response"])
        finally:
            connection.close()

    @contextmanager
    def timed_reviews(self, *, reconnect: bool = False) -> Iterator[list[float]]:
        """Send reviews in a thread until the end of the block. Yield the seconds that each took.

        With `reconnect`, each review has a connection of its own. A review that fails ends the thread, and the test.
        """
        took, stop, connection = list[float](), threading.Event(), self.connect()

        def send_reviews() -> None:
            while not stop.is_set():
                begin = monotonic()
                connection.request("POST", "/mutate?timeout=10s", VM_START, JSON)
                response = connection.getresponse()
                response.read()
                assert response.status == 200
                took.append(monotonic() - begin)
                if reconnect:
                    connection.close()
                else:
                    sleep(0.01)

        thread = threading.Thread(target=send_reviews)
        thread.start()
        try:
            until(lambda: took)
            yield took
        finally:
            stop.set()
            thread.join()
            connection.close()

    def served_serial(self) -> str:
        """Return the serial number of the certificate that a new connection gets."""
        with self.connect_tls() as connection:
            return str((connection.getpeercert() or {})["serialNumber"])

    def worker_pid(self) -> int:
        """Return the process ID of the worker that was started last."""
        boot_lines = [line["event"] for line in self.log_lines if line["event"].startswith("Booting worker")]
        return int(boot_lines[-1].rpartition(" ")[2])

    def stop(self) -> int:
        """Stop the server with SIGTERM, as Kubernetes does, and return its exit code."""
        self.process.terminate()
        return self.process.wait(TIMEOUT)


def sample(page: str, series: str) -> float:
    """Return the value of a metric on a page of metrics."""
    start = f"kubevirt_scheduler_{series} "
    return next(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(start))


def resident_memory(pid: int, name: str = "VmRSS:") -> float:
    """Return the memory in MB that a process has in RAM; VmHWM is the peak."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(name)]
    return int(line.split()[1]) * 1024 / 1e6


def until(condition: Any) -> Any:
    """Poll `condition` and return its first true value."""
    deadline = monotonic() + TIMEOUT
    while not (value := condition()):
        assert monotonic() < deadline, f"timed out; the last value was {value!r}"
        sleep(0.01)
    return value


def environment(**settings: str) -> dict[str, str]:
    """This process' environment, with `settings` instead of its CO_SCHEDULE_ variables."""
    return {name: value for name, value in os.environ.items() if not name.startswith("CO_SCHEDULE_")} | settings


def write_cluster(folder: Path) -> Path:
    """Write a snapshot in which the recorded VM can be pinned to node-a, and return the file."""
    labels = dict.fromkeys(["kubevirt.io/schedulable", "machine-type.node.kubevirt.io/q35"], "true")
    items = [*storage(), node(labels=labels | {"kubernetes.io/arch": "amd64"})]
    file = folder / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return file


def run_to_exit(*arguments: object, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run `serve` with arguments or settings with which it exits, and return its output."""
    command = [*PROGRAM, *map(str, arguments)]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=TIMEOUT, env=environment(**settings)
    )


@contextmanager
def run_server(
    folder: Path, *arguments: object, launcher: Sequence[str] = (), **settings: str
) -> Iterator[ServerProcess]:
    """Run `serve` on free ports, and yield it when it is ready. Stop it at the end of the block.

    It reads a snapshot unless the arguments contain `--kubeconfig`. `launcher` is a command prefix that execs `serve`.
    """
    snapshot = [] if "--kubeconfig" in arguments else ["--snapshot", write_cluster(folder)]
    command = [*launcher, *PROGRAM, *snapshot, "--https-port", 0, "--http-port", 0, *arguments]
    log_file = folder / "log"
    with (
        log_file.open("w") as log,
        subprocess.Popen(
            [str(part) for part in command],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment(**settings),
        ) as process,
    ):
        try:
            assert process.stdout
            assert select.select([process.stdout], [], [], TIMEOUT)[0], "not ready in time"
            line = process.stdout.readline()
            assert line, f"the server did not start: {log_file.read_text()}"
            yield parse_ready_line(process, json.loads(line), log_file)
        except BaseException as error:
            state = "is running" if process.poll() is None else f"exited with {process.returncode}"
            lines = log_file.read_text().splitlines() if log_file.is_file() else []  # the log may be a pipe
            error.add_note("\n".join([f"the server {state}; its log:", *lines[-LOG_TAIL:]]))
            raise
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)  # stops the server immediately
                try:
                    process.wait(TIMEOUT)
                except subprocess.TimeoutExpired:
                    process.kill()
        if log_file.is_file():  # not a pipe
            found = crashes(log_file.read_text(), process.returncode)
            assert not found, f"the server crashed: {found}"


def parse_ready_line(process: subprocess.Popen[str], ready: dict[str, str], log_file: Path) -> ServerProcess:
    https, http = (address.rsplit(":", 1) for address in (ready["https"], ready["http"]))
    ca = log_file.with_name(f"ca-{process.pid}.crt")
    ca.write_text(ready["ca"])
    return ServerProcess(
        process, (https[0].strip("[]"), int(https[1])), (http[0].strip("[]"), int(http[1])), ca, log_file
    )
