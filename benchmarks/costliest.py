"""Search for the review, or with --handshakes the TLS handshake, that costs the most CPU in one turn.

Reviews are random pods within 512 KiB, of which the worst are kept and mutated. Each pod has the fields that a decision
reads, with random numbers of items. The cost is the CPU time from the body to the response, without decoding the body.
Beside it runs the review of a recorded VM, in the same cluster of 1,000 nodes.
"""

import copy
import json
import logging
import random
import ssl
import sys
import time
from collections.abc import Iterable
from typing import Any, BinaryIO

import click
from decide import REVIEW, cluster
from handshakes import search_handshakes
from rich.console import Console
from rich.table import Table

from webhook.cluster.backend import from_snapshot
from webhook.placement.settings import Settings
from webhook.serving.review.admission_review import REVIEW_LIMIT, is_oversized, read_review
from webhook.serving.review.reviewer import Reviewer
from webhook.serving.telemetry.metrics import Metrics

KEPT = 24  # of the costliest pods
FRESH = 0.3  # the share of pods that are not mutations of these
MAX_ITEMS = 20_000
REPEATS = 3  # of a pod that may be among the costliest: the lowest cost counts

# What a string may be. The number of the item replaces %d.
KEY = ["kubernetes.io/hostname", "kubernetes.io/arch", "topology.kubernetes.io/zone", "metadata.name", "key-%d"]
VALUE = ["", "amd64", "node-1", "value-%d", "x" * 63, "y" * 4000]
OPERATOR = ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Made-up"]
QUANTITY = ["1", "%dm", "0.%d", "1." + "0" * 30 + "%d", "9" * 400 + "Gi", "1e%d", 12, None, "%d x"]
RESOURCE = ["cpu", "memory", "ephemeral-storage", "example.com/device-%d", "hugepages-%d", "requests.%d"]
CLAIM = ["disk1", "disk%d", "claim-%d"]

REQUIREMENT = {"key": KEY, "operator": OPERATOR, "values": [VALUE, ...]}
NODE_TERM = {"matchExpressions": [REQUIREMENT, ...], "matchFields": [REQUIREMENT, ...]}
SELECTOR = {"matchLabels": {KEY[-1]: VALUE}, "matchExpressions": [REQUIREMENT, ...]}
POD_TERM = {
    "topologyKey": KEY,
    "labelSelector": SELECTOR,
    "namespaceSelector": SELECTOR,
    "namespaces": [VALUE, ...],
    "matchLabelKeys": [KEY, ...],
}
WEIGHTED = {"weight": [1, 100, -1], "preference": NODE_TERM, "podAffinityTerm": POD_TERM}
REQUIRED, PREFERRED = (f"{each}DuringSchedulingIgnoredDuringExecution" for each in ("required", "preferred"))
POD_TERMS = {REQUIRED: [POD_TERM, ...], PREFERRED: [WEIGHTED, ...]}
RESOURCES = {"requests": {RESOURCE[3]: QUANTITY}, "limits": {RESOURCE[3]: QUANTITY}, "claims": [{"name": VALUE}, ...]}
CONTAINER = {
    "name": VALUE,
    "restartPolicy": ["Always", ""],
    "resources": RESOURCES,
    "ports": [{"hostPort": [0, 80]}, ...],
}
TOLERATION = {"key": KEY, "operator": OPERATOR, "value": VALUE, "effect": ["NoSchedule", "NoExecute", "", "%d"]}
# A list of choices is a string; with an ellipsis, it is a list; a map of one choice has keys that are numbered.
POD = {
    "metadata": {
        "labels": {KEY[-1]: VALUE},
        "annotations": {KEY[-1]: [*VALUE, "true", "false"]},
        "ownerReferences": [{"kind": VALUE, "name": VALUE, "uid": VALUE, "controller": [True, False]}, ...],
        "managedFields": [{"time": [*VALUE, "2026-01-01T00:00:%02dZ"]}, ...],
    },
    "spec": {
        "affinity": {
            "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [NODE_TERM, ...]}, PREFERRED: [WEIGHTED, ...]},
            "podAffinity": POD_TERMS,
            "podAntiAffinity": POD_TERMS,
        },
        "nodeSelector": {KEY[-1]: VALUE},
        "tolerations": [TOLERATION, ...],
        "topologySpreadConstraints": [{"topologyKey": KEY, "labelSelector": SELECTOR}, ...],
        "schedulingGates": [{"name": VALUE}, ...],
        "resourceClaims": [{"name": VALUE}, ...],
        "overhead": {RESOURCE[3]: QUANTITY},
        "resources": RESOURCES,
        "containers": [CONTAINER, ...],
        "initContainers": [CONTAINER, ...],
        "volumes": [{"name": VALUE, "persistentVolumeClaim": {"claimName": CLAIM}, "ephemeral": {"a": VALUE}}, ...],
    },
}


def number_of_items(chance: random.Random) -> int:
    """Return a number of items: most are small, because one list of many items takes all of the bytes."""
    return int(MAX_ITEMS ** (chance.random() ** 2)) if chance.random() < 0.7 else 1


