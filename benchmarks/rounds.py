"""Rounds of load on servers that stand side by side: what is sent, whether the answers are the same, what came of it.

It measures nothing itself: run alone, it prints nothing.
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
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import jsonpatch
from sides import NODES, OURS, PATIENCE, PEER, REVIEW, Arena, Side, write_snapshot

SETTLING = 0.5  # seconds from a start until memory is read
# The same in length; only who names the VMI is told of a decision.
NAMES_THE_VMI, NAMES_NONE = b'"kubevirt.io/domain":', b'"kubevirt.io/nobody":'


@dataclass(frozen=True, slots=True)
class Mode:
    """A kind of load. Where nobody is told, the review does not name the VMI, so that we write no event about it."""

    name: str
    connections: int
    fresh: bool = False
    told: bool = True


MODES = (
    Mode("1 connection", 1),
    Mode("8 connections", 8),
    Mode("25 connections", 25),
    Mode("8, each on a new connection", 8, fresh=True),
    Mode("8 connections, no event", 8, told=False),
)


@dataclass(frozen=True, slots=True)
class Round:
    """What came of one load on one side: its one line of JSON, see peer/cmd/load/result.go."""

    number: int
    mode: str
    side: str
    found: dict[str, Any]


def reviews(folder: Path) -> dict[bool, Path]:
    """Return the recorded review, and one as long that names no VMI, by whether an event comes of it."""
    recorded = REVIEW.read_bytes()
    if NAMES_THE_VMI not in recorded:
        sys.exit(f"{REVIEW} does not name its VMI")
    silent = folder / "silent.json"
    silent.write_bytes(recorded.replace(NAMES_THE_VMI, NAMES_NONE))
    return {True: REVIEW, False: silent}


def command(arena: Arena, side: Side, review: Path, *options: str) -> list[str]:
    """Return how to call a side."""
    target = [f"-url={side.url}", f"-ca={side.ca}", f"-review={review}", f"-cpu-of={','.join(map(str, side.pids))}"]
    return [str(arena.tools["load"]), *target, f"-core={arena.cores.server}", *options]


def load(arena: Arena, side: Side, review: Path, *options: str) -> dict[str, Any]:
    """Call a side until the time is over, from our own core."""
    done = subprocess.run(
        command(arena, side, review, *options), stdout=subprocess.PIPE, stderr=None, check=False, text=True
    )
    if done.returncode:
        sys.exit(f"the load on {side.name} failed; its log ends with:\n{side.log.read_text()[-2000:]}")
    found = dict(json.loads(done.stdout))
    if not found["requests"]:
        sys.exit(
            f"{side.name} gave no right answer: {found['failed']}; its log ends with:\n{side.log.read_text()[-2000:]}"
        )
    return found


def rounds(arena: Arena, sides: list[Side], number: int, seconds: float) -> Iterator[Round]:
    """Load each side in each mode, in turn; which one is first changes from round to round."""
    sent = reviews(arena.folder)
    for count in range(number):
        for mode in MODES:
            for side in sides if count % 2 == 0 else sides[::-1]:
                options = [f"-connections={mode.connections}", f"-for={seconds}s", *["-fresh"] * mode.fresh]
                yield Round(count, mode.name, side.name, load(arena, side, sent[mode.told], *options))


def answer(side: Side, review: bytes) -> dict[str, Any]:
    """Send one review as it is, and return the response."""
    url = urlsplit(side.url)
    trust = ssl.create_default_context(cafile=str(side.ca))
    connection = http.client.HTTPSConnection(url.hostname or "", url.port, timeout=PATIENCE, context=trust)
    try:
        connection.request("POST", f"{url.path}?{url.query}", review, {"Content-Type": "application/json"})
        return dict(json.loads(connection.getresponse().read())["response"])
    finally:
        connection.close()


def meant(side: Side) -> tuple[Any, Any]:
    """Return the node affinity and the node's name in the recorded pod, as a side has it after its patch."""
    review = REVIEW.read_bytes()
    pod, response = json.loads(review)["request"]["object"], answer(side, review)
    after = jsonpatch.apply_patch(pod, json.loads(b64decode(response.get("patch", ""))) if "patch" in response else [])
    annotations = after["metadata"]["annotations"]
    return after["spec"]["affinity"]["nodeAffinity"], annotations.get("kubevirt-scheduler/co-scheduled-node")


def hold_the_same(sides: list[Side]) -> None:
    """Refuse to compare sides that do not answer the same, or that do not pin."""
    found = {side.name: meant(side) for side in sides}
    first = found[sides[0].name]
    if first[1] != f"node-{1 % NODES}" or any(other != first for other in found.values()):
        told = "\n".join(f"{name}: {json.dumps(terms)}" for name, terms in found.items())
        sys.exit(f"nothing is measured: the sides do not answer the same.\n{told}")


def settled(side: Side) -> float:
    """Return what a side has in memory when it has come to rest."""
    time.sleep(SETTLING)
    return side.memory()


def starts(arena: Arena, names: tuple[str, ...], number: int) -> dict[str, dict[str, float]]:
    """Start each side so many times on a cluster without claims; return the medians of seconds and of idle MB."""
    snapshot = write_snapshot(arena.folder / "empty.json", claims=0, nodes=1)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for _ in range(number):
        for name in names:
            with arena.serving(name, snapshot) as side:
                found[name].append((side.started, settled(side)))
    return {
        name: {"seconds": median(took for took, _ in each), "mb": median(mb for _, mb in each)}
        for name, each in found.items()
    }


def ratios(found: list[Round], mode: str, key: str) -> tuple[float, float, float]:
    """Return ours by the peer's: of the medians over all rounds, and the lowest and highest of one round."""
    by_side = {
        name: [each.found[key] for each in found if (each.mode, each.side) == (mode, name)] for name in (OURS, PEER)
    }
    each = [ours / peer for ours, peer in zip(by_side[OURS], by_side[PEER], strict=True)]
    return median(by_side[OURS]) / median(by_side[PEER]), min(each), max(each)


def all_sides(arena: Arena, stack: ExitStack, names: tuple[str, ...], snapshot: Path) -> list[Side]:
    """Start the sides, until the stack ends."""
    return [stack.enter_context(arena.serving(name, snapshot)) for name in names]
