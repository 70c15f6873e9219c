"""A `kubevirt-scheduler serve` process with its own ServiceAccount, registered at a real API server as a Service."""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
import time
import urllib.request
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from tests.support.authority import issue_ca, issue_leaf
from tests.support.controlplane.api import LOOPBACK, ApiError, Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.process import Process, free_ports
from tests.support.log_capture import whole_lines

PROGRAM = Path(sys.executable).with_name("kubevirt-scheduler")
REGISTRATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
NAMESPACE = "kubevirt-scheduler"
# This namespace label names the webhook that the API server calls for the namespace's VMs.
WEBHOOK_LABEL = "test/served-by"
Right = tuple[str, str, tuple[str, ...]]
# The webhook's permissions, one row per rule of its ClusterRole.
RIGHTS: tuple[Right, ...] = (
    ("", "persistentvolumeclaims", ("list", "watch")),
    ("", "persistentvolumes", ("list", "watch")),
    ("", "nodes", ("list", "watch")),
    ("storage.k8s.io", "csinodes", ("list", "watch")),
    ("", "pods", ("list", "watch", "delete")),
    ("kubevirt.io", "virtualmachines", ("list", "watch")),
    ("kubevirt.io", "virtualmachineinstances", ("list", "watch")),
    ("", "namespaces", ("list", "watch")),
    ("storage.k8s.io", "storageclasses", ("list", "watch")),
    ("longhorn.io", "sharemanagers", ("list", "watch")),
    ("longhorn.io", "volumes", ("list", "watch")),
    ("longhorn.io", "replicas", ("list", "watch")),
    ("", "events", ("create",)),
)
RELEASE_RIGHTS: tuple[Right, ...] = (
    ("", "pods", ("get", "delete")),
    ("kubevirt.io", "virtualmachines", ("get", "list", "watch")),
    ("coordination.k8s.io", "leases", ("get", "update")),
)


def create_service_account(plane: ControlPlane, name: str, rights: tuple[Right, ...] = RIGHTS) -> str:
    """Create a ServiceAccount with these rights and return its token."""
    subject = {"kind": "ServiceAccount", "namespace": NAMESPACE, "name": name}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    plane.request("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {"metadata": {"name": name}})
    rules = [{"apiGroups": [group], "resources": [kind], "verbs": verbs} for group, kind, verbs in rights]
    plane.request("POST", f"{RBAC}/clusterroles", {"metadata": {"name": name}, "rules": rules})
    binding = {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]}
    plane.request("POST", f"{RBAC}/clusterrolebindings", binding)
    return plane.service_account_token(NAMESPACE, name)


