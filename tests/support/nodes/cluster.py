"""Three real nodes beside the tests' control plane. Each is a machine that runs containerd, kubelet and kube-proxy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

from tests.support.controlplane import build
from tests.support.controlplane.api import Object
from tests.support.nodes.images import PAUSE
from tests.support.nodes.machine import NAMES, STATE, Machine, prepare, show
from tests.support.nodes.plane import PROXY, OpenControlPlane
from tests.support.nodes.system import System

PROGRAMS = ("containerd", "csi", "kubelet", "kube-proxy")
# By default, containerd measures each container each second, which costs a node of one core too much of it.
CONTAINERD = f"""
version = 3
disabled_plugins = ["io.containerd.nri.v1.nri"]
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{PAUSE}"
[plugins.'io.containerd.cri.v1.runtime']
disable_apparmor = true
stats_collect_period = "60s"
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["/usr/lib/cni"]
conf_dir = "/share/{{node}}/cni"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = false
"""
NO_EVICTION = {f"{each}.available": "0%" for each in ("memory", "nodefs", "imagefs")}
NO_EVICTION |= {f"{each}.inodesFree": "0%" for each in ("nodefs", "imagefs")}
KUBELET: Object = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "cgroupDriver": "cgroupfs",
    "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
    "evictionHard": NO_EVICTION,
    "failSwapOn": False,
    "imageGCHighThresholdPercent": 100,
    # A volume waits for the next status before it is mounted, and detached: 10 s by default. Heartbeats don't change.
    "nodeStatusUpdateFrequency": "3s",
    "nodeStatusReportFrequency": "5m",
    "resolvConf": "",
}
# Kept small: an image's platform and KubeVirt's node labeller would set them.
LABELS = {"kubevirt.io/schedulable": "true", "machine-type.node.kubevirt.io/q35": "true"}
DEVICES = {f"devices.kubevirt.io/{name}": "1k" for name in ("kvm", "tun", "vhost-net")}


class Cluster:
    """The three nodes. Their kernels end with the namespaces of `enter`."""

    def __init__(self, plane: OpenControlPlane, system: System, images: Path, folder: Path) -> None:
        """`folder` has the nodes' logs, and the disks and volumes."""
        self.plane, self.folder = plane, folder
        prepare(system, folder)
        images.rename(folder / "disks" / images.name)
        show(build.rare("nodes")["kubelet"].parent, STATE / "share/bin")
        disks = Path("/disks")
        self.machines = [
            Machine(number, {"ubd0": Path("/system/root.ext4"), "ubd1": disks / images.name}, folder, PROGRAMS)
            for number in range(1, len(NAMES) + 1)
        ]
        shutil.copy(plane.ca, STATE / "share/ca.crt")
        for machine in self.machines:
            self._configure(machine)

    def __getitem__(self, name: str) -> Machine:
        """Return the machine of a node."""
        (found,) = (each for each in self.machines if each.name == name)
        return found

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.machines]

    def start(self, *names: str) -> None:
        """Boot these machines, or all, and return when their nodes are Ready."""
        machines = [self[name] for name in names] or self.machines
        for machine in machines:
            machine.start()
        for machine in machines:
            machine.wait_until_booted()
        self.wait_ready([each.name for each in machines])
        for machine in machines:
            # A kubelet that registers sets extended resources that it doesn't know to zero.
            self.plane.request("PATCH", f"/api/v1/nodes/{machine.name}/status", {"status": {"capacity": DEVICES}})

    def stop(self) -> None:
        """Switch all machines off."""
        for machine in self.machines:
            machine.cut_power()

    def wait_ready(self, names: Iterable[str]) -> None:
        for name in names:
            self.plane.wait(lambda name=name: self.is_ready(name), 120, f"{name} Ready")  # type: ignore[misc]

    def is_ready(self, name: str) -> bool:
        """Return whether the node is Ready, its CSI driver is registered, and pods can be scheduled on it."""
        node = self.plane.request("GET", f"/api/v1/nodes/{name}")
        drivers = (self.plane.find(f"/apis/storage.k8s.io/v1/csinodes/{name}") or {}).get("spec", {}).get("drivers")
        ready = any(each["type"] == "Ready" and each["status"] == "True" for each in node["status"]["conditions"])
        return ready and bool(drivers) and not node["spec"].get("taints")

    def link_bytes(self) -> dict[str, int]:
        """Return how many bytes have passed the link of each node so far."""
        return {each.name: each.link_bytes() for each in self.machines}

    def _configure(self, machine: Machine) -> None:
        folder = self.folder / machine.name
        (folder / "cni").mkdir()
        self.plane.node_kubeconfig(folder / "kubeconfig")
        (folder / "containerd.toml").write_text(CONTAINERD.format(node=machine.name))
        (folder / "kubelet.json").write_text(json.dumps(KUBELET | {"address": machine.address}))
        kubeconfig = f"/share/{machine.name}/kubeconfig"
        # The kernel has no iptables. Without them, replies must come through the node, hence `ptp` and not `bridge`.
        mode = {"mode": "ipvs", "hostnameOverride": machine.name, "clientConnection": {"kubeconfig": kubeconfig}}
        (folder / "proxy.json").write_text(json.dumps(PROXY | mode))
        options = [
            f"--config=/share/{machine.name}/kubelet.json",
            f"--kubeconfig={kubeconfig}",
            f"--hostname-override={machine.name}",
            f"--node-ip={machine.address}",
            f"--node-labels={','.join(f'{key}={value}' for key, value in LABELS.items())}",
            "--v=2",
        ]
        (folder / "kubelet.options").write_text(" ".join(options))
        addresses = {"type": "host-local", "ranges": [[{"subnet": machine.pods}]], "routes": [{"dst": "0.0.0.0/0"}]}
        plugins = [{"type": "ptp", "mtu": 1500, "ipam": addresses}]
        network = {"cniVersion": "1.0.0", "name": "pods", "plugins": plugins}
        (folder / "cni/pods.conflist").write_text(json.dumps(network))
