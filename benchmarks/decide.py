"""Benchmark of a decision, step by step, for a recorded VM start in a cluster of 10,000 claims and 1,000 nodes.

Each round times every step and, for comparison, the standard library's decoding of the whole review. So the ratio holds
on a machine whose speed drifts.
"""

import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from rich.console import Console
from rich.table import Table

from webhook.catalog.store import Store
from webhook.placement import patch
from webhook.placement.injector import decide, inject
from webhook.placement.objects.facts import Claim, Fact, Node, Pod, ShareManager, Volume
from webhook.placement.objects.resources import amounts
from webhook.placement.patch import patch_for
from webhook.placement.settings import Settings
from webhook.serving.review.admission_review import read_review, write_review

REVIEW = Path(__file__).parent.parent / "tests/data/reviews/vm-start.json"
CLAIMS, NODES, ROUNDS = 10_000, 1_000, 5_000

LABELS = {"kubernetes.io/arch": "amd64", "kubevirt.io/schedulable": "true", "machine-type.node.kubevirt.io/q35": "true"}
DEVICES = {f"devices.kubevirt.io/{name}": "1k" for name in ("kvm", "tun", "vhost-net")}
ALLOCATABLE = amounts(
    {"cpu": "64", "memory": "256Gi", "pods": "110", "ephemeral-storage": "1Ti"} | DEVICES, "status.allocatable"
)


def storage(number: int) -> list[Fact]:
    """Return a claim with its PV, ShareManager and share-manager pod. The recorded VM mounts claim number 1."""
    node, volume = f"node-{number % NODES}", f"vol-disk{number}"
    labels = {"longhorn.io/component": "share-manager", "longhorn.io/share-manager": volume}
    name = f"share-manager-{volume}"
    pod = Pod("longhorn-system", name, name, node, node, True, "", labels, {"pods": 1}, (), (), frozenset(), "")
    return [
        Claim("default", f"disk{number}", f"pvc-disk{number}", shared=True, state_of=""),
        Volume(f"pvc-disk{number}", volume, ("default", f"disk{number}"), None),
        ShareManager("longhorn-system", volume, "running", node, deleting=False),
        pod,
    ]


def cluster() -> Store:
    """Return the catalog of the cluster: claims 0 to 9,999 on nodes 0 to 999."""
    nodes = (Node(f"node-{number}", LABELS, True, False, (), ALLOCATABLE) for number in range(NODES))
    return Store([*nodes, *(fact for number in range(CLAIMS) for fact in storage(number))])


def steps() -> dict[str, Callable[[], Any]]:
    """Return the steps to time. The second to last is the whole decision, the last is the baseline."""
    body, store, settings = REVIEW.read_bytes(), cluster(), Settings()
    review = read_review(body, settings)
    injection = inject(review, store, settings)
    if injection.decision.node != "node-1" or not injection.patch:
        sys.exit(f"unexpected decision: {injection.decision}")
    decision, pod, operations = injection.decision, review.manifest.pod, injection.patch
    before = {"metadata": {"annotations": pod.metadata.annotations}, "spec": {"affinity": review.manifest.affinity}}
    after = patch.apply_patch(operations, before)

    def whole() -> bytes:
        received = read_review(body, settings)
        return write_review(received.uid, inject(received, store, settings), "")

    return {
        "read": lambda: read_review(body, settings),
        "decide": lambda: decide(review, store, settings),
        "build the patch": lambda: patch_for(decision, review.manifest, settings),
        "  of it, verify": lambda: patch.apply_patch(operations, before) == after,
        "encode": lambda: write_review("uid", injection, ""),
        "all together": whole,
        "baseline: json.loads": lambda: json.loads(body),
    }


def main() -> None:
    """Time each step in turn, and print its figures."""
    found: dict[str, list[float]] = {}
    timed_steps = steps()
    # Like the server: exclude the objects of the start from garbage collection.
    gc.collect()
    gc.freeze()
    for number in range(ROUNDS + 200):
        for name, step in timed_steps.items():
            start = time.perf_counter_ns()
            step()
            microseconds = (time.perf_counter_ns() - start) / 1000
            if number >= 200:  # after the warm-up of the caches
                found.setdefault(name, []).append(microseconds)
    table = Table(title=f"{ROUNDS:,} rounds, {CLAIMS:,} claims, {NODES:,} nodes; microseconds")
    for heading in ("step", "p50", "p99", "p50 in baselines"):
        table.add_column(heading, justify="left" if heading == "step" else "right")
    baseline = median(found["baseline: json.loads"])
    for name, values in found.items():
        p50, p99 = median(values), quantiles(values, n=100)[98]
        table.add_row(name, f"{p50:.1f}", f"{p99:.1f}", f"{p50 / baseline:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