class Webhook:
    """One webhook process. `with Webhook(...)` starts it and waits until it is ready; `register` has it called."""

    def __init__(
        self,
        plane: ControlPlane,
        name: str,
        kubeconfig: Path,
        settings: dict[str, str],
        *,
        tls: Path | None = None,
        arguments: tuple[str, ...] = (),
        program: tuple[str, ...] = (str(PROGRAM),),
    ) -> None:
        """Prepare the command. `tls` is the folder of another replica's certificate, to serve the same one.

        With the argument `--tls-secret`, the process manages its certificate itself.
        """
        self.name = name
        self.folder = plane.folder / name
        self.settings = {f"CO_SCHEDULE_{key.upper()}": value for key, value in settings.items()}
        self._plane = plane
        self._https, self._http = free_ports(2)
        self._longhorn = settings.get("longhorn_namespace", "longhorn-system")
        self._ca = issue_ca(datetime.now(UTC))
        self.folder.mkdir(parents=True)
        self.tls = tls or self._write_certificate(self.folder / "tls")
        environment = {"KUBECONFIG": str(kubeconfig)} | self.settings
        listen = [f"--bind={LOOPBACK}", f"--https-port={self._https}", f"--http-port={self._http}"]
        if not any(each.startswith("--tls-secret=") for each in arguments):
            listen.append(f"--tls-dir={self.tls}")
        command = ["/usr/bin/env", *(f"{key}={value}" for key, value in environment.items()), *program, "serve"]
        self.process = Process(
            name, [*command, *listen, *arguments], f"http://{LOOPBACK}:{self._http}/readyz", self.folder
        )

    def __enter__(self) -> Webhook:
        try:
            self.process.start()
            self.process.wait_until_healthy()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.unregister()
        self.stop()

    @property
    def address(self) -> tuple[str, int]:
        """The address that serves admission reviews."""
        return LOOPBACK, self._https

    def stop(self, seconds: float = 15) -> None:
        """Stop the process at once: no client needs a graceful shutdown, which a second SIGTERM cuts short."""
        self.process.should_run, deadline = False, time.monotonic() + seconds
        while self.process.alive and time.monotonic() < deadline:
            os.kill(self.process.pid, signal.SIGTERM)
            time.sleep(0.1)
        self.process.kill()

    def register(self, share_managers: bool = True, timeout: int = 10, *, direct: bool = False) -> Webhook:
        """Have the API server call this webhook for VMs in namespaces labeled for it, and for share-manager pods.

        The default timeout of a call is longer than the chart's 3 s, because it tolerates a machine that stalls. A
        `direct` registration names a URL instead of the Service, so that no proxy in Python takes part in the calls.
        """
        service = {"metadata": {"name": self.name}, "spec": {"ports": [{"port": 443}]}}
        services = f"/api/v1/namespaces/{NAMESPACE}/services"
        if self.name not in [each["metadata"]["name"] for each in self._plane.request("GET", services)["items"]]:
            self._plane.request("POST", services, service)
        self._plane.route_service(NAMESPACE, self.name, self.address)
        self._plane.request("POST", REGISTRATIONS, self._configuration(share_managers, timeout, direct=direct))
        return self

    def show_installed(self, node: str) -> None:
        """Create what the commands read of an installation: a Deployment with the settings, and a replica on a node."""
        labels, container = {"app": self.name}, {"name": "webhook", "image": "registry.test/webhook"}
        environment = [{"name": key, "value": value} for key, value in self.settings.items()]
        template = {"metadata": {"labels": labels}, "spec": {"containers": [container | {"env": environment}]}}
        spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
        metadata, folder = {"name": self.name, "labels": labels}, f"namespaces/{NAMESPACE}"
        self._plane.request("PATCH", f"/api/v1/{folder}/services/{self.name}", {"spec": {"selector": labels}})
        with suppress(ApiError):  # of the test before
            self._plane.request("POST", f"/apis/apps/v1/{folder}/deployments", {"metadata": metadata, "spec": spec})
        with suppress(ApiError):
            self._plane.request("DELETE", f"/api/v1/{folder}/pods/{self.name}?gracePeriodSeconds=0")
        pod = {"metadata": metadata, "spec": {"nodeName": node, "containers": [container]}}
        self._plane.request("POST", f"/api/v1/{folder}/pods", pod)

    def unregister(self) -> None:
        if any(each["metadata"]["name"] == self.name for each in self._plane.request("GET", REGISTRATIONS)["items"]):
            self._plane.request("DELETE", f"{REGISTRATIONS}/{self.name}")

    def get(self, path: str) -> tuple[int, str]:
        """GET a path of the plain HTTP port, such as /readyz or /metrics; return the status and the body."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://{LOOPBACK}:{self._http}{path}", timeout=20) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name: str) -> float:
        """Return the sum of a metric's samples."""
        lines = self.get("/metrics")[1].splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))

    def logged(self, text: str, since: int = 0) -> bool:
        """Return whether a value in the log contains the text. `since` is the index of the first line to search."""
        return any(text in str(value) for line in self.log()[since:] for value in line.values())

    def log(self) -> list[Object]:
        """Return the JSON lines of the process's log."""
        lines = whole_lines(self.process.log.read_text(errors="replace"))
        return [json.loads(line) for line in lines if line.startswith("{")]

    def pids(self) -> list[int]:
        """Return the process ids of the process and its workers."""
        pid = self.process.pid
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]

    def _write_certificate(self, folder: Path) -> Path:
        folder.mkdir()
        leaf = issue_leaf(self._ca, [f"{self.name}.{NAMESPACE}.svc", "localhost"], datetime.now(UTC))
        for file, content in ("tls.crt", leaf.certificate), ("tls.key", leaf.key), ("ca.crt", self._ca.certificate):
            (folder / file).write_bytes(content)
        return folder

    def _configuration(self, with_share_managers: bool, timeout: int, *, direct: bool) -> Object:
        """Return the MutatingWebhookConfiguration of the chart, but with `Fail`, which makes missed calls visible."""
        client: Object = {"service": {"namespace": NAMESPACE, "name": self.name, "path": "/mutate"}}
        if direct:
            client = {"url": f"https://localhost:{self._https}/mutate"}
        common = {
            "clientConfig": client | {"caBundle": base64.b64encode(self._ca.certificate).decode()},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            "failurePolicy": "Fail",
            "timeoutSeconds": timeout,
            "sideEffects": "NoneOnDryRun",
            "reinvocationPolicy": "IfNeeded",
            "admissionReviewVersions": ["v1"],
        }
        vms = {
            "name": "vms.kubevirt-scheduler.io",
            "objectSelector": {"matchLabels": {"kubevirt.io": "virt-launcher"}},
            "namespaceSelector": {"matchLabels": {WEBHOOK_LABEL: self.name}},
        }
        share_managers = {
            "name": "share-managers.kubevirt-scheduler.io",
            "objectSelector": {"matchLabels": {"longhorn.io/component": "share-manager"}},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self._longhorn}},
        }
        webhooks = [vms, share_managers] if with_share_managers else [vms]
        return {"metadata": {"name": self.name}, "webhooks": [each | common for each in webhooks]}
