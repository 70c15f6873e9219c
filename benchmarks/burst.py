"""Benchmark of bursts: many VMs start at the same time, with one or more replicas of the webhook.

The API server, default scheduler and controller manager are real. kwok stands in for the kubelets, and
tests/support/longhorn.py for Longhorn. There are two trials:

- 100 VMs whose share-managers are on one node that fits 40 VMs. The other nodes fit all VMs. The benchmark also creates
  the same pods without a webhook and, with --peer, with the webhook in Go of benchmarks/serve.py, in another order each
  time. So the comparison is valid on a machine whose speed drifts.
- pairs of VMs that start together, share a disk and have anti-affinity to each other.

A Service without session affinity sends each new connection to any replica. With it, one replica gets all calls: the
webhook configuration has its URL, so no Python proxy is involved. The other latencies include that proxy.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product

import click
from stage import Stage, progress, running_longhorn, running_peer, start_stage

from tests.support import burst
from tests.support.burst import Creation
from tests.support.controlplane.api import Object
from tests.support.replicas import Replicas
from tests.support.scenario import Scenario
from tests.support.webhook_process import REGISTRATIONS

VMS, ROOM, VOLUMES, OTHER_NODES = 100, 40, 20, 4
CLIENTS = (VMS, 10, 1)  # that create the VMs at the same time, each one VM after the other
TIMEOUT = 3  # seconds: timeoutSeconds of the chart
OURS, WITHOUT, PEER = "ours", "without", "in Go"
VM_PODS = "labelSelector=kubevirt.io/created-by"


@dataclass(frozen=True, slots=True)
class Configuration:
    """The number of replicas, and whether one of them gets all calls."""

    replicas: int
    session_affinity: bool = False

    @property
    def calls_one(self) -> bool:
        """Whether one replica gets all calls."""
        return self.session_affinity or self.replicas == 1

    @property
    def name(self) -> str:
        """The row's name in the tables."""
        return f"{self.replicas}, session affinity" if self.session_affinity else str(self.replicas)


CONFIGURATIONS = (Configuration(1), Configuration(2), Configuration(3), Configuration(2, session_affinity=True))


@dataclass(frozen=True, slots=True)
class Burst:
    """The result of one burst."""

    configuration: str
    clients: int
    refused: int
    undecided: int
    pending: int
    on_node: int
    latencies: dict[str, tuple[float, float]]  # of each side: p50 and p99 in seconds
    reasons: Counter[str]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The pods some time after their creation: how many run on each node, and the names of those that don't run."""

    nodes: Counter[str]
    pending: list[str]


def outcome(scenario: Scenario, created: Sequence[Creation], seconds: float) -> Outcome:
    """Return where the pods are as soon as all of them run, but after `seconds` at the latest."""
    names = {each.pod for each in created if each.pod}
    deadline = time.monotonic() + seconds
    while True:
        found = scenario.plane.request("GET", f"{scenario.pods}?resourceVersion=0")["items"]
        pods = {pod["metadata"]["name"]: pod for pod in found if pod["metadata"]["name"] in names}
        running = {name: pod for name, pod in pods.items() if pod["status"].get("phase") == "Running"}
        pending = sorted(names - running.keys())
        if not pending or time.monotonic() > deadline:
            return Outcome(Counter(pod["spec"]["nodeName"] for pod in running.values()), pending)
        time.sleep(0.5)


def without_webhook(pod: Object) -> Object:
    """Return the pod with a label for which the API server doesn't call the webhook."""
    labels = pod["metadata"]["labels"] | {"kubevirt.io": "unserved"}
    return pod | {"metadata": pod["metadata"] | {"labels": labels}}


