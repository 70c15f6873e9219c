"""Rounds of load on servers that run side by side: the requests, a check for equal answers, and the results.

This module measures nothing: run as a script, it prints nothing.
"""

from __future__ import annotations

import http.client
import json
import ssl
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import jsonpatch
from sides import NODES, OURS, PEER, REVIEW, TIMEOUT, Setup, Side, write_snapshot

SETTLING = 0.5  # seconds before memory is read
# Of the same length. The webhook writes an Event only for a review that names the VMI.
NAMES_THE_VMI, NAMES_NO_VMI = b'"kubevirt.io/domain":', b'"kubevirt.io/nobody":'


@dataclass(frozen=True, slots=True)
class Mode:
    """A kind of load. With `with_event=False` the review does not name the VMI, so the webhook writes no Event."""

    name: str
    connections: int
    fresh: bool = False
    with_event: bool = True


MODES = (
    Mode("1 connection", 1),
    Mode("8 connections", 8),
    Mode("25 connections", 25),
    Mode("8, each on a new connection", 8, fresh=True),
    Mode("8 connections, no event", 8, with_event=False),
)


@dataclass(frozen=True, slots=True)
class Round:
    """The result of one load on one side. `found` is the JSON that peer/cmd/load/result.go prints."""

    number: int
    mode: str
    side: str
    found: dict[str, Any]


def reviews(folder: Path) -> dict[bool, Path]:
    """Return files with the recorded review (True) and one of the same length that names no VMI (False)."""
    recorded = REVIEW.read_bytes()
    if NAMES_THE_VMI not in recorded:
        sys.exit(f"{REVIEW} does not name its VMI")
    silent = folder / "silent.json"
    silent.write_bytes(recorded.replace(NAMES_THE_VMI, NAMES_NO_VMI))
    return {True: REVIEW, False: silent}


def command(setup: Setup, side: Side, review: Path, *options: str) -> list[str]:
    """Return the command that puts load on a side."""
    target = [f"-url={side.url}", f"-ca={side.ca}", f"-review={review}", f"-cpu-of={','.join(map(str, side.pids))}"]
    return [str(setup.tools["load"]), *target, f"-core={setup.cores.server}", *options]


def load(setup: Setup, side: Side, review: Path, *options: str) -> dict[str, Any]:
    """Put load on a side from the benchmark's own core, and return the result."""
    completed = subprocess.run(
        command(setup, side, review, *options), stdout=subprocess.PIPE, stderr=None, check=False, text=True
    )
    if completed.returncode:
        sys.exit(f"the load on {side.name} failed; its log ends with:\n{side.log.read_text()[-2000:]}")
    found = dict(json.loads(completed.stdout))
    if not found["requests"]:
        sys.exit(
            f"{side.name} gave no correct answer: {found['failed']}; its log ends with:\n{side.log.read_text()[-2000:]}"
        )
    return found


def rounds(setup: Setup, sides: list[Side], number: int, seconds: float) -> Iterator[Round]:
    """Put load on each side in each mode, in an order that alternates from round to round."""
    review_files = reviews(setup.folder)
    for count in range(number):
        for mode in MODES:
            for side in sides if count % 2 == 0 else sides[::-1]:
                options = [f"-connections={mode.connections}", f"-for={seconds}s", *["-fresh"] * mode.fresh]
                yield Round(count, mode.name, side.name, load(setup, side, review_files[mode.with_event], *options))


def answer(side: Side, review: bytes) -> dict[str, Any]:
    """Send one review unchanged, and return the response."""
    url = urlsplit(side.url)
    trust = ssl.create_default_context(cafile=str(side.ca))
    connection = http.client.HTTPSConnection(url.hostname or "", url.port, timeout=TIMEOUT, context=trust)
    try:
        connection.request("POST", f"{url.path}?{url.query}", review, {"Content-Type": "application/json"})
        return dict(json.loads(connection.getresponse().read())["response"])
    finally:
        connection.close()


def placement(side: Side) -> tuple[Any, Any]:
    """Return the node affinity and the node name of the recorded pod after a side's patch."""
    review = REVIEW.read_bytes()
    pod, response = json.loads(review)["request"]["object"], answer(side, review)
    patched = jsonpatch.apply_patch(
        pod, json.loads(b64decode(response.get("patch", ""))) if "patch" in response else []
    )
    annotations = patched["metadata"]["annotations"]
    return patched["spec"]["affinity"]["nodeAffinity"], annotations.get("kubevirt-scheduler/co-scheduled-node")


def require_equal_answers(sides: list[Side]) -> None:
    """Exit unless all sides give the same answer and pin the pod."""
    found = {side.name: placement(side) for side in sides}
    first = found[sides[0].name]
    if first[1] != f"node-{1 % NODES}" or any(other != first for other in found.values()):
        answers = "\n".join(f"{name}: {json.dumps(terms)}" for name, terms in found.items())
        sys.exit(f"nothing is measured: the answers of the sides differ.\n{answers}")


def idle_memory(side: Side) -> float:
    """Return the memory of an idle side in MB."""
    time.sleep(SETTLING)
    return side.memory()


def measure_starts(setup: Setup, names: tuple[str, ...], number: int) -> dict[str, dict[str, float]]:
    """Start each side `number` times on a cluster without claims. Returns the median seconds and idle MB."""
    snapshot = write_snapshot(setup.folder / "empty.json", claims=0, nodes=1)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for _ in range(number):
        for name in names:
            with setup.serving(name, snapshot) as side:
                found[name].append((side.start_seconds, idle_memory(side)))
    return {
        name: {"seconds": median(took for took, _ in each), "mb": median(mb for _, mb in each)}
        for name, each in found.items()
    }


def ratios(found: list[Round], mode: str, key: str) -> tuple[float, float, float]:
    """Return ours / peer's: the ratio of the medians over all rounds, and the lowest and highest of a round."""
    by_side = {
        name: [each.found[key] for each in found if (each.mode, each.side) == (mode, name)] for name in (OURS, PEER)
    }
    each = [ours / peer for ours, peer in zip(by_side[OURS], by_side[PEER], strict=True)]
    return median(by_side[OURS]) / median(by_side[PEER]), min(each), max(each)
