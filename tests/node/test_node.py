"""The chart's pods with the product's image, under a real kubelet."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.helm_release import LONG_TIMEOUT, Release
from tests.support.measured import Measured
from tests.support.pod_stream import PodStream
from tests.support.real_node import NAME, PAUSE, REAL, RealNode
from tests.support.scenario import Scenario

pytestmark = [pytest.mark.node, pytest.mark.needs("runc", "cni", "nft", "node")]
# With `Fail`, a missed call fails the creation. The other nodes run nothing.
VALUES = ("--set=webhook.failurePolicy=Fail", LONG_TIMEOUT, f'--set-json=nodeSelector={{"{REAL}":"true"}}')
ROLLOUT = "--timeout=180s"
TOKEN = "/run/secrets/kubernetes.io/serviceaccount/token"


@pytest.fixture(scope="module")
def release(plane: ControlPlane, node: RealNode) -> Release:
    """The installed chart, with two replicas that are ready."""
    del node
    return Release(plane, "kubevirt-scheduler").install("--wait", "--timeout=180s", *VALUES)


def pods(release: Release) -> list[Object]:
    """Return the replicas that aren't being deleted."""
    selector = "labelSelector=app.kubernetes.io%2Fcomponent%3Dwebhook"
    found: list[Object] = release.plane.request("GET", f"/api/v1/namespaces/{release.namespace}/pods?{selector}")[
        "items"
    ]
    return [each for each in found if not each["metadata"].get("deletionTimestamp")]


def restarts(release: Release) -> list[int]:
    """Return how often the container of each replica was restarted."""
    return [status["restartCount"] for pod in pods(release) for status in pod["status"]["containerStatuses"]]


def all_ready(release: Release) -> bool:
    statuses = [status for pod in pods(release) for status in pod["status"].get("containerStatuses", [])]
    return len(statuses) == 2 and all(status["ready"] for status in statuses)


def token_of(node: RealNode, release: Release) -> str:
    """Return the token of the first replica, as its container sees it."""
    return Path(f"/proc/{node.pids(pods(release)[0])[-1]}/root{TOKEN}").read_text()


def start_storage(scenario: Scenario) -> str:
    """Start a volume that something uses, and return the node of its share-manager."""
    scenario.add_nodes(3)
    _, node = scenario.add_attached_volume()
    scenario.plane.wait(lambda: scenario.target_node("disk1") == node, 30, "a decision through the Service")
    return node


def test_the_chart_decides_through_its_service_and_passes_its_own_test(
    plane: ControlPlane, plain_scenario: Scenario, release: Release
) -> None:
    storage = start_storage(plain_scenario)
    assert plain_scenario.wait_running(plain_scenario.start_vm("vm1", "disk1")) == storage
    assert "Phase:          Succeeded" in release.helm("test", release.name)
    assert restarts(release) == [0, 0]
    logs = plane.kubectl("logs", f"--namespace={release.namespace}", f"deployment/{release.fullname}", "--all-pods")
    assert '"level":"error"' not in logs


def test_no_creation_fails_during_an_upgrade_and_a_restart(
    plane: ControlPlane, plain_scenario: Scenario, release: Release, measured: Measured
) -> None:
    plane.wait(lambda: plain_scenario.decision("no-such-claim"), 20, "a decision")
    before = {pod["metadata"]["uid"] for pod in pods(release)}
    deployment = f"deployment/{release.fullname}", f"--namespace={release.namespace}"
    with PodStream.of_scenario(plain_scenario) as stream:
        release.upgrade("--reuse-values", "--set=settings.logLevel=info,podAnnotations.upgrade=one", "--wait", ROLLOUT)
        plane.kubectl("rollout", "restart", *deployment)
        plane.kubectl("rollout", "status", *deployment, ROLLOUT)
        stream.wait_for_more(50)
    measured(f"a real kubelet: of {stream.count} creations during an upgrade and a restart {len(stream.failed)} failed")
    assert before.isdisjoint(pod["metadata"]["uid"] for pod in pods(release))
    assert (stream.failed, stream.missed) == ([], [])


def test_a_replica_that_hangs_is_replaced_by_its_master_or_by_the_kubelet(
    plane: ControlPlane, plain_scenario: Scenario, node: RealNode, release: Release
) -> None:
    plane.wait(lambda: all_ready(release), 60, "two replicas")
    pod = pods(release)[0]
    worker = node.pids(pod)[-1]
    os.kill(worker, signal.SIGSTOP)
    plane.wait(lambda: worker not in node.pids(pod), 40, "another worker, from the master")
    plane.wait(lambda: all_ready(release), 30, "two replicas after the worker's end")
    assert sum(restarts(release)) == 0
    for pid in node.pids(pod):
        os.kill(pid, signal.SIGSTOP)
    plane.wait(lambda: sum(restarts(release)) == 1, 60, "a restart by the liveness probe")
    plane.wait(lambda: all_ready(release), 60, "two replicas after the restart")
    plane.wait(lambda: plain_scenario.decision("no-such-claim"), 20, "a decision")


def test_a_restarted_kubelet_leaves_a_pinned_pod_alone_and_renews_the_token(
    plane: ControlPlane, plain_scenario: Scenario, node: RealNode, release: Release
) -> None:
    """A kubelet that starts checks the required node affinity of the pods that run (canAdmitPod in kubelet.go)."""
    storage = start_storage(plain_scenario)
    decided = plain_scenario.dry_run(plain_scenario.vm_pod("vm1", "disk1"))
    # Without the volumes of KubeVirt and Longhorn, which no kubelet can mount here.
    affinity = json.loads(json.dumps(decided["spec"]["affinity"]["nodeAffinity"]).replace(storage, NAME))
    spec = {"containers": [{"name": "compute", "image": PAUSE}], "affinity": {"nodeAffinity": affinity}}
    path = f"{plain_scenario.pods}/pinned"
    plane.request("POST", plain_scenario.pods, {"metadata": {"name": "pinned"}, "spec": spec})
    plane.wait(lambda: plane.request("GET", path)["status"]["phase"] == "Running", 60, "a pinned pod on the real node")
    running, token = node.pids(plane.request("GET", path)), token_of(node, release)
    node.restart_kubelet()
    plane.wait(node.is_ready, 60, "a node that is Ready")
    plane.wait(lambda: all_ready(release), 60, "two replicas")
    after = plane.request("GET", path)
    assert (after["status"]["phase"], node.pids(after)) == ("Running", running)
    # A kubelet that has started asks for another token, as it does for one that expires.
    plane.wait(lambda: token_of(node, release) != token, 120, "another token in the replica")
    plane.wait(lambda: plain_scenario.target_node("disk1") == storage, 20, "a decision")