@dataclass(frozen=True, slots=True)
class Trial:
    """The replicas of one configuration. A VM that does not run after `seconds` counts as Pending."""

    stage: Stage
    replicas: Replicas
    configuration: Configuration
    seconds: float

    @contextmanager
    def scenario(self) -> Iterator[Scenario]:
        """Yield a scenario of its own."""
        scenario = Scenario(self.stage.plane, self.stage.longhorn, self.replicas.first)
        try:
            yield scenario
        finally:
            scenario.close()

    def wait_served(self, scenario: Scenario, claim: str) -> None:
        """Wait until each replica that gets calls would pin a VM with this claim."""
        if self.configuration.calls_one:
            self.stage.plane.wait(lambda: bool(scenario.target_node(claim)), 20, f"a decision for claim {claim}")
        else:
            self.replicas.wait_until_all(lambda: bool(scenario.target_node(claim)), f"a decision for claim {claim}")

    def burst(self, clients: int, sides: Sequence[str]) -> Burst:
        """Create 100 VMs for each side in this order, and return the outcome for our webhook."""
        with self.scenario() as scenario:
            claims = [f"disk{number}" for number in range(VOLUMES)]
            (node,) = scenario.add_nodes(1, "served", kvm=str(ROOM))
            burst.serve_volumes(scenario, claims)
            scenario.add_nodes(OTHER_NODES, "other")
            self.wait_served(scenario, claims[-1])
            bursts = {}
            for turn, side in enumerate(sides):
                # New names: a VM whose pinned pod went away before it was bound is not pinned again for an hour.
                pods = [scenario.vm_pod(f"vm{turn}-{number}", claims[number % VOLUMES]) for number in range(VMS)]
                bursts[side] = self._create(scenario, side, pods, clients)
                if side == OURS:
                    found = outcome(scenario, bursts[side], self.seconds)
                self._delete_vms(scenario)
        created = bursts[OURS]
        return Burst(
            self.configuration.name,
            clients,
            sum(bool(each.error) for each in created),
            sum(not each.reason and not each.error for each in created),
            len(found.pending),
            found.nodes[node],
            {side: burst.latencies(created) for side, created in bursts.items()},
            Counter(each.reason for each in created),
        )

    def _create(self, scenario: Scenario, side: str, pods: list[Object], clients: int) -> list[Creation]:
        if side == OURS:
            return burst.create(scenario, pods, clients)
        if side == WITHOUT:
            return burst.create(scenario, [without_webhook(pod) for pod in pods], clients)
        with peer_registered(self.stage, self.replicas):
            return burst.create(scenario, pods, clients)

    def _delete_vms(self, scenario: Scenario) -> None:
        time.sleep(2)  # for the scheduler and kwok, which handle the last pods
        path = f"{scenario.pods}?gracePeriodSeconds=0&{VM_PODS}"
        self.stage.plane.wait(lambda: self.stage.plane.request("DELETE", path), 120, "the end of the VMs' pods")
        time.sleep(1)

    def pairs(self, number: int) -> int:
        """Create pairs of VMs with a shared disk and anti-affinity. Return how many pairs have a Pending VM."""
        with self.scenario() as scenario:
            scenario.add_nodes(4)
            claims = [f"disk{each}" for each in range(number)]
            burst.serve_volumes(scenario, claims)
            self.wait_served(scenario, claims[-1])
            created = []
            for claim in claims:
                pair = [scenario.anti_affinity_pod(f"vm-{claim}", claim) for _ in range(2)]
                created += burst.create(scenario, pair)
            return len(outcome(scenario, created, self.seconds).pending)


@contextmanager
def peer_registered(stage: Stage, replicas: Replicas) -> Iterator[None]:
    """Run the webhook in Go on the cluster as it is now, and let the API server call it instead of ours."""
    path = f"{REGISTRATIONS}/{replicas.first.name}"
    before = stage.plane.request("GET", path)["webhooks"][0]["clientConfig"]
    with running_peer(stage.plane, replicas.first.tls) as client:
        register(stage, path, client)
        try:
            yield
        finally:
            register(stage, path, before)


def register(stage: Stage, path: str, client: Object) -> None:
    """Let the API server call this webhook for VMs, and wait until it does."""
    stage.plane.request("PATCH", path, [{"op": "replace", "path": "/webhooks/0/clientConfig", "value": client}])
    time.sleep(1)


def describe(found: Burst) -> str:
    """Return the result of a burst in one line."""
    names = ("refused", "undecided", "pending", "on_node")
    counts = ", ".join(f"{getattr(found, name)} {name.replace('_', ' the ')}" for name in names)
    times = ", ".join(f"{side} p50 {p50:.2f} s p99 {p99:.2f} s" for side, (p50, p99) in sorted(found.latencies.items()))
    reasons = ", ".join(f"{name or 'none'} {number}" for name, number in found.reasons.most_common())
    return f"replicas {found.configuration}, {found.clients} clients: {counts}; {times}; {reasons}"


@click.command()
@click.option(
    "--only",
    type=click.Choice([each.name for each in CONFIGURATIONS]),
    multiple=True,
    help="Measure only this configuration. Can be repeated.",
)
@click.option("--peer", is_flag=True, help="With one replica: also measure a webhook in Go.")
@click.option("--runs", default=3, show_default=True, help="Bursts of each kind.")
@click.option("--pairs", default=30, show_default=True, help="Pairs of VMs.")
@click.option("--seconds", default=90.0, show_default=True, help="Time until a VM that does not run counts as Pending.")
def main(only: tuple[str, ...], peer: bool, runs: int, pairs: int, seconds: float) -> None:
    """Measure bursts of VMs with each configuration, and print the results."""
    with progress() as show_step, start_stage() as stage, running_longhorn(stage.longhorn):
        for configuration in [each for each in CONFIGURATIONS if not only or each.name in only]:
            name = f"burst{CONFIGURATIONS.index(configuration)}"
            with Replicas(stage.plane, name, stage.kubeconfig, configuration.replicas, timeout=TIMEOUT) as replicas:
                trial = Trial(stage, replicas, configuration, seconds)
                if configuration.calls_one:
                    replicas.register_one()
                # To several replicas, the pins of the webhook in Go look like those of another replica.
                sides = (OURS, WITHOUT, *[PEER] * (peer and configuration.replicas == 1))
                for run, clients in product(range(runs), CLIENTS):
                    show_step(f"replicas {configuration.name}: {VMS} VMs by {clients} clients")
                    first = run % len(sides)
                    print(describe(trial.burst(clients, sides[first:] + sides[:first])), flush=True)
                if pairs and configuration.replicas == 2:
                    show_step(f"replicas {configuration.name}: {pairs} pairs")
                    stuck = trial.pairs(pairs)
                    print(f"replicas {configuration.name}: {stuck} of {pairs} pairs stuck", flush=True)


if __name__ == "__main__":
    main()
