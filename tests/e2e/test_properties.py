"""Property: the webhook never makes a pod unschedulable, and pins each VM that the real scheduler would admit.

Random clusters, each with many random VMs. The scheduler reports which nodes it admits for a VM with and without the
opt-in (`FeasibleNodes`), and binds neither pod. The test prints its seed; `E2E_SEED=<seed>` draws the
same clusters and VMs again.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import random
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any

import hypothesis
import pytest
from hypothesis.strategies import SearchStrategy

from tests.support.controlplane.api import LOOPBACK, ApiError, Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.programs import DISREGARD_STATUS
from tests.support.json_server import JsonServer
from tests.support.longhorn import STORAGE, VOLUMES
from tests.support.measured import Measured
from tests.support.random_clusters import HIGH, OTHER_DRIVER, mounting_pods, served_clusters
from tests.support.scenario import CO_SCHEDULED, DECISION, POOL
from tests.support.webhook_process import WEBHOOK_LABEL, Webhook
from webhook.catalog.storage_kinds import LONGHORN_DRIVER

pytestmark = pytest.mark.controlplane

NAME = "reports-feasible-nodes"
SEED = int(os.environ.get("E2E_SEED") or random.randrange(2**32))
CLUSTERS, VMS = 12, 10  # VMs of each cluster
PARALLEL = 4
ATTEMPTS = 3  # the watches of the webhook and of the scheduler may be behind
OPT_IN = "kubevirt-scheduler/co-schedule"
RUNTIME, OVERHEAD = "with-overhead", {"cpu": "250m", "memory": "120Mi"}
VMIS = "/apis/kubevirt.io/v1/namespaces/{}/virtualmachineinstances"
NUMBERS = itertools.count(1)
# The guard may refuse a node that the scheduler admits: it does not evaluate a field, or KubeVirt could not run there.
CAUTIOUS = ("Unjudged", "NodeNotReady")


def draw(strategy: SearchStrategy[Any], count: int) -> list[Any]:
    """Return random values of SEED."""
    found: list[Any] = []

    @hypothesis.seed(SEED)
    @hypothesis.settings(
        max_examples=count,
        phases=[hypothesis.Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(strategy)
    def collect(value: Any) -> None:
        found.append(value)

    collect()
    return found


class FeasibleNodes:
    """A real kube-scheduler that reports the nodes which a pod with `schedulerName: NAME` fits, and binds no pod.

    A scheduler asks its extender after its own filters. This extender records the nodes that the filters admit, and
    then rejects all of them. So a pod never occupies a node, and pods can be compared one after another.
    """

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._feasible: dict[str, frozenset[str]] = {}

    def reject_all(self, arguments: Object) -> Object:
        """Answer as the extender."""
        names = arguments["NodeNames"] or []
        self._feasible[arguments["Pod"]["metadata"]["uid"]] = frozenset(names)
        return {"NodeNames": [], "FailedNodes": dict.fromkeys(names, "this scheduler binds no pod")}

    def of(self, path: str) -> frozenset[str]:
        """Wait for the verdict on an existing pod, and return the nodes that the filters admit."""

        def evaluated() -> Object | None:
            pod = self._plane.request("GET", path)
            conditions = pod["status"].get("conditions", [])
            return pod if any(each["type"] == "PodScheduled" for each in conditions) else None

        pod = self._plane.wait(evaluated, 20, f"a PodScheduled condition of {path}")
        # The scheduler does not ask the extender about a pod that fits no node.
        return self._feasible.get(pod["metadata"]["uid"], frozenset())


class Cluster:
    """A drawn cluster in two namespaces that earlier clusters used. Its nodes have names and zones of their own."""

    def __init__(
        self, plane: ControlPlane, scheduler: FeasibleNodes, namespaces: tuple[str, str], drawn: Object
    ) -> None:
        self.plane, self.scheduler = plane, scheduler
        self.namespace, self.other = namespaces
        self.name = f"c{next(NUMBERS)}"
        self.drawn = self._renamed(drawn)
        self.pods = f"/api/v1/namespaces/{self.namespace}/pods"
        self.claims = f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims"

    def _renamed(self, drawn: Object) -> Any:
        text = re.sub(r"node-(?:[a-d]|gone)\b|disk[1-3]|\bdata\b|east|west", rf"{self.name}-\g<0>", json.dumps(drawn))
        return json.loads(text.replace('"default"', f'"{self.namespace}"').replace('"other"', f'"{self.other}"'))

    def build(self) -> None:
        for node in self.drawn["nodes"]:
            self.plane.request("POST", "/api/v1/nodes", self._node(node))
        for name, limit in self.drawn["limits"].items():
            driver = {"name": OTHER_DRIVER, "nodeID": name} | (
                {} if limit is None else {"allocatable": {"count": limit}}
            )
            longhorn = {"name": LONGHORN_DRIVER, "nodeID": name}
            csi_node = {"metadata": {"name": name}, "spec": {"drivers": [driver, longhorn]}}
            self.plane.request("POST", f"{STORAGE}/csinodes", csi_node)
        for disk in [*self.drawn["disks"], self.drawn["foreign"]]:
            self._create_disk(disk)
        for pod in [*self.drawn["pods"], *(disk["pod"] for disk in self.drawn["disks"])]:
            self._create_pod(pod)
        self.plane.wait(self._is_built, 20, f"the nodes and claims of {self.name}")

    def _node(self, node: Object) -> Object:
        """Return the node as drawn, with default allocatable resources: every kubelet reports some."""
        node["metadata"]["labels"][POOL] = self.name
        node["metadata"]["annotations"] = {DISREGARD_STATUS: "true"}
        node["status"]["allocatable"] = {"pods": "110", "cpu": "8", "memory": "8Gi"} | node["status"].get(
            "allocatable", {}
        )
        return node

    def _create_disk(self, disk: Object) -> None:
        pvc, pv = disk["pvc"], disk["pv"]
        volume_name = pvc["spec"].pop("volumeName")
        size = {"resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "", "volumeName": volume_name}
        created = self.plane.request("POST", self.claims, pvc | {"spec": pvc["spec"] | size})
        # With the claim's UID, the controller manager binds the claim at once.
        pv["spec"]["claimRef"]["uid"] = created["metadata"]["uid"]
        self.plane.request("POST", VOLUMES, pv)

    def _create_pod(self, pod: Object) -> None:
        spec, status = pod["spec"], pod.pop("status")
        metadata = pod["metadata"]
        terminating = metadata.pop("deletionTimestamp", None)
        metadata.pop("deletionGracePeriodSeconds", None)
        metadata["annotations"] = {DISREGARD_STATUS: "true"}
        spec["tolerations"] = [{"operator": "Exists"}]  # so that no taint evicts the pod
        if not spec.get("nodeName"):
            # Only the scheduler that evaluates the VMs counts its nominated pods. None of them fits a node.
            spec |= {"schedulerName": NAME, "nodeSelector": {"no": "node"}}
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods"
        self.plane.request("POST", path, pod)
        self.plane.request("PATCH", f"{path}/{metadata['name']}/status", {"status": status})
        if terminating:
            self.plane.request("DELETE", f"{path}/{metadata['name']}?gracePeriodSeconds=30")

    def _is_built(self) -> bool:
        """Return whether the controller manager has tainted the nodes and bound the claims."""
        nodes = self.plane.request("GET", f"/api/v1/nodes?labelSelector={POOL}%3D{self.name}")["items"]
        claims = self.plane.request("GET", self.claims)["items"]
        bound = [each for each in claims if each["status"]["phase"] == "Bound"]
        return all(map(_has_expected_taints, nodes)) and len(bound) == len(self.drawn["disks"]) + 1

    def verdict(self, drawn: Object) -> tuple[str, str]:
        """Compare the nodes that the scheduler admits for a VM without and with the opt-in."""
        vm = self._renamed(drawn)
        verdict = "", ""
        for _ in range(ATTEMPTS):
            verdict = self._compare(vm)
            if not verdict[1]:
                break
        return verdict

    def _compare(self, vm: Object) -> tuple[str, str]:
        pods = [self._create_vm(vm, opt_in) for opt_in in ("false", "true")]
        paths = [f"{self.pods}/{pod['metadata']['name']}" for pod in pods]
        before, after = map(self.scheduler.of, paths)
        for path in paths:
            self.plane.request("DELETE", f"{path}?gracePeriodSeconds=0")
        return _verdict(pods[1], before, after)

    def _create_vm(self, vm: Object, opt_in: str) -> Object:
        pod: Object = json.loads(json.dumps(vm))
        # A new name each time: the webhook remembers a VM whose pod did not start.
        annotations = {OPT_IN: opt_in, "kubevirt.io/domain": f"{self.name}-vm{next(NUMBERS)}"}
        pod["metadata"]["annotations"] |= annotations
        pod["metadata"]["labels"]["kubevirt.io/created-by"] = VMI_UIDS[self.namespace]
        pod["spec"] |= {"schedulerName": NAME, "nodeSelector": pod["spec"].get("nodeSelector", {}) | {POOL: self.name}}
        if pod["spec"].pop("overhead", None):
            pod["spec"]["runtimeClassName"] = RUNTIME
        return self.plane.request("POST", self.pods, pod)

    def close(self) -> None:
        paths = [f"/api/v1/nodes?labelSelector={POOL}%3D{self.name}"]
        for namespace in self.namespace, self.other:
            paths.append(f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0")
            paths.append(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims")
        paths += [f"{STORAGE}/csinodes/{name}" for name in self.drawn["limits"]]
        for disk in [*self.drawn["disks"], self.drawn["foreign"]]:
            server = disk["pod"]["metadata"]
            paths.append(f"{VOLUMES}/{disk['pv']['metadata']['name']}")
            paths.append(f"/api/v1/namespaces/{server['namespace']}/pods/{server['name']}?gracePeriodSeconds=0")
        for path in paths:
            with suppress(ApiError):
                self.plane.request("DELETE", path)


VMI_UIDS: dict[str, str] = {}  # by namespace


def _verdict(pod: Object, before: frozenset[str], after: frozenset[str]) -> tuple[str, str]:
    """Return the decision on a VM, and what is wrong with it, if anything.

    `pod` is the opted-in pod. `before` are the nodes that the scheduler admits without the opt-in, `after` with it.
    """
    annotations = pod["metadata"]["annotations"]
    node, decision = annotations.get(CO_SCHEDULED, ""), annotations[DECISION]
    reason = decision.partition(":")[0]
    found = f"{decision}; admitted nodes: {sorted(before)} without the opt-in, {sorted(after)} with it"
    if reason == "CoScheduled" and after != {node}:
        return "STRANDED", found
    if reason != "CoScheduled" and after != before:
        return "CHANGED", found
    if reason != "CoScheduled" and node in before and reason not in CAUTIOUS:
        return "NEEDLESS", found
    return (reason if before else "unschedulable anyway"), ""


def _has_expected_taints(node: Object) -> bool:
    taints = {taint["key"] for taint in node["spec"].get("taints", [])}
    conditions = {each["type"]: each["status"] for each in node["status"].get("conditions", [])}
    healthy = conditions.get("Ready", "True") == "True"
    cordoned = bool(node["spec"].get("unschedulable"))
    tainted = bool(taints & {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})
    return tainted is not healthy and ("node.kubernetes.io/unschedulable" in taints) is cordoned


@pytest.fixture
def scheduler(plane: ControlPlane) -> Iterator[FeasibleNodes]:
    """Run the scheduler and its extender."""
    found = FeasibleNodes(plane)
    with JsonServer(found.reject_all) as extender:
        filters = {
            "urlPrefix": f"http://{LOOPBACK}:{extender.address[1]}",
            "filterVerb": "filter",
            "weight": 1,
            "nodeCacheCapable": True,
            "httpTimeout": "20s",
        }
        process = plane.start_scheduler(
            NAME, leader_elect=False, profile={"percentageOfNodesToScore": 100}, extender=filters
        )
        try:
            yield found
        finally:
            process.kill()


@pytest.fixture
def namespaces(plane: ControlPlane, webhook: Webhook) -> queue.SimpleQueue[tuple[str, str]]:
    """Pairs of namespaces, one for each parallel cluster. The webhook handles the VMs of the first in each pair."""
    free: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    for number in range(PARALLEL):
        pair = tuple(plane.create_namespace(f"property-{number}-{which}") for which in ("own", "other"))
        labels = {"metadata": {"labels": {WEBHOOK_LABEL: webhook.name}}}
        plane.request("PATCH", f"/api/v1/namespaces/{pair[0]}", labels)
        vmi = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "vm"}}
        vmi = plane.request("POST", VMIS.format(pair[0]), vmi | {"spec": {"domain": {}}})
        VMI_UIDS[pair[0]] = vmi["metadata"]["uid"]
        free.put((pair[0], pair[1]))
    # The API server accepts a pod overhead only from a RuntimeClass. All drawn overheads are equal.
    runtime = {"metadata": {"name": RUNTIME}, "handler": "any", "overhead": {"podFixed": OVERHEAD}}
    plane.request("POST", "/apis/node.k8s.io/v1/runtimeclasses", runtime)
    # No pod preempts another one.
    high = {"metadata": {"name": HIGH["priorityClassName"]}, "value": HIGH["priority"], "preemptionPolicy": "Never"}
    plane.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", high)
    return free


def test_the_guard_pins_a_vm_to_a_node_if_and_only_if_the_scheduler_admits_it_there(
    plane: ControlPlane, scheduler: FeasibleNodes, namespaces: queue.SimpleQueue[tuple[str, str]], measured: Measured
) -> None:
    measured(f"property: E2E_SEED={SEED}")
    vms = draw(mounting_pods(), CLUSTERS * VMS)

    def verdicts_on(number: int, drawn: Object) -> list[tuple[str, str]]:
        pair = namespaces.get()
        try:
            cluster = Cluster(plane, scheduler, pair, drawn)
            with closing(cluster):
                cluster.build()
                return [_unless_invalid(cluster, vm) for vm in vms[number * VMS : (number + 1) * VMS]]
        finally:
            namespaces.put(pair)

    with ThreadPoolExecutor(PARALLEL) as pool:
        found = list(pool.map(verdicts_on, itertools.count(), draw(served_clusters(), CLUSTERS)))
    verdicts = [verdict for each in found for verdict in each]
    counted = Counter(verdict for verdict, _ in verdicts)
    measured(f"property: {dict(counted)}")
    wrong = [verdict for verdict in verdicts if verdict[1]]
    assert not wrong, f"E2E_SEED={SEED}: {wrong}"
    # Otherwise the webhook was hardly exercised.
    assert counted["CoScheduled"] >= CLUSTERS * VMS / 16
    assert counted.total() - counted["invalid"] - counted["unschedulable anyway"] >= CLUSTERS * VMS / 5


def _unless_invalid(cluster: Cluster, vm: Object) -> tuple[str, str]:
    try:
        return cluster.verdict(vm)
    except ApiError as error:
        if error.status != 422:
            raise
        return "invalid", ""
