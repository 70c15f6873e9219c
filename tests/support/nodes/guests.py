"""A scenario on real nodes: its VMs are containers that use their disk as a guest does, in pods like KubeVirt's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import product
from typing import Any

from tests.support.controlplane.api import ApiError, Object
from tests.support.longhorn import Longhorn
from tests.support.nodes.cluster import Cluster
from tests.support.nodes.images import PAUSE, TOOLS
from tests.support.nodes.machine import STATE, Guest
from tests.support.scenario import HOSTNAME, POOL, Scenario

PROGRAM = ["python3", "/share/guest/guest.py"]
PROGRAMS = ("guest", "benchmark")  # folders of /share
START = 120  # seconds, which plane.wait multiplies: for a share-manager, a mount and a container


@dataclass(frozen=True, slots=True)
class Result:
    """What a guest measured: milliseconds, and the bytes that crossed each node's link meanwhile."""

    size: str
    kind: str
    operations: int
    seconds: float
    data: int  # that the guest read or wrote
    early: float
    median: float
    late: float
    link_bytes: dict[str, int]

    def crossing(self, node: str) -> float:
        """Return how many bytes crossed the link of a node for each byte that the guest read or wrote."""
        return self.link_bytes[node] / self.data

    def __str__(self) -> str:
        size = 4096 if self.size == "4 KiB" else 1 << 20
        links = ", ".join(f"{name} {size * self.crossing(name):,.0f}" for name in self.link_bytes)
        return (
            f"{self.size} {self.kind}: {self.operations} operations, median {self.median:.2f} ms, p99 {self.late:.2f} "
            f"ms; bytes on the link for each: {links}"
        )


