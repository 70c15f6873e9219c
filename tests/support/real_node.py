"""A real node for the tests' control plane: containerd, kubelet and kube-proxy, in the namespaces of `node/enter`.

Its pods reach the API server, and the API server its webhooks, through Services.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests.support.controlplane import build
from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.process import Process

NAME, ADDRESS, PODS = "real-node", "172.31.200.1", "172.31.201.0/24"
REAL = "test/real"  # its label: kwok plays the other nodes
PAUSE = "localhost/pause:1"
CNI = Path("/usr/lib/cni")
STATE = Path("/run/kubevirt-scheduler-node")  # a Unix socket's path is limited to about a hundred characters
# Later options override those of programs.py. Without the egress selector, the API server calls Services by their IPs.
OPTIONS = {
    "kube-apiserver": (
        "--bind-address=0.0.0.0",
        "--egress-selector-config-file=",
        "--kubelet-preferred-address-types=InternalIP",
    ),
    "kwok": ("--manage-all-nodes=false", f"--manage-nodes-with-label-selector={REAL}!=true"),
}
CONTAINERD = f"""
version = 3
root = "{{folder}}/containerd"
state = "{STATE}/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri"]
[grpc]
address = "{STATE}/containerd.sock"
[plugins.'io.containerd.cri.v1.images']
snapshotter = "{{snapshotter}}"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{PAUSE}"
[plugins.'io.containerd.cri.v1.runtime']
disable_apparmor = true
# A sandbox has an oom_score_adj of -998. Without CAP_SYS_RESOURCE, nobody can lower his own, and runc fails:
# "can't get final child's PID from pipe".
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["{CNI}"]
conf_dir = "{{folder}}/cni"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = false
"""
NETWORK = {
    "cniVersion": "1.0.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "pods0",
            "isGateway": True,
            "hairpinMode": True,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}]},
        }
    ],
}
KUBELET = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "address": ADDRESS,
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "cgroupDriver": "cgroupfs",
    "failCgroupV1": False,
    "failSwapOn": False,
    "containerRuntimeEndpoint": f"unix://{STATE}/containerd.sock",
    "evictionHard": {f"{each}.available": "0%" for each in ("memory", "nodefs", "imagefs")}
    | {f"{each}.inodesFree": "0%" for each in ("nodefs", "imagefs")},
    "imageGCHighThresholdPercent": 100,
    "resolvConf": "",
}
PROXY = {
    "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
    "kind": "KubeProxyConfiguration",
    "mode": "nftables",
    "hostnameOverride": NAME,
    "clusterCIDR": PODS,
    "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
}


class OpenControlPlane(ControlPlane):
    """A control plane that the pods of the real node can reach."""

    def _start(self, name: str, program: str, arguments: list[str], health: str) -> Process:
        return super()._start(name, program, [*arguments, *OPTIONS.get(program, ())], health)

    def publish(self) -> None:
        """Give the Service `kubernetes` an endpoint."""
        metadata = {"name": "kubernetes", "labels": {"kubernetes.io/service-name": "kubernetes"}}
        endpoint = {"addresses": [ADDRESS], "conditions": {"ready": True}}
        port = {"name": "https", "port": self.port, "protocol": "TCP"}
        endpoints = {"metadata": metadata, "addressType": "IPv4", "endpoints": [endpoint], "ports": [port]}
        self.request("POST", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", endpoints)


class RealNode:
    """The programs of the node. They end with the namespaces, and so do its pods."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane, self.folder, self.programs = plane, folder, build.rare("node")
        (folder / "cni").mkdir(parents=True)
        STATE.mkdir()
        (folder / "cni/pods.conflist").write_text(json.dumps(NETWORK))
        snapshotter = "overlayfs" if _has_overlay(folder) else "native"
        (folder / "containerd.toml").write_text(CONTAINERD.format(folder=folder, snapshotter=snapshotter))
        (folder / "kubelet.json").write_text(json.dumps(KUBELET))
        connection = {"clientConnection": {"kubeconfig": str(plane.kubeconfig)}}
        (folder / "proxy.json").write_text(json.dumps(PROXY | connection))
        self.containerd = self._program("containerd", [f"--config={folder}/containerd.toml"], "")
        labels = f"{REAL}=true,kubevirt.io/schedulable=true"
        options = [
            f"--config={folder}/kubelet.json",
            f"--kubeconfig={plane.kubeconfig}",
            f"--hostname-override={NAME}",
            f"--node-ip={ADDRESS}",
            f"--root-dir={folder}/kubelet",
            f"--cert-dir={folder}/pki",
            f"--node-labels={labels}",
            "--v=2",
        ]
        self.kubelet = self._program("kubelet", options, "http://127.0.0.1:10248/healthz")
        self.proxy = self._program("kube-proxy", [f"--config={folder}/proxy.json"], "http://127.0.0.1:10256/healthz")

    def start(self, *images: Path) -> None:
        """Start the programs, import the images, and return when the node is Ready."""
        os.environ["PATH"] = f"{self.programs['containerd'].parent}:{os.environ['PATH']}"  # for the shim
        self.containerd.start()
        self.plane.wait(lambda: not self._ctr("version").returncode, 20, "containerd")
        for image in images:
            if (imported := self._ctr("--namespace=k8s.io", "images", "import", str(image))).returncode:
                raise RuntimeError(f"{image}: {imported.stderr}")
        self.kubelet.start()
        self.proxy.start()
        for each in self.kubelet, self.proxy:
            each.wait_until_healthy()
        self.plane.wait(self.is_ready, 60, "a node that is Ready")

    def is_ready(self) -> bool:
        """Return whether the node is Ready, and pods can be scheduled on it."""
        node = self.plane.request("GET", f"/api/v1/nodes/{NAME}")
        ready = any(each["type"] == "Ready" and each["status"] == "True" for each in node["status"]["conditions"])
        return ready and not node["spec"].get("taints")

    def restart_kubelet(self) -> None:
        """Kill the kubelet, and start it again."""
        self.kubelet.kill()
        self.kubelet.start()
        self.kubelet.wait_until_healthy()

    def pids(self, pod: Object) -> list[int]:
        """Return the processes of a pod, in the order of their start: by its UID in the path of their cgroup."""
        uid = pod["metadata"]["uid"]
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if uid in (folder / "cgroup").read_text():
                    found.append(int(folder.name))
            except OSError:  # it has just ended
                continue
        return sorted(found)

    def _ctr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.programs["ctr"]), f"--address={STATE}/containerd.sock", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    def _program(self, name: str, arguments: list[str], health: str) -> Process:
        return Process(name, [str(self.programs[name]), *arguments], health, self.folder)


def _has_overlay(folder: Path) -> bool:
    """Return whether overlayfs can be mounted in this folder."""
    for name in "lower", "upper", "work", "merged":
        (folder / name).mkdir(exist_ok=True)
    options = f"lowerdir={folder}/lower,upperdir={folder}/upper,workdir={folder}/work"
    target = str(folder / "merged")
    if subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, target], check=False).returncode:
        return False
    subprocess.run(["umount", target], check=True)
    return True
