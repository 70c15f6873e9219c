"""Whatever the real scheduler can place without us it can place with us: random worlds, one VM in each.

The VM is created opted in. Only where the scheduler finds no node for it, it is created again without the opt-in: a
node found then is a VM that we have stranded. The seed is printed; `E2E_SEED=<seed>` draws the same worlds again.
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
from tests.support.controlplane.programs import UNPLAYED
from tests.support.longhorn import VOLUMES
from tests.support.measured import Measured
from tests.support.random_clusters import universes
from tests.support.scenario import CO_SCHEDULED, POOL
from tests.support.webhook_process import SERVED_BY, Webhook

pytestmark = pytest.mark.controlplane

SEED = int(os.environ.get("E2E_SEED") or random.randrange(2**32))
DRAWN, LEAST = 180, 150
AT_ONCE = 4
OPT_IN = "kubevirt-scheduler/co-schedule"
RUNTIME, OVERHEAD = "with-overhead", {"cpu": "250m", "memory": "120Mi"}
NUMBERS = itertools.count(1)


def drawn() -> list[Object]:
    """The worlds of this seed."""
    found: list[Object] = []

    @hypothesis.seed(SEED)
    @hypothesis.settings(
        max_examples=DRAWN,
        phases=[hypothesis.Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(universes())
    def draw(universe: Object) -> None:
        found.append(universe)

    draw()
    return found


class Trial:
    """One world, built in two namespaces that have held others before."""

    def __init__(self, plane: ControlPlane, namespaces: tuple[str, str], universe: Object) -> None:
        self.plane = plane
        self.namespace, self.other = namespaces
        self.name = f"trial-{next(NUMBERS)}"
        text = json.dumps(universe).replace("node-", f"{self.name}-node-").replace("disk1", f"disk-{self.name}")
        text = text.replace('"default"', f'"{self.namespace}"').replace('"other"', f'"{self.other}"')
        self.universe = json.loads(text)
        self.pods = f"/api/v1/namespaces/{self.namespace}/pods"

    def build(self) -> None:
        pv, pvc = self.universe["pv"], self.universe["pvc"]
        pv["spec"] |= {"claimRef": {"namespace": self.namespace, "name": pvc["metadata"]["name"]}}
        self.plane.request("POST", VOLUMES, pv)
        for node in self.universe["nodes"]:
            self.plane.request("POST", "/api/v1/nodes", self._node(node))
        for pod in self.universe["pods"]:
            self._create_neighbour(pod)
        self.plane.wait(self._settled, 20, f"the nodes of {self.name} as drawn")
        # Last: a claim whose PV the controller manager has not seen yet waits 15 s for its next look.
        size = {"resources": {"requests": {"storage": "1Gi"}}, "storageClassName": ""}
        claims = f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims"
        self.plane.request("POST", claims, pvc | {"spec": pvc["spec"] | size})
        claim = f"{claims}/{pvc['metadata']['name']}"
        self.plane.wait(lambda: self.plane.request("GET", claim)["status"]["phase"] == "Bound", 20, "claim Bound")

    def _node(self, node: Object) -> Object:
        """The node as drawn, but that each tells how much room it has: as every kubelet does."""
        node["metadata"]["labels"][POOL] = self.name
        node["metadata"]["annotations"] = {UNPLAYED: "true"}
        node["status"]["allocatable"] = {"pods": "110", "cpu": "8", "memory": "8Gi"} | node["status"].get(
            "allocatable", {}
        )
        return node

    def _create_neighbour(self, pod: Object) -> None:
        spec, phase = pod["spec"], pod["status"]["phase"]
        if phase in ("Succeeded", "Failed") or "deletionTimestamp" in pod["metadata"]:
            return  # kwok would run the one and delete the other
        spec.setdefault("nodeName", "")
        if not spec["nodeName"]:
            spec["schedulerName"] = "nobody"  # one that stays unbound
        spec["tolerations"] = [{"operator": "Exists"}]  # nor is anything evicted from a world
        self.plane.request("POST", f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods", pod)

    def _settled(self) -> bool:
        """Whether the controller manager has tainted the nodes as their conditions and cordons ask for."""
        found = self.plane.request("GET", f"/api/v1/nodes?labelSelector={POOL}%3D{self.name}")["items"]
        return all(_is_settled(node) for node in found)

    def pod(self, opt_in: str) -> Object:
        pod: Object = json.loads(json.dumps(self.universe["pod"]))
        pod["metadata"]["annotations"][OPT_IN] = opt_in
        pod["spec"]["nodeSelector"] = pod["spec"].get("nodeSelector", {}) | {POOL: self.name}
        if pod["spec"].pop("overhead", None):
            pod["spec"]["runtimeClassName"] = RUNTIME
        return pod

    def schedulable(self, opt_in: str, seconds: float = 20) -> tuple[bool, str]:
        """Create the VM's pod, wait for the scheduler's word, delete it; return the word and the node of our terms."""
        created = self.plane.request("POST", self.pods, self.pod(opt_in))
        path = f"{self.pods}/{created['metadata']['name']}"

        def word() -> str:
            pod = self.plane.request("GET", path)
            conditions = [each for each in pod["status"].get("conditions", []) if each["type"] == "PodScheduled"]
            return conditions[0]["status"] if conditions else ""

        said = self.plane.wait(word, seconds, f"a word of the scheduler on {path}")
        self.plane.request("DELETE", f"{path}?gracePeriodSeconds=0")
        return said == "True", _kind(created)

    def clean_up(self) -> None:
        paths = [f"/api/v1/nodes?labelSelector={POOL}%3D{self.name}"]
        for namespace in self.namespace, self.other:
            paths.append(f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0")
            paths.append(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims")
        paths.append(f"{VOLUMES}/{self.universe['pv']['metadata']['name']}")
        serving = self.universe["pods"][-1]["metadata"]
        paths.append(f"/api/v1/namespaces/{serving['namespace']}/pods/{serving['name']}?gracePeriodSeconds=0")
        for path in paths:
            with suppress(ApiError):
                self.plane.request("DELETE", path)


def _is_settled(node: Object) -> bool:
    taints = {taint["key"] for taint in node["spec"].get("taints", [])}
    conditions = {each["type"]: each["status"] for each in node["status"].get("conditions", [])}
    healthy = conditions.get("Ready", "True") == "True"
    cordoned = bool(node["spec"].get("unschedulable"))
    marked = bool(taints & {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})
    return marked is not healthy and ("node.kubernetes.io/unschedulable" in taints) is cordoned


def _kind(pod: Object) -> str:
    """What we did to a pod."""
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    node = pod["metadata"]["annotations"].get(CO_SCHEDULED)
    if not node:
        return "unchanged"
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
    return "pinned" if f'"{node}"' in json.dumps(terms) else "preferred"


@pytest.fixture
def namespaces(plane: ControlPlane, webhook: Webhook) -> queue.SimpleQueue[tuple[str, str]]:
    """Pairs of namespaces, seen by the webhook, for as many trials as run at once."""
    free: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    for number in range(AT_ONCE):
        pair = tuple(plane.create_namespace(f"property-{number}-{which}") for which in ("own", "other"))
        labels = {"metadata": {"labels": {SERVED_BY: webhook.name}}}
        plane.request("PATCH", f"/api/v1/namespaces/{pair[0]}", labels)
        free.put((pair[0], pair[1]))
    # The API server takes an overhead from a RuntimeClass only; all that are drawn are the same.
    runtime = {"metadata": {"name": RUNTIME}, "handler": "any", "overhead": {"podFixed": OVERHEAD}}
    plane.request("POST", "/apis/node.k8s.io/v1/runtimeclasses", runtime)
    return free


def test_whatever_was_schedulable_without_us_is_schedulable_with_us(
    plane: ControlPlane, namespaces: queue.SimpleQueue[tuple[str, str]], measured: Measured
) -> None:
    measured(f"property: E2E_SEED={SEED}")

    def judge(universe: Object) -> tuple[str, str]:
        pair = namespaces.get()
        trial = Trial(plane, pair, universe)
        try:
            trial.build()
            return _judge(trial)
        except ApiError as error:
            if error.status != 422:
                raise
            return "no valid world", str(error)
        finally:
            trial.clean_up()
            namespaces.put(pair)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        verdicts = list(pool.map(judge, drawn()))
    counted = Counter(verdict for verdict, _ in verdicts)
    measured(f"property: {dict(counted)}")
    stranded = [(number, detail) for number, (verdict, detail) in enumerate(verdicts) if verdict == "STRANDED"]
    assert not stranded, f"E2E_SEED={SEED}: {stranded}"
    assert sum(counted.values()) - counted["no valid world"] >= LEAST
    # Else nothing was tried.
    assert counted["pinned"] >= 20
    assert counted["preferred"] >= 10


def _judge(trial: Trial) -> tuple[str, str]:
    placed, how = trial.schedulable("true")
    if placed:
        return how, ""
    if not trial.schedulable("false")[0]:
        return "unschedulable anyway", ""
    # Once more: the scheduler may not have known of the whole world yet.
    if trial.schedulable("true")[0]:
        return "placed at the second try", ""
    return "STRANDED", f"{trial.name}, {how}: {json.dumps(trial.universe)}"
