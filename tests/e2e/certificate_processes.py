"""Certificate controllers in separate processes, which a test can end by `kill -9` at a chosen write.

A replica spends a second of CPU time before its first pass, nearly all of it on imports. So this program imports once
and forks. Each fork is a real process with its own connections and threads.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

from certs.cluster import ApiClient, ApiError
from certs.controller import CertificateController
from certs.rotation import Policy
from tests.support.paths import ROOT
from webhook.cluster.client import ClusterClient

Object = dict[str, Any]
TIMEOUT = 60  # seconds, then a process that still runs is ended


class ControllerProcesses:
    """The program that forks the processes. Use as `with ControllerProcesses(log) as controllers`."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def __enter__(self) -> ControllerProcesses:
        with self._log.open("ab") as log:
            self._program = subprocess.Popen(
                [sys.executable, "-m", __spec__.name],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._program.communicate(timeout=TIMEOUT)
        finally:
            self._program.kill()

    def run(self, *tasks: Object) -> list[Object]:
        """Run a process per task, started at the same moment. Return the exit status and the result of each.

        A task has `kubeconfig`, `name` (of an installation), `names`, `folder` and `passes`. `die` is optional: the
        number of the write at which the process dies, and whether it dies after that write.
        """
        assert self._program.stdin
        assert self._program.stdout
        self._program.stdin.write(json.dumps(tasks) + "\n")
        self._program.stdin.flush()
        line = self._program.stdout.readline()
        assert line, f"the program of the controllers has ended: {self._log.read_text(errors='replace')[-2000:]}"
        results: list[Object] = json.loads(line)
        return results


class RecordingClient:
    """An API client that counts its writes and conflicts, and kills its process at the chosen write."""

    def __init__(self, api: ApiClient, die: tuple[int, bool] | None) -> None:
        self._api, self._die = api, die
        self.writes = 0
        self.conflicts: Counter[str] = Counter()

    def get(self, path: str, timeout: float = 5) -> Object | None:
        return self._api.get(path, timeout)

    def send(self, method: str, path: str, body: Object, timeout: float) -> Object:
        self.writes += 1
        self._die_at(self.writes, False)
        try:
            written = self._api.send(method, path, body, timeout)
        except ApiError as error:
            self.conflicts[path.split("/")[-2]] += error.code == 409
            raise
        self._die_at(self.writes, True)
        return written

    def _die_at(self, write: int, done: bool) -> None:
        if self._die == (write, done):
            os.kill(os.getpid(), signal.SIGKILL)


def run_controller(task: Object, api: RecordingClient) -> Object:
    """Run a task. It waits for nothing between its passes, so its races are harder than those of real replicas."""
    policy = Policy(tuple(task["names"]), spread=timedelta(0))
    secret, configuration = ("kubevirt-scheduler", f"{task['name']}-tls"), task["name"]
    controller = CertificateController(
        api, secret=secret, configuration=configuration, policy=policy, folder=Path(task["folder"])
    )
    for _ in range(task["passes"]):
        controller.run_pass()
    return {"problem": controller.problem, "steps": controller.steps, "lost": api.conflicts}


def _run_together(tasks: list[Object]) -> list[Object]:
    ready, gate = os.pipe(), os.pipe()
    children = [_fork(task, ready, gate) for task in tasks]
    os.close(ready[1])
    os.read(ready[0], 1)  # end of file: each child has closed its own end
    os.close(gate[1])
    for end in ready[0], gate[0]:
        os.close(end)
    return [_result(pid, output) for pid, output in children]


def _fork(task: Object, ready: tuple[int, int], gate: tuple[int, int]) -> tuple[int, int]:
    output, writer = os.pipe()
    if pid := os.fork():
        os.close(writer)
        return pid, output
    os.dup2(2, 1)  # logs
    signal.alarm(TIMEOUT)
    die = tuple(task["die"]) if task.get("die") else None
    api = RecordingClient(ClusterClient.connect(task["kubeconfig"]), die)
    os.close(ready[1])
    os.close(gate[1])
    os.read(gate[0], 1)
    os.write(writer, json.dumps(run_controller(task, api)).encode())
    os._exit(0)


def _result(pid: int, output: int) -> Object:
    with os.fdopen(output, "rb") as pipe:
        text = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return {"status": status} | (json.loads(text) if text else {})


def main() -> None:
    """Run the tasks of each line of the standard input until it ends."""
    for line in sys.stdin:
        print(json.dumps(_run_together(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
