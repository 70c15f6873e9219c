"""Keepers of certificates in processes of their own, which may be made to end as by kill -9 at one of their writes.

A replica costs a second of CPU time before its first pass, nearly all of it imports. So this program imports once and
forks: what comes out of it are real processes, each with its own connections, threads and death.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from certs.by_hand import rotate
from certs.cluster import ApiClient, ApiError, CertificateObjects
from certs.renewal import Policy
from certs.rotate import CertificateController
from tests.support.paths import ROOT
from webhook.cluster.client import ClusterClient

Object = dict[str, Any]
LONGEST = 60  # seconds, then whatever does not end is ended


class Keepers:
    """`with Keepers(log) as keepers`: the program, and the way to ask it."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def __enter__(self) -> Keepers:
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
            self._program.communicate(timeout=LONGEST)
        finally:
            self._program.kill()

    def run(self, *orders: Object) -> list[Object]:
        """Have these processes begin at one moment; return the exit status of each and what it says of itself.

        An order has `kubeconfig`, `name` (of an installation), `names`, `folder` and `passes`; it may have `die`: the
        number of a write and whether it is to be done before; and `by_hand`: `rotate-ca --drop-old` instead of passes.
        """
        assert self._program.stdin
        assert self._program.stdout
        self._program.stdin.write(json.dumps(orders) + "\n")
        self._program.stdin.flush()
        line = self._program.stdout.readline()
        assert line, f"the keepers' program has ended: {self._log.read_text(errors='replace')[-2000:]}"
        answer: list[Object] = json.loads(line)
        return answer


class Recorded:
    """An API server, with a note of what was lost to somebody faster; and the end, where it was ordered."""

    def __init__(self, api: ApiClient, die: tuple[int, bool] | None) -> None:
        self._api, self._die = api, die
        self.writes = 0
        self.lost: Counter[str] = Counter()

    def get(self, path: str, timeout: float = 5) -> bytes | None:
        return self._api.get(path, timeout)

    def send(self, method: str, path: str, body: Object, timeout: float) -> Object:
        self.writes += 1
        self._end_at(self.writes, False)
        try:
            written = self._api.send(method, path, body, timeout)
        except ApiError as error:
            self.lost[path.split("/")[-2]] += error.code == 409
            raise
        self._end_at(self.writes, True)
        return written

    def _end_at(self, write: int, done: bool) -> None:
        if self._die == (write, done):
            os.kill(os.getpid(), signal.SIGKILL)


def keep(order: Object, api: Recorded) -> Object:
    """Do what was ordered, pass after pass without a wait, which makes a race harder than it is in life."""
    policy = Policy(tuple(order["names"]), spread=timedelta(0))
    secret, configuration = ("kubevirt-scheduler", f"{order['name']}-tls"), order["name"]
    if order.get("by_hand"):
        list(
            rotate(
                CertificateObjects(api, secret, configuration),
                policy,
                lambda: datetime.now(UTC),
                time.sleep,
                drop_old=True,
            )
        )
    keeper = CertificateController(
        api, secret=secret, configuration=configuration, policy=policy, folder=Path(order["folder"])
    )
    for _ in range(order["passes"]):
        keeper.run_pass()
    return {"problem": keeper.problem, "steps": keeper.steps, "lost": api.lost}


def _together(orders: list[Object]) -> list[Object]:
    ready, gate = os.pipe(), os.pipe()
    children = [_begin(order, ready, gate) for order in orders]
    os.close(ready[1])
    os.read(ready[0], 1)  # the end of file: each has closed its own
    os.close(gate[1])
    for end in ready[0], gate[0]:
        os.close(end)
    return [_ended(pid, said) for pid, said in children]


def _begin(order: Object, ready: tuple[int, int], gate: tuple[int, int]) -> tuple[int, int]:
    said, saying = os.pipe()
    if pid := os.fork():
        os.close(saying)
        return pid, said
    os.dup2(2, 1)  # logs
    signal.alarm(LONGEST)
    die = tuple(order["die"]) if order.get("die") else None
    api = Recorded(ClusterClient.connect(order["kubeconfig"]), die)
    os.close(ready[1])
    os.close(gate[1])
    os.read(gate[0], 1)
    os.write(saying, json.dumps(keep(order, api)).encode())
    os._exit(0)


def _ended(pid: int, said: int) -> Object:
    with os.fdopen(said, "rb") as pipe:
        text = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return {"status": status} | (json.loads(text) if text else {})


def main() -> None:
    """Follow orders until there are no more."""
    for line in sys.stdin:
        print(json.dumps(_together(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
