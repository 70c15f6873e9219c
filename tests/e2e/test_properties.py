"""Property: a VM that the real scheduler can place without the webhook can also be placed with it.

Each random placement case has one VM, created with the opt-in. If the scheduler finds no node, the VM is created again
without the opt-in. If the scheduler then finds a node, the webhook has stranded the VM. The test prints its seed;
`E2E_SEED=<seed>` draws the same cases again.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import hypothesis
import pytest

from tests.support.controlplane.api import ApiError, Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.programs import DISREGARD_STATUS
from tests.support.longhorn import VOLUMES
from tests.support.measured import Measured
from tests.support.random_clusters import placement_cases
from tests.support.scenario import CO_SCHEDULED, POOL
from tests.support.webhook_process import WEBHOOK_LABEL, Webhook

pytestmark = pytest.mark.controlplane

SEED = int(os.environ.get("E2E_SEED") or random.randrange(2**32))
DRAWN, MIN_VALID = 180, 150  # placement cases
PARALLEL = 4
OPT_IN = "kubevirt-scheduler/co-schedule"
RUNTIME, OVERHEAD = "with-overhead", {"cpu": "250m", "memory": "120Mi"}
TRIAL_NUMBERS = itertools.count(1)


def draw_cases() -> list[Object]:
    """Return the placement cases of SEED."""
    found: list[Object] = []

    @hypothesis.seed(SEED)
    @hypothesis.settings(
        max_examples=DRAWN,
        phases=[hypothesis.Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(placement_cases())
    def draw(placement_case: Object) -> None:
        found.append(placement_case)

    draw()
    return found


class Trial:
    """One placement case, built in two namespaces that earlier cases used."""

    def __init__(self, plane: ControlPlane, namespaces: tuple[str, str], placement_case: Object) -> None:
        self.plane = plane
        self.namespace, self.other = namespaces
        self.name = f"trial-{next(TRIAL_NUMBERS)}"
        text = json.dumps(placement_case).replace("node-", f"{self.name}-node-").replace("disk1", f"disk-{self.name}")
        text = text.replace('"default"', f'"{self.namespace}"').replace('"other"', f'"{self.other}"')
        self.placement_case = json.loads(text)
        self.pods = f"/api/v1/namespaces/{self.namespace}/pods"

    def build(self) -> None:
        pv, pvc = self.placement_case["pv"], self.placement_case["pvc"]
        pv["spec"] |= {"claimRef": {"namespace": self.namespace, "name": pvc["metadata"]["name"]}}
        self.plane.request("POST", VOLUMES, pv)
        for node in self.placement_case["nodes"]:
            self.plane.request("POST", "/api/v1/nodes", self._node(node))
        for pod in self.placement_case["pods"]:
            self._create_other_pod(pod)
        self.plane.wait(self._nodes_have_expected_taints, 20, f"the nodes of {self.name} as drawn")
        # Last: if the controller manager hasn't seen the PV when the claim appears, the claim waits 15 s.
        size = {"resources": {"requests": {"storage": "1Gi"}}, "storageClassName": ""}
        claims = f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims"
        self.plane.request("POST", claims, pvc | {"spec": pvc["spec"] | size})
        claim = f"{claims}/{pvc['metadata']['name']}"
        self.plane.wait(lambda: self.plane.request("GET", claim)["status"]["phase"] == "Bound", 20, "claim Bound")

    def _node(self, node: Object) -> Object:
        """Return the node as drawn, with default allocatable resources: every kubelet reports some."""
        node["metadata"]["labels"][POOL] = self.name
        node["metadata"]["annotations"] = {DISREGARD_STATUS: "true"}
        node["status"]["allocatable"] = {"pods": "110", "cpu": "8", "memory": "8Gi"} | node["status"].get(
            "allocatable", {}
        )
        return node

    def _create_other_pod(self, pod: Object) -> None:
        spec, phase = pod["spec"], pod["status"]["phase"]
        if phase in ("Succeeded", "Failed") or "deletionTimestamp" in pod["metadata"]:
            return  # kwok would run a finished pod, and delete a terminating one
        spec.setdefault("nodeName", "")
        if not spec["nodeName"]:
            spec["schedulerName"] = "nobody"  # no scheduler has this name, so the pod stays unbound
        spec["tolerations"] = [{"operator": "Exists"}]  # so that no taint evicts the pod
        self.plane.request("POST", f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods", pod)

    def _nodes_have_expected_taints(self) -> bool:
        """Return whether the controller manager has tainted the nodes according to their conditions and cordons."""
        found = self.plane.request("GET", f"/api/v1/nodes?labelSelector={POOL}%3D{self.name}")["items"]
        return all(_has_expected_taints(node) for node in found)

    def pod(self, opt_in: str) -> Object:
        pod: Object = json.loads(json.dumps(self.placement_case["pod"]))
        pod["metadata"]["annotations"][OPT_IN] = opt_in
        pod["spec"]["nodeSelector"] = pod["spec"].get("nodeSelector", {}) | {POOL: self.name}
        if pod["spec"].pop("overhead", None):
            pod["spec"]["runtimeClassName"] = RUNTIME
        return pod

    def schedulable(self, opt_in: str, seconds: float = 20) -> tuple[bool, str]:
        """Create the VM pod, wait for the scheduler, and delete the pod.

        Return whether the pod was scheduled, and what the webhook did to the pod.
        """
        created = self.plane.request("POST", self.pods, self.pod(opt_in))
        path = f"{self.pods}/{created['metadata']['name']}"

        def scheduled() -> str:
            pod = self.plane.request("GET", path)
            conditions = [each for each in pod["status"].get("conditions", []) if each["type"] == "PodScheduled"]
            return conditions[0]["status"] if conditions else ""

        status = self.plane.wait(scheduled, seconds, f"a PodScheduled condition of {path}")
        self.plane.request("DELETE", f"{path}?gracePeriodSeconds=0")
        return status == "True", _patch_kind(created)

    def clean_up(self) -> None:
        paths = [f"/api/v1/nodes?labelSelector={POOL}%3D{self.name}"]
        for namespace in self.namespace, self.other:
            paths.append(f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0")
            paths.append(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims")
        paths.append(f"{VOLUMES}/{self.placement_case['pv']['metadata']['name']}")
        share_manager = self.placement_case["pods"][-1]["metadata"]
        pods = f"/api/v1/namespaces/{share_manager['namespace']}/pods"
        paths.append(f"{pods}/{share_manager['name']}?gracePeriodSeconds=0")
        for path in paths:
            with suppress(ApiError):
                self.plane.request("DELETE", path)


def _has_expected_taints(node: Object) -> bool:
    taints = {taint["key"] for taint in node["spec"].get("taints", [])}
    conditions = {each["type"]: each["status"] for each in node["status"].get("conditions", [])}
    healthy = conditions.get("Ready", "True") == "True"
    cordoned = bool(node["spec"].get("unschedulable"))
    tainted = bool(taints & {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})
    return tainted is not healthy and ("node.kubernetes.io/unschedulable" in taints) is cordoned


def _patch_kind(pod: Object) -> str:
    """Return what the webhook did to a pod: "pinned", "preferred" or "unchanged"."""
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    node = pod["metadata"]["annotations"].get(CO_SCHEDULED)
    if not node:
        return "unchanged"
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
    return "pinned" if f'"{node}"' in json.dumps(terms) else "preferred"


@pytest.fixture
def namespaces(plane: ControlPlane, webhook: Webhook) -> queue.SimpleQueue[tuple[str, str]]:
    """Pairs of namespaces, one for each parallel trial. The webhook handles the VMs of the first in each pair."""
    free: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    for number in range(PARALLEL):
        pair = tuple(plane.create_namespace(f"property-{number}-{which}") for which in ("own", "other"))
        labels = {"metadata": {"labels": {WEBHOOK_LABEL: webhook.name}}}
        plane.request("PATCH", f"/api/v1/namespaces/{pair[0]}", labels)
        free.put((pair[0], pair[1]))
    # The API server accepts a pod overhead only from a RuntimeClass. All drawn overheads are equal.
    runtime = {"metadata": {"name": RUNTIME}, "handler": "any", "overhead": {"podFixed": OVERHEAD}}
    plane.request("POST", "/apis/node.k8s.io/v1/runtimeclasses", runtime)
    return free


def test_vms_that_are_schedulable_without_the_webhook_are_schedulable_with_it(
    plane: ControlPlane, namespaces: queue.SimpleQueue[tuple[str, str]], measured: Measured
) -> None:
    measured(f"property: E2E_SEED={SEED}")

    def verdict_on(placement_case: Object) -> tuple[str, str]:
        pair = namespaces.get()
        trial = Trial(plane, pair, placement_case)
        try:
            trial.build()
            return _verdict(trial)
        except ApiError as error:
            if error.status != 422:
                raise
            return "invalid case", str(error)
        finally:
            trial.clean_up()
            namespaces.put(pair)

    with ThreadPoolExecutor(PARALLEL) as pool:
        verdicts = list(pool.map(verdict_on, draw_cases()))
    counted = Counter(verdict for verdict, _ in verdicts)
    measured(f"property: {dict(counted)}")
    stranded = [(number, detail) for number, (verdict, detail) in enumerate(verdicts) if verdict == "STRANDED"]
    assert not stranded, f"E2E_SEED={SEED}: {stranded}"
    assert sum(counted.values()) - counted["invalid case"] >= MIN_VALID
    # Otherwise the webhook was hardly exercised.
    assert counted["pinned"] >= 20
    assert counted["preferred"] >= 10


def _verdict(trial: Trial) -> tuple[str, str]:
    placed, patch = trial.schedulable("true")
    if placed:
        return patch, ""
    if not trial.schedulable("false")[0]:
        return "unschedulable anyway", ""
    # Try again: the scheduler's watches may have been behind the first time.
    if trial.schedulable("true")[0]:
        return "placed on the second attempt", ""
    return "STRANDED", f"{trial.name}, {patch}: {json.dumps(trial.placement_case)}"
