"""The chart's pods with the product's image, under real kubelets."""

from __future__ import annotations

import pytest

from tests.support.controlplane.api import Object
from tests.support.helm_release import Release
from tests.support.measured import Measured
from tests.support.nodes.cluster import Cluster
from tests.support.nodes.guests import NodeScenario
from tests.support.pod_stream import PodStream

pytestmark = [pytest.mark.nodes, pytest.mark.needs("buildah", "ip", "mkfs", "mmdebstrap", "nft", "nodes")]
ROLLOUT = "--timeout=240s"


def pods(release: Release) -> list[Object]:
    """Return the replicas that aren't being deleted."""
    selector = "labelSelector=app.kubernetes.io%2Fcomponent%3Dwebhook"
    found: list[Object] = release.plane.request("GET", f"/api/v1/namespaces/{release.namespace}/pods?{selector}")[
        "items"
    ]
    return [each for each in found if not each["metadata"].get("deletionTimestamp")]


def pids(cluster: Cluster, pod: Object) -> list[int]:
    """Return the processes of a pod on its node, in the order of their start."""
    return cluster[pod["spec"]["nodeName"]].pids(pod["metadata"]["uid"])


def restarts(release: Release) -> list[int]:
    """Return how often the container of each replica was restarted."""
    return [status["restartCount"] for pod in pods(release) for status in pod["status"]["containerStatuses"]]


def all_ready(release: Release) -> bool:
    statuses = [status for pod in pods(release) for status in pod["status"].get("containerStatuses", [])]
    return len(statuses) == 2 and all(status["ready"] for status in statuses)


def logs(release: Release) -> str:
    """Return what the replicas have logged. Each line begins with the replica's name."""
    deployment = f"deployment/{release.fullname}"
    return release.plane.kubectl("logs", f"--namespace={release.namespace}", deployment, "--all-pods")


def ask(release: Release, replica: Object, path: str) -> str:
    """Return the response of one replica to a request of its probes' port."""
    pod = f"/api/v1/namespaces/{release.namespace}/pods/{replica['metadata']['name']}"
    return release.plane.kubectl("get", "--raw", f"{pod}:8080/proxy/{path}")


def send(cluster: Cluster, pod: Object, signal: str, *processes: int) -> None:
    cluster[pod["spec"]["nodeName"]].run(f"kill -{signal} {' '.join(map(str, processes))}")


def token_of(cluster: Cluster, pod: Object) -> str:
    """Return the token that the kubelet has mounted into a replica."""
    folder = f"/var/lib/kubelet/pods/{pod['metadata']['uid']}/volumes/kubernetes.io~projected"
    # Not by the link `token`: the folder is sticky, and its links are another user's (fs.protected_symlinks).
    # The kubelet may replace the folder between both programs.
    read = f"cat $(ls -d {folder}/*/..[0-9]*/token | tail -1) 2>/dev/null"
    return cluster[pod["spec"]["nodeName"]].run(f"until {read}; do sleep 0.1; done")


def test_the_chart_decides_through_its_service_and_passes_its_own_test(guests: NodeScenario, release: Release) -> None:
    _, storage = guests.add_attached_volume()
    guests.plane.wait(lambda: guests.target_node("disk1") == storage, 30, "a decision through the Service")
    assert guests.wait_running(guests.create(guests.vm_pod("vm1", "disk1"))) == storage
    assert "Phase:          Succeeded" in release.helm("test", release.name)
    assert restarts(release) == [0, 0]
    assert '"level":"error"' not in logs(release)


def test_no_creation_fails_during_an_upgrade_and_a_restart(
    guests: NodeScenario, release: Release, measured: Measured
) -> None:
    plane = guests.plane
    plane.wait(lambda: guests.decision("no-such-claim"), 20, "a decision")
    before = {pod["metadata"]["uid"] for pod in pods(release)}
    deployment = f"deployment/{release.fullname}", f"--namespace={release.namespace}"
    with PodStream.of_scenario(guests) as stream:
        release.upgrade("--reuse-values", "--set=settings.logLevel=info,podAnnotations.upgrade=one", "--wait", ROLLOUT)
        plane.kubectl("rollout", "restart", *deployment)
        plane.kubectl("rollout", "status", *deployment, ROLLOUT)
        stream.wait_for_more(50)
    measured(f"real kubelets: of {stream.count} creations during an upgrade and a restart {len(stream.failed)} failed")
    assert before.isdisjoint(pod["metadata"]["uid"] for pod in pods(release))
    assert (stream.failed, stream.missed) == ([], [])


def test_a_hanging_worker_is_replaced_by_its_master_and_a_hanging_replica_by_the_kubelet(
    guests: NodeScenario, cluster: Cluster, release: Release, measured: Measured
) -> None:
    """Both at the same time, each in one of the two replicas."""
    plane = guests.plane
    plane.wait(lambda: all_ready(release), 60, "two replicas")
    (one, before), (other, other_before) = zip(pods(release), restarts(release), strict=True)
    worker = pids(cluster, one)[-1]
    send(cluster, one, "STOP", worker)
    send(cluster, other, "STOP", *pids(cluster, other)[1:])  # all but the sandbox's
    plane.wait(lambda: worker not in pids(cluster, one), 60, "another worker")
    plane.wait(lambda: restarts(release)[1] > other_before, 60, "a restart by the liveness probe")
    plane.wait(lambda: all_ready(release), 60, "two replicas after their ends")
    # On a busy machine, the kubelet's probe may be faster than the master.
    replaced_by = "the kubelet" if restarts(release)[0] > before else "its master"
    measured(f"a worker that hangs was replaced by {replaced_by}")
    plane.wait(lambda: guests.decision("no-such-claim"), 20, "a decision")
