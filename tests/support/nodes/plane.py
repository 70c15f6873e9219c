"""The tests' control plane, on a bridge on which real nodes are. It is no node, but has a kube-proxy like one.

So nodes and pods reach the API server, and the API server its webhooks, through Services.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.controlplane import build
from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.process import Process

ADDRESS = "10.77.0.1"
NODE = "control-plane"
PODS = "10.244.0.0/16"
# They override the options in programs.py. Without the egress selector, the API server calls Services by their IPs.
OPTIONS = {
    "kube-apiserver": (
        "--bind-address=0.0.0.0",
        "--egress-selector-config-file=",
        "--kubelet-preferred-address-types=InternalIP",
    ),
    # The default: real kubelets renew their leases.
    "kube-controller-manager": ("--node-monitor-grace-period=50s",),
    "kwok": ("--manage-all-nodes=false", "--manage-nodes-with-label-selector=test/simulated=true"),
}
PROXY: Object = {
    "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
    "kind": "KubeProxyConfiguration",
    "clusterCIDR": PODS,
    "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
}


class OpenControlPlane(ControlPlane):
    """A control plane that real nodes and their pods can reach."""

    def start(self) -> None:
        super().start()
        self._publish()
        self._add_node()
        file = self.folder / "proxy.json"
        mode = {"mode": "nftables", "hostnameOverride": NODE}
        file.write_text(json.dumps(PROXY | mode | {"clientConnection": {"kubeconfig": str(self.kubeconfig)}}))
        command = [str(build.rare("nodes")["kube-proxy"]), f"--config={file}"]
        proxy = Process("kube-proxy", command, "http://127.0.0.1:10256/healthz", self.folder)
        self.processes[proxy.name] = proxy
        proxy.start()
        proxy.wait_until_healthy()

    def node_kubeconfig(self, file: Path) -> None:
        """Write a kubeconfig with which the administrator connects from a node."""
        config = json.loads(self.kubeconfig.read_text())
        (cluster,) = config["clusters"]
        # The API server's certificate is for its loopback address and for these names.
        cluster["cluster"] = {
            "server": f"https://{ADDRESS}:{self.port}",
            "tls-server-name": "kubernetes",
            "certificate-authority": "/share/ca.crt",
        }
        file.write_text(json.dumps(config))

    def _start(self, name: str, program: str, arguments: list[str], health: str) -> Process:
        return super()._start(name, program, [*arguments, *OPTIONS.get(program, ())], health)

    def _publish(self) -> None:
        """Give the Service `kubernetes` an endpoint."""
        metadata = {"name": "kubernetes", "labels": {"kubernetes.io/service-name": "kubernetes"}}
        endpoint = {"addresses": [ADDRESS], "conditions": {"ready": True}}
        port = {"name": "https", "port": self.port, "protocol": "TCP"}
        endpoints = {"metadata": metadata, "addressType": "IPv4", "endpoints": [endpoint], "ports": [port]}
        self.request("POST", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", endpoints)

    def _add_node(self) -> None:
        """Create the node of the control plane, on which nothing runs. Without one, kube-proxy waits."""
        taint = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
        status = {"addresses": [{"type": "InternalIP", "address": ADDRESS}]}
        node = {"metadata": {"name": NODE}, "spec": {"unschedulable": True, "taints": [taint]}, "status": status}
        self.request("POST", "/api/v1/nodes", node)