def generate(schema: Any, chance: random.Random, number: int = 0) -> Any:
    """Return a random value of a schema. `number` is the index of the list's item that contains the value."""
    if isinstance(schema, dict):
        [*names] = schema
        if len(names) == 1 and "%d" in names[0]:
            value = generate(schema[names[0]], chance)
            return {names[0].replace("%d", str(each)): value for each in range(number_of_items(chance))}
        share = chance.random()
        return {name: generate(schema[name], chance, number) for name in names if chance.random() < share}
    if ... in schema:
        template = json.dumps(generate(schema[0], chance), separators=(",", ":"))
        count = min(number_of_items(chance), REVIEW_LIMIT // (len(template) + 1))
        return [
            json.loads(template.replace("%02d", f"{each % 60:02}").replace("%d", str(each))) for each in range(count)
        ]
    return chance.choice(schema)


def mutate(pod: Any, chance: random.Random) -> Any:
    """Return a copy of a generated pod in which one field is generated again, repeated or cut."""
    pod = copy.deepcopy(pod)
    schema: Any = POD
    parent, name = pod, chance.choice(list(schema))
    while True:
        schema, value = schema[name], parent.get(name)
        is_structure = isinstance(schema, dict) and not (len(schema) == 1 and "%d" in next(iter(schema)))
        if not is_structure or not isinstance(value, dict) or chance.random() < 0.2:
            break
        parent, name = value, chance.choice(list(schema))
    if isinstance(value, list) and value and chance.random() < 0.5:
        parent[name] = chance.choice([value * 2, value[: len(value) // 2]])
    else:
        parent[name] = generate(schema, chance)
    return pod


class Costs:
    """Measures reviews in one cluster. The review of a recorded VM has the fields that every pod keeps."""

    def __init__(self) -> None:
        settings = Settings()
        self._reviewer = Reviewer(from_snapshot(cluster(), settings), settings, Metrics(), log_decision=lambda _: None)
        self._recorded = json.loads(REVIEW.read_bytes())

    def body(self, pod: Any) -> bytes:
        """Return the review of the recorded VM, with the fields of `pod`."""
        review = copy.deepcopy(self._recorded)
        recorded = review["request"]["object"]
        for part in ("metadata", "spec"):
            for name, value in (pod.get(part) or {}).items():
                merged = isinstance(value, dict) and name in ("labels", "annotations")
                recorded[part][name] = value | recorded[part][name] if merged else value
        if volumes := (pod.get("spec") or {}).get("volumes"):
            recorded["spec"]["volumes"] = [{"name": "a", "persistentVolumeClaim": {"claimName": "disk1"}}, *volumes]
        return json.dumps(review, separators=(",", ":")).encode()

    def milliseconds(self, body: bytes) -> float:
        """Return the CPU time of a response, without that of decoding the body."""
        begin = time.process_time()
        read_review(body, Settings())
        decoded = time.process_time()
        self._reviewer.answer(body, time.monotonic(), 10.0)
        return 1000 * (time.process_time() - decoded - (decoded - begin))

    def lowest(self, body: bytes, repeats: int = REPEATS) -> float:
        """Return the lowest cost of several tries: another process on the core makes a try slower, not faster."""
        return min(self.milliseconds(body) for _ in range(repeats))


def search(costs: Costs, seconds: float, seed: int) -> list[tuple[float, int, Any]]:
    """Return the costliest pods, the worst first: milliseconds, bytes of the review, and the pod."""
    chance, worst = random.Random(seed), list[tuple[float, int, Any]]()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        is_fresh = not worst or chance.random() < FRESH
        pod = generate(POD, chance) if is_fresh else mutate(chance.choice(worst)[2], chance)
        body = costs.body(pod)
        if is_oversized(body):
            continue
        cost, limit = costs.milliseconds(body), worst[-1][0] if len(worst) == KEPT else 0.0
        if cost > limit and (cost := costs.lowest(body)) > limit:
            worst = sorted([*worst, (cost, len(body), pod)], key=lambda each: -each[0])[:KEPT]
    return worst


def outline(value: Any, depth: int = 4) -> str:
    """Return the fields of a pod with their numbers of items."""
    if isinstance(value, dict) and len(value) <= 8 and depth:
        return ", ".join(f"{name} {outline(part, depth - 1)}".strip() for name, part in value.items() if part)
    return f"x{len(value)}" if isinstance(value, (dict, list)) else ""


def report(title: str, baseline: float, rows: Iterable[tuple[float, int, str]]) -> None:
    """Print rows of milliseconds, bytes and what was sent, beside the milliseconds of an ordinary one."""
    table = Table(title=f"{title} takes {baseline:.2f} ms")
    for heading in ("ms", "x", "KB", "sent"):
        table.add_column(heading, justify="left" if heading == "sent" else "right", overflow="fold")
    for cost, size, sent in rows:
        table.add_row(f"{cost:.2f}", f"{cost / baseline:.0f}", f"{size / 1000:.0f}", sent)
    Console(width=None if sys.stdout.isatty() else 120).print(table)


@click.command()
@click.option("--seconds", default=60.0, show_default=True, help="How long to search.")
@click.option("--seed", default=0, show_default=True, help="The seed of the random numbers.")
@click.option("--handshakes", is_flag=True, help="Search for the costliest handshake, on the OpenSSL of this Python.")
@click.option("--save", type=click.File("wb"), help="A file for the body of the costliest review.")
def main(seconds: float, seed: int, save: BinaryIO | None, *, handshakes: bool) -> None:
    """Search for the costliest review or handshake, and print the worst beside an ordinary one."""
    logging.disable()
    if handshakes:
        baseline, turns = search_handshakes(seconds, seed)
        report(f"CPU of one turn on {ssl.OPENSSL_VERSION}; a client of its library", baseline, turns[:8])
        return
    costs = Costs()
    baseline = costs.lowest(REVIEW.read_bytes(), 500)
    worst = search(costs, seconds, seed)
    rows = [(cost, size, outline(pod)) for cost, size, pod in worst[:5]]
    report("CPU beside decoding; the recorded VM", baseline, rows)
    if save:
        save.write(costs.body(worst[0][2]))


if __name__ == "__main__":
    main()
