"""One test's part of the cluster: a namespace, nodes, Longhorn volumes and VMs, and nothing left of it afterwards."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from tests.support.controlplane.api import ApiError, Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.programs import UNPLAYED
from tests.support.longhorn import ATTACHABLE, STORAGE, VOLUMES, Longhorn
from tests.support.paths import REVIEWS
from tests.support.webhook_process import SERVED_BY, Webhook

# What virt-launcher pods select, and the test itself: its pods are bound to its nodes only.
KUBEVIRTS = {
    "kubernetes.io/arch": "amd64",
    "kubevirt.io/schedulable": "true",
    "machine-type.node.kubevirt.io/q35": "true",
}
POOL = "test/pool"
HOSTNAME = "kubernetes.io/hostname"
ROOM = {
    "cpu": "16",
    "memory": "64Gi",
    "ephemeral-storage": "100Gi",
    "pods": "110",
    "devices.kubevirt.io/kvm": "1k",
    "devices.kubevirt.io/tun": "1k",
    "devices.kubevirt.io/vhost-net": "1k",
}
NUMBERS = itertools.count(1)
DECISION = "kubevirt-scheduler/decision"
CO_SCHEDULED = "kubevirt-scheduler/co-scheduled-node"
ANSWERS = "kubevirt_scheduler_responses_total"


def recorded(review: str) -> Object:
    """A pod as KubeVirt sent it to the API server, without what the server and its owner added."""
    pod: Object = json.loads((REVIEWS / f"{review}.json").read_text())["request"]["object"]
    for key in "managedFields", "ownerReferences", "namespace", "uid", "creationTimestamp":
        pod["metadata"].pop(key, None)
    return pod


class World:
    """Made by the fixture `world`; the names of all nodes and volumes begin with that of its namespace."""

    def __init__(self, plane: ControlPlane, longhorn: Longhorn, webhook: Webhook | None) -> None:
        self.plane = plane
        self.longhorn = longhorn
        self.namespace = plane.create_namespace(f"e2e-{next(NUMBERS)}")
        self.pods = f"/api/v1/namespaces/{self.namespace}/pods"
        self.claims = f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims"
        self.node_names: list[str] = []
        self.volumes: list[str] = []
        self._seen_by: Webhook | None = None
        topologies = [{"matchLabelExpressions": [{"key": POOL, "values": [self.namespace]}]}]
        storage = {"metadata": {"name": self.namespace}, "provisioner": "driver.longhorn.io"}
        plane.request("POST", f"{STORAGE}/storageclasses", storage | {"allowedTopologies": topologies})
        if webhook:
            self.serve(webhook)

    def serve(self, webhook: Webhook) -> None:
        """Have the webhook see the VMs of this namespace; return when it does."""
        labels = {"metadata": {"labels": {SERVED_BY: webhook.name}}}
        self.plane.request("PATCH", f"/api/v1/namespaces/{self.namespace}", labels)
        former, self._seen_by = self._seen_by, webhook

        def is_asked() -> bool:
            # The former one may still be: the API server learns of the label by a watch.
            before = former.metric(ANSWERS) if former else 0.0
            return bool(self.decision("no-such-claim")) and (not former or former.metric(ANSWERS) == before)

        self.plane.wait(is_asked, 20, f"a decision of {webhook.name}")

    # --- nodes ---

    def add_nodes(self, count: int, prefix: str = "node", labels: Object | None = None, **room: str) -> list[str]:
        """Create ready nodes with room as given (`cpu="4"`), and return their names."""
        names = [f"{self.namespace}-{prefix}-{number:02}" for number in range(count)]
        for name in names:
            self.add_node(name, labels, **room)
        self.wait_ready(names)
        return names

    def add_node(self, name: str, labels: Object | None = None, **room: str) -> str:
        own = {HOSTNAME: name, POOL: self.namespace} | KUBEVIRTS | (labels or {})
        allocatable = ROOM | {key.replace("kvm", "devices.kubevirt.io/kvm"): value for key, value in room.items()}
        node = {
            "metadata": {"name": name, "labels": own, "annotations": ATTACHABLE},
            "status": {"allocatable": allocatable, "capacity": allocatable},
        }
        self.plane.request("POST", "/api/v1/nodes", node)
        self.node_names.append(name)
        return name

    def wait_ready(self, names: Iterable[str]) -> None:
        path = f"/api/v1/nodes?labelSelector={POOL}%3D{self.namespace}"

        def untainted() -> set[str]:
            found = self.plane.request("GET", path)["items"]
            return {each["metadata"]["name"] for each in found if not each["spec"].get("taints")}

        self.plane.wait(lambda: set(names) <= untainted(), 30, f"nodes of {self.namespace} ready")

    def change_node(self, name: str, change: Object) -> Object:
        return self.plane.request("PATCH", f"/api/v1/nodes/{name}", change)

    def make_not_ready(self, name: str) -> None:
        """Let its kubelet fall silent, and wait for the taint that this brings."""
        self.change_node(name, {"metadata": {"annotations": {UNPLAYED: "true"}}})
        condition = {"type": "Ready", "status": "False", "reason": "KubeletNotReady"}
        self.plane.request("PATCH", f"/api/v1/nodes/{name}/status", {"status": {"conditions": [condition]}})
        self.plane.wait(lambda: self.taints(name), 20, f"the not-ready taint of {name}")

    def taints(self, name: str) -> list[str]:
        found = self.plane.request("GET", f"/api/v1/nodes/{name}")
        return [taint["key"] for taint in found["spec"].get("taints", [])]

    # --- storage ---

    def add_volume(self, claim: str = "disk1", volume: str = "", isolated: bool = True) -> str:
        """Create a Longhorn volume with a claim bound to it, and return its name.

        Its share-manager stays on this test's nodes, by its StorageClass, unless it is not `isolated`.
        """
        volume = volume or f"vol-{self.namespace}-{len(self.volumes)}"
        self.longhorn.provision(self.namespace, claim, volume, self.namespace if isolated else "")
        self.volumes.append(volume)
        return volume

    def wait_bound(self, *claims: str) -> None:
        def bound() -> set[str]:
            found = self.plane.request("GET", self.claims)["items"]
            return {each["metadata"]["name"] for each in found if each["status"]["phase"] == "Bound"}

        self.plane.wait(lambda: set(claims) <= bound(), 30, f"claims {claims} Bound")

    def warm_volume(self, claim: str = "disk1") -> tuple[str, str]:
        """A volume that something else uses, so that its share-manager runs; return it and that node."""
        volume = self.add_volume(claim)
        self.wait_bound(claim)
        self.create_user(claim)
        return volume, self.served_on(volume, claim)

    def served_on(self, volume: str, claim: str) -> str:
        """Wait until the share-manager of a claim's volume runs, and the webhook knows; return that node."""
        node = self.longhorn.running_on(volume)
        if self._seen_by:  # else nobody is asked yet
            self.plane.wait(lambda: self.node_meant(claim) == node, 20, f"a decision for {node}")
        return node

    # --- pods ---

    def vm_pod(
        self, name: str, *claims: str, review: str = "vm-start", opt_in: str | None = "true", **spec: Any
    ) -> Object:
        """A virt-launcher pod, as recorded but for its VM, its claims, and what is named."""
        pod = recorded(review)
        metadata, own = pod["metadata"], pod["spec"]
        metadata["generateName"] = f"virt-launcher-{name}-"
        metadata["labels"] |= {"kubevirt.io/created-by": str(uuid.uuid4()), "vm.kubevirt.io/name": name}
        metadata["annotations"]["kubevirt.io/domain"] = name
        metadata["annotations"].pop("kubevirt-scheduler/co-schedule", None)
        if opt_in is not None:
            metadata["annotations"]["kubevirt-scheduler/co-schedule"] = opt_in
        mounts = [{"name": f"disk-{i}", "persistentVolumeClaim": {"claimName": c}} for i, c in enumerate(claims)]
        own["volumes"] = [each for each in own["volumes"] if "persistentVolumeClaim" not in each] + mounts
        kept = {each["name"] for each in own["volumes"]}
        for container in own["containers"] + own["initContainers"]:
            container["volumeMounts"] = [each for each in container["volumeMounts"] if each["name"] in kept]
        own["nodeSelector"] = own.get("nodeSelector", {}) | {POOL: self.namespace}
        own["schedulerName"] = "default-scheduler"
        own |= spec
        return pod

    def repelling_vm(self, group: str, claim: str) -> Object:
        """The pod of a VM that shares its disk with the others of its group, and never a node."""
        pod = self.vm_pod(group, claim)
        pod["metadata"]["labels"]["group"] = group
        term = {"labelSelector": {"matchLabels": {"group": group}}, "topologyKey": HOSTNAME}
        pod["spec"]["affinity"]["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        return pod

    def create(self, pod: Object) -> str:
        """Create a pod and return its name."""
        return str(self.plane.request("POST", self.pods, pod)["metadata"]["name"])

    def start_vm(self, name: str, *claims: str, **how: Any) -> str:
        """Create a VM's pod, wait until it runs, and return the pod's name."""
        pod = self.create(self.vm_pod(name, *claims, **how))
        self.running(pod)
        return pod

    def create_user(self, claim: str, node: str = "") -> str:
        """Create a pod that uses a claim and is no VM: a backup, say."""
        spec: Object = {
            "containers": [{"name": "main", "image": "none"}],
            "volumes": [{"name": "disk", "persistentVolumeClaim": {"claimName": claim}}],
            "nodeSelector": {POOL: self.namespace} | ({HOSTNAME: node} if node else {}),
        }
        return self.create({"metadata": {"generateName": "user-"}, "spec": spec})

    def fill(self, node: str, count: int = 1, **requests: str) -> None:
        """Let other pods take room on a node."""
        resources = {key.replace("kvm", "devices.kubevirt.io/kvm"): value for key, value in requests.items()}
        container = {"name": "main", "image": "none", "resources": {"requests": resources, "limits": resources}}
        spec = {"containers": [container], "nodeName": node}
        for _ in range(count):
            self.create({"metadata": {"generateName": "filler-"}, "spec": spec})

    def decision(self, *claims: str) -> str:
        """What would be decided on a VM with these claims now, as the pod's annotation has it; empty for nothing."""
        return str(self.tried(self.vm_pod("trial", *claims))["metadata"]["annotations"].get(DECISION, ""))

    def node_meant(self, *claims: str) -> str:
        """The node for which a VM with these claims would get terms now; empty for none."""
        return str(self.tried(self.vm_pod("trial", *claims))["metadata"]["annotations"].get(CO_SCHEDULED, ""))

    def tried(self, pod: Object) -> Object:
        """The pod as the API server would store it."""
        return self.plane.request("POST", f"{self.pods}?dryRun=All", pod)

    def get(self, pod: str) -> Object:
        return self.plane.request("GET", f"{self.pods}/{pod}")

    def annotations(self, pod: str) -> dict[str, str]:
        return dict(self.get(pod)["metadata"]["annotations"])

    def running(self, pod: str, seconds: float = 20) -> str:
        """Wait until a pod runs and return its node."""

        def node() -> str:
            found = self.get(pod)
            return str(found["spec"]["nodeName"]) if found["status"].get("phase") == "Running" else ""

        try:
            return self.plane.wait(node, seconds, f"pod {self.namespace}/{pod} Running")
        except AssertionError as error:
            error.add_note(self.plane.kubectl("describe", "pod", pod, "-n", self.namespace))
            raise

    def _conditions(self, pod: str) -> list[Object]:
        """What the scheduler has said of a pod: nothing, or one thing."""
        return [each for each in self.get(pod)["status"].get("conditions", []) if each["type"] == "PodScheduled"]

    def bound_by(self, pod: str) -> str:
        """Wait until a pod's Scheduled event is there, and return the name of the scheduler that wrote it."""
        path = f"/api/v1/namespaces/{self.namespace}/events?fieldSelector=reason=Scheduled,involvedObject.name={pod}"
        (event,) = self.plane.wait(lambda: self.plane.request("GET", path)["items"], 20, "the Scheduled event")
        return str(event["reportingComponent"])

    def unschedulable(self, pod: str) -> str:
        """Wait until the scheduler has tried a pod and found no node, and return what it said of it."""

        def message() -> str:
            found = [each for each in self._conditions(pod) if each["status"] == "False"]
            return str(found[0]["message"]) if found else ""

        return self.plane.wait(message, 20, f"pod {self.namespace}/{pod} unschedulable")

    def shunned(self, node: str) -> str:
        """Wait until the scheduler knows that a node takes no VM: it learns of it apart from the webhook. Say why."""
        pod = self.vm_pod("probe", opt_in=None)
        pod["spec"]["nodeSelector"][HOSTNAME] = node

        def complaint() -> str:
            name = self.create(pod)
            (said,) = self.plane.wait(lambda: self._conditions(name), 20, f"a word on pod {self.namespace}/{name}")
            self.delete(name)
            return "" if said["status"] == "True" else str(said["message"])

        return self.plane.wait(complaint, 20, f"no VM on {node}")

    def delete(self, pod: str) -> None:
        self.plane.request("DELETE", f"{self.pods}/{pod}?gracePeriodSeconds=0")

    def close(self) -> None:
        self.plane.delete_pods(self.pods)
        for volume in self.volumes:
            self.longhorn.forget(volume)
        paths = [self.claims, *(f"{VOLUMES}/pv-{volume}" for volume in self.volumes)]
        paths += [f"/api/v1/nodes/{node}" for node in self.node_names]
        for path in [*paths, f"{STORAGE}/storageclasses/{self.namespace}", f"/api/v1/namespaces/{self.namespace}"]:
            with suppress(ApiError):
                self.plane.request("DELETE", path)
