"""One test's own part of the cluster: a namespace, nodes, Longhorn volumes and VM pods. `close` deletes its objects."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from tests.support.controlplane.api import ApiError, Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.programs import DISREGARD_STATUS
from tests.support.longhorn import ATTACHABLE, STORAGE, VOLUMES, Longhorn
from tests.support.paths import REVIEWS
from tests.support.webhook_process import WEBHOOK_LABEL, Webhook

# The node labels that virt-launcher pods select.
KUBEVIRT_LABELS = {
    "kubernetes.io/arch": "amd64",
    "kubevirt.io/schedulable": "true",
    "machine-type.node.kubevirt.io/q35": "true",
}
POOL = "test/pool"  # node label and node selector: a test's pods run only on the nodes of that test
HOSTNAME = "kubernetes.io/hostname"
ALLOCATABLE = {
    "cpu": "16",
    "memory": "64Gi",
    "ephemeral-storage": "100Gi",
    "pods": "110",
    "devices.kubevirt.io/kvm": "1k",
    "devices.kubevirt.io/tun": "1k",
    "devices.kubevirt.io/vhost-net": "1k",
}
NAMESPACE_NUMBERS = itertools.count(1)
DECISION = "kubevirt-scheduler/decision"
CO_SCHEDULED = "kubevirt-scheduler/co-scheduled-node"
RESPONSES = "kubevirt_scheduler_responses_total"
CACHED_VMIS = 'kubevirt_scheduler_cache_objects{resource="virtualmachineinstances"}'


def recorded_pod(review: str) -> Object:
    """Return a recorded pod as its controller sent it: without the fields that the API server and the owner set."""
    pod: Object = json.loads((REVIEWS / f"{review}.json").read_text())["request"]["object"]
    for key in "managedFields", "ownerReferences", "namespace", "uid", "creationTimestamp":
        pod["metadata"].pop(key, None)
    return pod


def reason_of(pod: Object) -> str:
    """Return the reason of the decision on a pod."""
    return str(pod["metadata"]["annotations"][DECISION]).partition(":")[0]


class Scenario:
    """Cluster objects of one test; generated names contain its namespace's name. The fixture `scenario` creates it."""

    def __init__(self, plane: ControlPlane, longhorn: Longhorn, webhook: Webhook | None, namespace: str = "") -> None:
        self.plane = plane
        self.longhorn = longhorn
        self.namespace = plane.create_namespace(namespace or f"e2e-{next(NAMESPACE_NUMBERS)}")
        self.pods = f"/api/v1/namespaces/{self.namespace}/pods"
        self.claims = f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims"
        self.node_names: list[str] = []
        self.volumes: list[str] = []
        self._webhook: Webhook | None = None
        self.storage_classes: list[str] = []
        self._new_vmis: set[str] = set()  # UIDs in the labels of pods whose VMI `create` will create
        self._vmis = f"/apis/kubevirt.io/v1/namespaces/{self.namespace}/virtualmachineinstances"
        self.add_storage_class(self.namespace, POOL, self.namespace)
        if webhook:
            self.use_webhook(webhook)

    def use_webhook(self, webhook: Webhook) -> None:
        """Label the namespace so that the API server calls this webhook for its VMs; return once it does."""
        labels = {"metadata": {"labels": {WEBHOOK_LABEL: webhook.name}}}
        self.plane.request("PATCH", f"/api/v1/namespaces/{self.namespace}", labels)
        previous, self._webhook = self._webhook, webhook

        def is_called() -> bool:
            # The API server learns of the label through a watch, so it may still call the previous webhook.
            before = previous.metric(RESPONSES) if previous else 0.0
            return bool(self.decision("no-such-claim")) and (not previous or previous.metric(RESPONSES) == before)

        self.plane.wait(is_called, 20, f"a decision of {webhook.name}")

    # --- nodes ---

    def add_nodes(self, count: int, prefix: str = "node", labels: Object | None = None, **resources: str) -> list[str]:
        """Create ready nodes and return their names. `resources` overrides allocatable resources: `cpu="4"`."""
        names = [f"{self.namespace}-{prefix}-{number:02}" for number in range(count)]
        for name in names:
            self.add_node(name, labels, **resources)
        self.wait_ready(names)
        return names

    def add_node(self, name: str, labels: Object | None = None, **resources: str) -> str:
        all_labels = {HOSTNAME: name, POOL: self.namespace} | KUBEVIRT_LABELS | (labels or {})
        overrides = {key.replace("kvm", "devices.kubevirt.io/kvm"): value for key, value in resources.items()}
        allocatable = ALLOCATABLE | overrides
        node = {
            "metadata": {"name": name, "labels": all_labels, "annotations": ATTACHABLE},
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
        """Set the node's Ready condition to False, and wait for the resulting taint."""
        self.change_node(name, {"metadata": {"annotations": {DISREGARD_STATUS: "true"}}})
        condition = {"type": "Ready", "status": "False", "reason": "KubeletNotReady"}
        self.plane.request("PATCH", f"/api/v1/nodes/{name}/status", {"status": {"conditions": [condition]}})
        node = f"/api/v1/nodes/{name}"
        self.plane.wait(lambda: self.plane.request("GET", node)["spec"].get("taints"), 20, f"the taint of {name}")

    # --- storage ---

    def add_volume(
        self,
        claim: str = "disk1",
        volume: str = "",
        isolated: bool = True,
        node: str = "",
        storage_class: str = "",
        **spec: Any,
    ) -> str:
        """Create a Longhorn volume and a claim that will be bound to it, and return the volume's name.

        If `isolated`, the StorageClass restricts the volume's share-manager to the nodes of this test, or to `node`;
        another `storage_class` must do so, too.
        `spec` overrides fields of the PV and the claim: `accessModes`, `volumeMode`.
        """
        volume = volume or f"vol-{self.namespace}-{len(self.volumes)}"
        storage_class = storage_class or (f"{self.namespace}-{claim}" if node else self.namespace)
        if node:
            self.add_storage_class(storage_class, HOSTNAME, node)
        self.longhorn.provision(self.namespace, claim, volume, storage_class if isolated else "", **spec)
        self.volumes.append(volume)
        return volume

    def add_storage_class(self, name: str, label: str, value: str, **parameters: str) -> None:
        """Create a StorageClass that restricts share-managers to the nodes with this label."""
        topologies = [{"matchLabelExpressions": [{"key": label, "values": [value]}]}]
        storage_class = {"metadata": {"name": name}, "provisioner": "driver.longhorn.io"}
        path = f"{STORAGE}/storageclasses"
        storage_class |= {"allowedTopologies": topologies, "parameters": parameters}
        self.plane.request("POST", path, storage_class)
        self.storage_classes.append(name)

    def allow_all_nodes(self, claim: str) -> None:
        """Allow the share-manager of a claim that was created with `node` on all nodes of this test from now on."""
        self.limit(claim, POOL, self.namespace)

    def limit(self, claim: str, label: str, value: str) -> None:
        """Allow the next share-manager of a claim that was created with `node` on the nodes with this label only."""
        name = f"{self.namespace}-{claim}"
        self.plane.request("DELETE", f"{STORAGE}/storageclasses/{name}")
        self.add_storage_class(name, label, value)

    def wait_bound(self, *claims: str) -> None:
        def bound() -> set[str]:
            found = self.plane.request("GET", self.claims)["items"]
            return {each["metadata"]["name"] for each in found if each["status"]["phase"] == "Bound"}

        self.plane.wait(lambda: set(claims) <= bound(), 30, f"claims {claims} Bound")

    def add_attached_volume(self, claim: str = "disk1", node: str = "", **spec: Any) -> tuple[str, str]:
        """Create a volume that a pod already uses; return the volume and the node of its running share-manager.

        The arguments are `add_volume`'s.
        """
        volume = self.add_volume(claim, node=node, **spec)
        self.wait_bound(claim)
        self.create_consumer(claim)
        return volume, self.wait_share_manager(volume, claim)

    def wait_share_manager(self, volume: str, claim: str) -> str:
        """Wait until the volume's share-manager runs and the webhook has seen it; return the share-manager's node."""
        node = self.longhorn.wait_running(volume)
        if self._webhook:
            self.plane.wait(lambda: self.target_node(claim) == node, 20, f"a decision for {node}")
        return node

    # --- pods ---

    def vm_pod(self, name: str, *claims: str, opt_in: str | None = "true", **spec: Any) -> Object:
        """Return a recorded virt-launcher pod with this VM name, these claims, this opt-in and these `spec` fields."""
        pod = recorded_pod("vm-start")
        metadata, pod_spec = pod["metadata"], pod["spec"]
        metadata["generateName"] = f"virt-launcher-{name}-"
        metadata["labels"] |= {"kubevirt.io/created-by": str(uuid.uuid4()), "vm.kubevirt.io/name": name}
        self._new_vmis.add(metadata["labels"]["kubevirt.io/created-by"])
        metadata["annotations"]["kubevirt.io/domain"] = name
        metadata["annotations"].pop("kubevirt-scheduler/co-schedule", None)
        if opt_in is not None:
            metadata["annotations"]["kubevirt-scheduler/co-schedule"] = opt_in
        disks = [{"name": f"disk-{i}", "persistentVolumeClaim": {"claimName": c}} for i, c in enumerate(claims)]
        pod_spec["volumes"] = [each for each in pod_spec["volumes"] if "persistentVolumeClaim" not in each] + disks
        volume_names = {each["name"] for each in pod_spec["volumes"]}
        for container in pod_spec["containers"] + pod_spec["initContainers"]:
            container["volumeMounts"] = [each for each in container["volumeMounts"] if each["name"] in volume_names]
        pod_spec["nodeSelector"] = pod_spec.get("nodeSelector", {}) | {POOL: self.namespace}
        pod_spec["schedulerName"] = "default-scheduler"
        pod_spec |= spec
        return pod

    def anti_affinity_pod(self, group: str, claim: str, name: str = "") -> Object:
        """Return a VM pod whose required anti-affinity separates it from other pods of its group on the same claim."""
        pod = self.vm_pod(name or group, claim)
        pod["metadata"]["labels"]["group"] = group
        term = {"labelSelector": {"matchLabels": {"group": group}}, "topologyKey": HOSTNAME}
        pod["spec"]["affinity"]["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        return pod

    def wait_known(self, replicas: Sequence[Webhook]) -> None:
        """Wait until the replicas have seen all VMIs: only then, a decision reserves.

        virt-controller creates a pod only after its own watch has shown it the VMI.
        """
        path = "/apis/kubevirt.io/v1/virtualmachineinstances"

        def are_known() -> bool:
            vmis = len(self.plane.request("GET", path)["items"])
            return all(each.metric(CACHED_VMIS) == vmis for each in replicas)

        self.plane.wait(are_known, 20, "the VMIs in the webhook's cache")

    def wait_cached(self, resource: str, number: int) -> None:
        """Wait until the webhook has at least so many objects of a resource in its cache."""
        series = f'kubevirt_scheduler_cache_objects{{resource="{resource}"}}'
        self.plane.wait(
            lambda: self._webhook and self._webhook.metric(series) >= number, 20, f"{resource} in the cache"
        )

    def create(self, pod: Object) -> str:
        """Create a pod and return its name."""
        return str(self.plane.request("POST", self.pods, self.owned(pod))["metadata"]["name"])

    def owned(self, pod: Object) -> Object:
        """Return a pod that `vm_pod` built with a new VMI as its controller. Any other pod is returned unchanged."""
        metadata = pod["metadata"]
        if metadata.get("labels", {}).get("kubevirt.io/created-by") not in self._new_vmis:
            return pod
        owner = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance"}
        name = {"generateName": f"{metadata['annotations']['kubevirt.io/domain']}-"}
        vmi = owner | {"metadata": name, "spec": {}}
        try:
            created = self.plane.request("POST", self._vmis, vmi)["metadata"]
        except ApiError as error:
            if error.status != 404:  # benchmarks have no CRD, and any UID will do
                raise
            created = {"uid": metadata["labels"]["kubevirt.io/created-by"], "name": "vmi"}
        owner |= {"name": created["name"], "uid": created["uid"], "controller": True}
        labels = metadata["labels"] | {"kubevirt.io/created-by": created["uid"]}
        return pod | {"metadata": metadata | {"labels": labels, "ownerReferences": [owner]}}

    def start_vm(self, name: str, *claims: str, **options: Any) -> str:
        """Create a VM pod, wait until it runs, and return its name. `vm_pod` takes the `options`."""
        pod = self.create(self.vm_pod(name, *claims, **options))
        self.wait_running(pod)
        return pod

    def create_consumer(self, claim: str, node: str = "", opt_in: bool = False) -> str:
        """Create a pod that uses a claim but isn't a VM, for example a backup; return its name."""
        metadata = {"annotations": {"kubevirt-scheduler/co-schedule": "true"}} if opt_in else {}
        spec: Object = {
            "containers": [{"name": "main", "image": "none"}],
            "volumes": [{"name": "disk", "persistentVolumeClaim": {"claimName": claim}}],
            "nodeSelector": {POOL: self.namespace} | ({HOSTNAME: node} if node else {}),
        }
        return self.create({"metadata": {"generateName": "user-"} | metadata, "spec": spec})

    def fill(self, node: str, priority_class: str | None = None, **requests: str) -> None:
        """Create a pod with these resource requests on a node."""
        resources = {key.replace("kvm", "devices.kubevirt.io/kvm"): value for key, value in requests.items()}
        container = {"name": "main", "image": "none", "resources": {"requests": resources, "limits": resources}}
        spec = {"containers": [container], "nodeName": node, "priorityClassName": priority_class}
        self.create({"metadata": {"generateName": "filler-"}, "spec": spec})

    def decision(self, *claims: str, opt_in: str | None = "true") -> str:
        """Return the decision annotation that a VM with these claims would get now; empty if it would get none."""
        pod = self.vm_pod("trial", *claims, opt_in=opt_in)
        return str(self.dry_run(pod)["metadata"]["annotations"].get(DECISION, ""))

    def target_node(self, *claims: str) -> str:
        """Return the node that the webhook would select now for a VM with these claims; empty if none."""
        return str(self.dry_run(self.vm_pod("trial", *claims))["metadata"]["annotations"].get(CO_SCHEDULED, ""))

    def dry_run(self, pod: Object) -> Object:
        """Return the pod as the API server would store it."""
        return self.plane.request("POST", f"{self.pods}?dryRun=All", pod)

    def get(self, pod: str) -> Object:
        return self.plane.request("GET", f"{self.pods}/{pod}")

    def annotations(self, pod: str) -> dict[str, str]:
        return dict(self.get(pod)["metadata"]["annotations"])

    def wait_running(self, pod: str, seconds: float = 20) -> str:
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
        """Return the pod's PodScheduled condition in a list, which is empty before the first scheduling attempt."""
        return [each for each in self.get(pod)["status"].get("conditions", []) if each["type"] == "PodScheduled"]

    def scheduler_of(self, pod: str) -> str:
        """Wait for the pod's Scheduled event, and return the name of the scheduler that emitted it."""
        path = f"/api/v1/namespaces/{self.namespace}/events?fieldSelector=reason=Scheduled,involvedObject.name={pod}"
        (event,) = self.plane.wait(lambda: self.plane.request("GET", path)["items"], 20, "the Scheduled event")
        return str(event["reportingComponent"])

    def wait_unschedulable(self, pod: str) -> str:
        """Wait until the scheduler has found no node for a pod, and return the scheduler's message."""

        def message() -> str:
            found = [each for each in self._conditions(pod) if each["status"] == "False"]
            return str(found[0]["message"]) if found else ""

        return self.plane.wait(message, 20, f"pod {self.namespace}/{pod} unschedulable")

    def wait_rejected(self, node: str, pod: Object | None = None) -> str:
        """Wait until the scheduler rejects VMs, or this one, on a node, and return the scheduler's message.

        The scheduler has its own watches, so it may learn of a change later than the webhook.
        """
        pod = pod or self.vm_pod("probe", opt_in=None)
        pod["spec"]["nodeSelector"][HOSTNAME] = node

        def message() -> str:
            name = self.create(pod)
            (condition,) = self.plane.wait(
                lambda: self._conditions(name), 20, f"a PodScheduled condition of pod {self.namespace}/{name}"
            )
            self.delete(name)
            return "" if condition["status"] == "True" else str(condition["message"])

        return self.plane.wait(message, 20, f"no VM on {node}")

    def delete(self, pod: str) -> None:
        self.plane.request("DELETE", f"{self.pods}/{pod}?gracePeriodSeconds=0")

    def close(self) -> None:
        """Delete everything but the namespace: its deletion takes the control plane a quarter second of CPU time."""
        self.plane.delete_pods(self.pods)
        for volume in self.volumes:
            self.longhorn.remove_volume(volume)
        vms = self._vmis.replace("instances", "s")
        paths = [self.claims, self._vmis, vms, *(f"{VOLUMES}/pv-{volume}" for volume in self.volumes)]
        paths.append(f"/api/v1/nodes?labelSelector={POOL}%3D{self.namespace}")
        paths += [f"{STORAGE}/storageclasses/{name}" for name in self.storage_classes]
        for path in paths:
            with suppress(ApiError):
                self.plane.request("DELETE", path)
