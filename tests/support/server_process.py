"""The real server in a process of its own, and clients that speak to it over real sockets."""

import http.client
import json
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from tests.support.builders import node, storage
from tests.support.paths import REVIEWS

# Warnings are errors here as well, but for a socket that gunicorn itself leaves behind when it looks at ours.
WARNINGS = ["-W", "error", "-W", "ignore:unclosed <socket:ResourceWarning"]
PROGRAM = [sys.executable, *WARNINGS, "-c", "from webhook.cli import main; main()", "serve"]
VM_START = (REVIEWS / "vm-start.json").read_bytes()
JSON = {"Content-Type": "application/json"}
LAST = 25  # lines of its log are told where something fails
IN_TIME = 20.0  # seconds, many times what anything here takes


@dataclass
class Running:
    """A server: where it listens, whom to trust, and what it has logged so far."""

    process: subprocess.Popen[str]
    https: tuple[str, int]
    http: tuple[str, int]
    ca: Path
    log_file: Path

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The log, each line of which is JSON."""
        return [json.loads(line) for line in self.log.splitlines()]

    def trusting(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.ca))

    def connect(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(*self.https, timeout=IN_TIME, context=self.trusting())

    def raw(self) -> ssl.SSLSocket:
        """A TLS connection on which anything may be said."""
        return self.trusting().wrap_socket(self.plain(), server_hostname="127.0.0.1")

    def plain(self) -> socket.socket:
        """A connection to the TLS port that has not begun with TLS."""
        return socket.create_connection(self.https, timeout=IN_TIME)

    def probe(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection(*self.http, timeout=IN_TIME)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def review(self, body: bytes = VM_START) -> dict[str, Any]:
        """The response to a review, sent on a connection of its own."""
        connection = self.connect()
        try:
            connection.request("POST", "/mutate?timeout=10s", body, JSON)
            answer = connection.getresponse()
            assert answer.status == 200
            return dict(json.loads(answer.read())["response"])
        finally:
            connection.close()

    def stop(self) -> int:
        """End the server as Kubernetes does, and return its exit code."""
        self.process.terminate()
        return self.process.wait(IN_TIME)


def until(holds: Any) -> Any:
    """Ask again and again, and return the first answer that is not false."""
    last = monotonic() + IN_TIME
    while not (answer := holds()):
        assert monotonic() < last, f"in vain; the last answer was {answer!r}"
        sleep(0.01)
    return answer


def environment(**settings: str) -> dict[str, str]:
    """The environment with these settings and no others of ours."""
    return {name: value for name, value in os.environ.items() if not name.startswith("CO_SCHEDULE_")} | settings


def write_cluster(folder: Path) -> Path:
    """A snapshot in which the recorded VM can be pinned to node-a."""
    labels = dict.fromkeys(["kubevirt.io/schedulable", "machine-type.node.kubevirt.io/q35"], "true")
    items = [*storage(), node(labels=labels | {"kubernetes.io/arch": "amd64"})]
    file = folder / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return file


def run(*arguments: object, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run `serve` where it is not expected to start."""
    command = [*PROGRAM, *map(str, arguments)]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=IN_TIME, env=environment(**settings)
    )


@contextmanager
def serving(folder: Path, *arguments: object, by: Sequence[str] = (), **settings: str) -> Iterator[Running]:
    """Run `serve` on free ports from the moment when it is ready; nothing of it is left afterwards.

    It reads a snapshot, unless a `--kubeconfig` is among the arguments. `by` is what starts it and makes way for it.
    """
    known = [] if "--kubeconfig" in arguments else ["--snapshot", write_cluster(folder)]
    command = [*by, *PROGRAM, *known, "--https-port", 0, "--http-port", 0, *arguments]
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
            assert select.select([process.stdout], [], [], IN_TIME)[0], "not ready in time"
            line = process.stdout.readline()
            assert line, f"it did not start: {log_file.read_text()}"
            yield running(process, json.loads(line), log_file)
        except BaseException as error:
            state = "runs" if process.poll() is None else f"ended with {process.returncode}"
            said = log_file.read_text().splitlines() if log_file.is_file() else []  # it may be a pipe
            error.add_note("\n".join([f"the server {state}; its log:", *said[-LAST:]]))
            raise
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)  # which ends it at once
                try:
                    process.wait(IN_TIME)
                except subprocess.TimeoutExpired:
                    process.kill()


def running(process: subprocess.Popen[str], ready: dict[str, str], log_file: Path) -> Running:
    https, http = (address.rsplit(":", 1) for address in (ready["https"], ready["http"]))
    return Running(
        process, (https[0].strip("[]"), int(https[1])), (http[0].strip("[]"), int(http[1])), Path(ready["ca"]), log_file
    )