class NodeScenario(Scenario):
    """A scenario whose nodes are the cluster's. Only one at a time can exist."""

    works = False  # whether the guests work if `vm_pod` doesn't say it

    def __init__(self, cluster: Cluster, longhorn: Longhorn) -> None:
        self.cluster = cluster
        super().__init__(cluster.plane, longhorn, None)
        self._label_nodes(self.namespace)
        self.wait_ready(cluster.names)

    def add_nodes(self, count: int, *_: object, **__: object) -> list[str]:  # type: ignore[override]
        """Return names of real nodes."""
        return self.cluster.names[:count]

    def vm_pod(self, name: str, *claims: str, work: bool | None = None, **spec: Any) -> Object:  # type: ignore[override]
        """Return a virt-launcher pod whose container plays the guest. If it is to `work`, it does so all the time."""
        work = (self.works and bool(claims)) if work is None else work
        pod = super().vm_pod(name, *claims, **spec)
        pod_spec = pod["spec"]
        compute = next(each for each in pod_spec["containers"] if each["name"] == "compute")
        folders = [{"name": each, "hostPath": {"path": f"/share/{each}"}} for each in PROGRAMS]
        mounts = [{"name": each, "mountPath": f"/share/{each}", "readOnly": True} for each in PROGRAMS]
        folders.append({"name": "work", "hostPath": {"path": "/share/work"}})
        mounts.append({"name": "work", "mountPath": "/share/work"})
        mounts += [{"name": f"disk-{number}", "mountPath": f"/disks/{claim}"} for number, claim in enumerate(claims)]
        compute |= {
            "image": TOOLS,
            "command": [*PROGRAM, "work", disk_of(claims[0]), self._log_of(name)] if work else [*PROGRAM, "wait"],
            "volumeMounts": mounts,
        }
        del compute["args"]
        # A node has less memory than the recorded VM.
        compute["resources"]["requests"] |= {"memory": "64Mi", "cpu": "10m"}
        disks = [each for each in pod_spec["volumes"] if "persistentVolumeClaim" in each]
        pod_spec |= {"containers": [compute], "initContainers": [], "volumes": disks + folders}
        del pod_spec["readinessGates"]  # virt-handler sets its condition
        pod_spec["terminationGracePeriodSeconds"] = 5
        return pod

    def create_consumer(self, claim: str, node: str = "", opt_in: bool = False) -> str:
        """Create a pod that uses a claim but isn't a VM, with an image that the nodes have, and wait until it runs."""
        selector = {POOL: self.namespace} | ({HOSTNAME: node} if node else {})
        volumes = [{"name": "disk", "persistentVolumeClaim": {"claimName": claim}}]
        metadata = {"annotations": {"kubevirt-scheduler/co-schedule": "true"}} if opt_in else {}
        container = {"name": "main", "image": PAUSE, "volumeMounts": [{"name": "disk", "mountPath": "/disk"}]}
        spec = {"containers": [container], "volumes": volumes, "nodeSelector": selector}
        pod = self.create({"metadata": {"generateName": "user-"} | metadata, "spec": spec})
        self.wait_running(pod)
        return pod

    def fill(self, node: str, priority_class: str | None = None, **requests: str) -> None:
        """Create a pod with these resource requests on a node. The scheduler counts them before it runs."""
        container = {"name": "main", "image": PAUSE, "resources": {"requests": requests}}
        spec = {"containers": [container], "nodeName": node, "priorityClassName": priority_class}
        self.create({"metadata": {"generateName": "filler-"}, "spec": spec})

    def wait_running(self, pod: str, seconds: float = START) -> str:
        return super().wait_running(pod, seconds)

    def measure(self, pod: str, claim: str, seconds: float = 1.5) -> Iterator[Result]:
        """Measure each kind of operation on a disk of a running pod, for so long."""
        found = self.get(pod)
        machine = self.cluster[found["spec"]["nodeName"]]
        process = machine.pids(found["metadata"]["uid"])[-1]
        with closing(Guest(machine, f"nsenter --target {process} --mount --root --wd=/ --")) as guest:
            for size, kind in product(("4 KiB", "1 MiB"), ("write", "read")):
                # Once without measuring: the disk is filled, and all programs are in memory.
                guest.ask(disk_of(claim), size, kind, "0.1", "1")
                before = self.cluster.link_bytes()
                result = guest.ask(disk_of(claim), size, kind, str(seconds), "1")
                crossed = {name: number - before[name] for name, number in self.cluster.link_bytes().items()}
                assert result.pop("direct"), "the disk was not opened with O_DIRECT"
                yield Result(size, kind, **result, link_bytes=crossed)

    def work_log(self, vm: str) -> list[dict[str, Any]]:
        """Return the lines that a working guest has logged: here, not at its node, which may be out of reach."""
        file = STATE / self._log_of(vm).removeprefix("/")
        return [json.loads(line) for line in file.read_text().split("\n")[:-1]] if file.exists() else []

    def longest_pause(self, vm: str) -> float:
        """Return the seconds of the longest operation of a working guest so far."""
        return max((float(line["longest"]) for line in self.work_log(vm)), default=0.0)

    def wait_for_work(self, vm: str, seconds: float = START) -> None:
        """Wait until a working guest has done something more."""
        before = len(self.work_log(vm))
        self.plane.wait(lambda: len(self.work_log(vm)) >= before + 2, seconds, f"I/O of {vm}")

    def _log_of(self, vm: str) -> str:
        return f"/share/work/{self.namespace}-{vm}"

    def close(self) -> None:
        """Delete everything but the namespace and the nodes. The share-managers end after their clients.

        A pod is gone once its volumes are unmounted. A share-manager may end later, beside the next scenario.
        """
        self.plane.request("DELETE", f"{self.pods}?gracePeriodSeconds=5")
        self.plane.wait(lambda: not self.plane.request("GET", self.pods)["items"], START, "the end of the guests")
        self._label_nodes(None)
        super().close()

    def _label_nodes(self, pool: str | None) -> None:
        for name in self.cluster.names:
            with suppress(ApiError):
                self.plane.request("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"labels": {POOL: pool}}})


def disk_of(claim: str) -> str:
    """Return the path of a disk in the container."""
    return f"/disks/{claim}/disk.img"
