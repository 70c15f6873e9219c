"""The namespace of one scenario: a VM with a disk that a share-manager serves, and all that the scenario changes."""

from __future__ import annotations

import json
import secrets
import signal
from collections.abc import Callable
from contextlib import ExitStack, suppress

from tests.live.cluster import Cluster, CommandError, Object

LABEL = "kubevirt-scheduler/live-test"
DECISION, PINNED = "kubevirt-scheduler/decision", "kubevirt-scheduler/co-scheduled-node"
HOSTNAME = "kubernetes.io/hostname"
ENDING = signal.SIGINT, signal.SIGTERM  # Ctrl-C, and what `timeout` or a canceled job sends
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 65535,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def uid(item: Object) -> str:
    """Return the UID of an object, empty for an empty one."""
    return str(item.get("metadata", {}).get("uid", ""))


def node_of(pod: Object) -> str:
    return str(pod.get("spec", {}).get("nodeName", ""))


def decision(pod: Object) -> str:
    return str(pod["metadata"].get("annotations", {}).get(DECISION, ""))


class Namespace:
    """`with Namespace(cluster) as namespace`. The VM has the namespace's name, which is unique in the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.name = cluster, f"live-{secrets.token_hex(3)}"
        self._undo = ExitStack()
        self._volume = ""

    def __enter__(self) -> Namespace:
        self._undo.callback(self._delete)
        try:
            self.cluster.create("v1/Namespace", self.name, labels={LABEL: "true"})
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Undo everything. The signals that end a run have no effect on it, and none on the commands that it runs."""
        previous = {each: signal.signal(each, signal.SIG_IGN) for each in ENDING}
        try:
            self._undo.close()
        finally:
            for each, handler in previous.items():
                signal.signal(each, handler)

    # --- what a scenario does ---

    def start_together(self) -> tuple[Object, Object]:
        """Start a VM whose share-manager follows it; return the pods of both."""
        self._create_disk()
        self._create_vm()
        self.wait_running()
        self.wait_together()
        return self.launcher(), self.share_manager()

    def start_pinned(self) -> Object:
        """Start a VM whose share-manager runs already, for another pod; return the VM's pod.

        The VM prefers all other nodes, so without the pin it would run on one of them.
        """
        self._create_disk()
        self._create_holder()
        node = node_of(self.wait_share_manager())
        self._create_vm(avoided_node=node)
        pod = self.wait_running()
        affinity = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        pin = {"key": "metadata.name", "operator": "In", "values": [node]}
        assert all(pin in term.get("matchFields", []) for term in affinity["nodeSelectorTerms"]), decision(pod)
        assert (node_of(pod), pod["metadata"]["annotations"][PINNED]) == (node, node), decision(pod)
        return pod

    def restart_vm(self) -> None:
        """Delete the VMI, which KubeVirt creates again."""
        self.cluster.kubectl("delete", "vmi", self.name, "-n", self.name, "--wait=false")

    def migrate_vm(self) -> None:
        migration = {"vmiName": self.name}
        self.cluster.create("kubevirt.io/v1/VirtualMachineInstanceMigration", "away", migration, self.name)

    def recolocate(self) -> str:
        """Migrate the VM to its storage, and return the last line that the command prints."""
        settle = f"--settle={min(5, self.cluster.settle):g}"
        command = ("kubevirt-scheduler", "recolocate", "--yes", settle, "-n", self.name)
        return self.cluster.run(*command, seconds=self.cluster.patience).splitlines()[-1]

    def delete_share_manager(self) -> None:
        metadata = self.share_manager()["metadata"]
        self.cluster.kubectl("delete", "pod", metadata["name"], "-n", metadata["namespace"], "--wait=false")

    def drain(self, node: str) -> None:
        """Drain a node of the share-manager and the VM, one right after the other, and of no other pod."""
        self._undo.callback(self.cluster.kubectl, "uncordon", node)
        self.cluster.kubectl("cordon", node)
        metadata = {key: self.share_manager()["metadata"][key] for key in ("name", "namespace")}
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
        path = "/api/v1/namespaces/{namespace}/pods/{name}/eviction".format(**metadata)
        self.cluster.kubectl("create", "--raw", path, "-f", "-", text=json.dumps(eviction))
        options = ("--ignore-daemonsets", "--delete-emptydir-data", "--force")
        print(f"  draining {node} for up to {self.cluster.patience:g} s", flush=True)
        selector = f"--pod-selector=vm.kubevirt.io/name={self.name}"
        self.cluster.kubectl("drain", node, *options, selector, seconds=self.cluster.patience)

    # --- what the cluster shows ---

    def vmi(self) -> Object:
        return self.cluster.get("vmi", self.name, "-n", self.name)

    def launcher(self) -> Object:
        """Return the pod that runs the VM, empty while it doesn't run."""
        found = self.cluster.items("vmi,pod", "-n", self.name)
        nodes = [each["status"].get("nodeName") for each in found if each.get("status", {}).get("phase") == "Running"]
        pods = [each for each in found if "virt-launcher" in each["metadata"]["name"] and node_of(each) in nodes]
        return _running(pods)

    def share_manager(self) -> Object:
        """Return the share-manager's pod, empty while it doesn't run."""
        if not self._volume:
            claim = self.cluster.get("pvc", "disk", "-n", self.name)["spec"]
            if "volumeName" not in claim:
                return {}
            self._volume = self.cluster.get("pv", claim["volumeName"])["spec"]["csi"]["volumeHandle"]
        return _running(self.cluster.items("pods", "-A", "-l", f"longhorn.io/share-manager={self._volume}"))

    def describe(self) -> str:
        """Return what a developer looks at after a failure."""
        kinds = "vm,vmi,virtualmachineinstancemigrations,pod,pvc"
        shown = self.cluster.kubectl("get", kinds, "-n", self.name, "-o", "wide")
        return shown + self.cluster.kubectl("get", "events", "-n", self.name, "--sort-by=.lastTimestamp")

    # --- waiting ---

    def wait_running(self, other_than: Object | None = None, not_on: str = "") -> Object:
        """Wait until a pod runs the VM: another one than this, and not on this node. Return the pod."""
        return self._wait_pod("the VM runs", self.launcher, other_than, not_on)

    def wait_share_manager(self, other_than: Object | None = None, not_on: str = "") -> Object:
        """Wait until the share-manager runs: in another pod than this, and not on this node. Return the pod."""
        return self._wait_pod("the share-manager runs", self.share_manager, other_than, not_on)

    def _wait_pod(self, what: str, look: Callable[[], Object], other_than: Object | None, not_on: str) -> Object:
        def other() -> Object:
            pod = look()
            return pod if pod and uid(pod) != uid(other_than or {}) and node_of(pod) != not_on else {}

        what += (" in another pod" if other_than else "") + (f" on another node than {not_on}" if not_on else "")
        return self.cluster.wait(what, other)

    def wait_together(self) -> str:
        """Wait until the VM and its share-manager run on one node, and return the node."""

        def node() -> str:
            vm, server = node_of(self.launcher()), node_of(self.share_manager())
            return vm if vm == server else ""

        return self.cluster.wait("the VM and its share-manager run on one node", node)

    def wait_state(self, state: str) -> None:
        """Wait until `report` shows the VM in a state."""

        def is_shown() -> bool:
            report = json.loads(self.cluster.read("report", "-o", "json", "-n", self.name))
            return bool([each["state"] for each in report["vms"]] == [state])

        self.cluster.wait(f"the report shows the VM as {state}", is_shown)

    # --- objects ---

    def _create_disk(self) -> None:
        """Create an empty claim. KubeVirt makes a disk in it when the VM starts (pkg/host-disk/host-disk.go)."""
        spec = {
            "accessModes": ["ReadWriteMany"],
            "volumeMode": "Filesystem",
            "storageClassName": self.cluster.storage_class,
            "resources": {"requests": {"storage": "1Gi"}},
        }
        self.cluster.create("v1/PersistentVolumeClaim", "disk", spec, self.name)

    def _create_holder(self) -> None:
        """Create a pod that isn't a VM and uses the disk."""
        container = {"name": "holder", "image": "registry.k8s.io/pause:3.10.1", "securityContext": RESTRICTED}
        container["volumeMounts"] = [{"name": "disk", "mountPath": "/disk"}]
        volume = {"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}}
        self.cluster.create("v1/Pod", "holder", {"containers": [container], "volumes": [volume]}, self.name)

    def _create_vm(self, avoided_node: str = "") -> None:
        """Create a VM that opts in and runs; it prefers any other node than the avoided one."""
        other = {"key": HOSTNAME, "operator": "NotIn", "values": [self.cluster.hostname(avoided_node)]}
        preferred = [{"weight": 100, "preference": {"matchExpressions": [other]}}] if avoided_node else []
        disks = [{"name": name, "disk": {"bus": "virtio"}} for name in ("root", "disk")]
        template = {
            "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}},
            "domain": {
                "devices": {"disks": disks, "interfaces": [{"name": "default", "masquerade": {}}]},
                "resources": {"requests": {"memory": "128Mi"}},
            },
            "evictionStrategy": "LiveMigrate",
            "networks": [{"name": "default", "pod": {}}],
            "terminationGracePeriodSeconds": 0,
            "volumes": [
                {"name": "root", "containerDisk": {"image": self.cluster.vm_image}},
                {"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}},
            ],
        }
        opt_in = {"annotations": {"kubevirt-scheduler/co-schedule": "true"}}
        spec = {"runStrategy": "Always", "template": {"metadata": opt_in, "spec": template}}
        self.cluster.create("kubevirt.io/v1/VirtualMachine", self.name, spec, self.name)

    def _delete(self) -> None:
        """Delete the namespace and its volume, also if the StorageClass retains volumes."""
        print(f"  deleting {self.name}", flush=True)
        for volume in self._volumes():
            change = json.dumps({"spec": {"persistentVolumeReclaimPolicy": "Delete"}})
            self.cluster.kubectl("patch", "pv", volume, "-p", change)
        with suppress(CommandError):  # the namespace may not exist
            kinds, limit = "vm,vmi,pod,pvc", self.cluster.patience
            self.cluster.kubectl("delete", kinds, "--all", "-n", self.name, seconds=limit)
        # `wait_deleted` waits for all: a controller waits for 5 s before it empties a namespace.
        self.cluster.kubectl("delete", "namespace", self.name, "--ignore-not-found", "--wait=false")
        self.cluster.wait("its volume is deleted", lambda: not self._volumes())

    def _volumes(self) -> list[str]:
        claims = {each["metadata"]["name"]: each["spec"].get("claimRef", {}) for each in self.cluster.items("pv")}
        return [volume for volume, claim in claims.items() if claim.get("namespace") == self.name]


def wait_deleted(cluster: Cluster) -> None:
    """Wait until the namespaces of all scenarios are gone."""
    seconds = cluster.patience
    cluster.kubectl(
        "wait", "--for=delete", "namespace", f"--selector={LABEL}", f"--timeout={seconds:g}s", seconds=seconds
    )


def _running(pods: list[Object]) -> Object:
    alive = (each for each in pods if "deletionTimestamp" not in each["metadata"])
    return next((each for each in alive if each["status"].get("phase") == "Running"), {})
