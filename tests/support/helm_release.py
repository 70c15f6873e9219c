"""A release of the chart on the real control plane. Local processes stand in for its pods.

No kubelet runs here: kwok marks every pod as running, but runs nothing. This module does the work of the Deployment
controller, the kubelet and the Service's endpoints. It follows the Deployment's strategy: start one replica, and when
it is ready, stop an old one.
"""

from __future__ import annotations

import base64
import itertools
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from tests.support.controlplane import build
from tests.support.controlplane.api import LOOPBACK, ApiError
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.process import Process, free_ports
from tests.support.helm_chart import CHART, NAME, Object, container, env_values, find_one
from tests.support.webhook_process import PROGRAM, RBAC, REGISTRATIONS

# Helm 4 and Helm 3, as the parameters of a test.
HELMS = ("helm", pytest.param("helm3", marks=pytest.mark.needs("helm3")))
ENDPOINT_LAG = 0.3  # seconds until every node drops a removed endpoint; kube-proxy syncs at most once a second
NUMBERS = itertools.count(1)
# Seconds between two reads. An update needs two reads of the same version. The real kubelet takes up to 90 s. A faster
# mount than cert-manager's injector, on a machine that stalls, would serve a certificate that no client trusts yet. A
# ConfigMap has no certificate.
SECRET_INTERVAL, CONFIG_MAP_INTERVAL = 3.0, 0.5
# With `failurePolicy: Ignore`, a machine that stalls for the chart's 3 s would let VMs start unmodified.
LONG_TIMEOUT = "--set=webhook.timeoutSeconds=10"

# The collections of the RBAC objects that `helm test` needs.
TEST_RIGHTS = {
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "Role": f"{RBAC}/namespaces/{{}}/roles",
    "RoleBinding": f"{RBAC}/namespaces/{{}}/rolebindings",
}


class Release:
    """The chart, installed by a real Helm. The release and its namespace have the same name."""

    def __init__(self, plane: ControlPlane, name: str, program: str = "helm") -> None:
        self.plane, self.name, self.namespace, self.program = plane, name, name, program
        self.fullname = name if NAME in name else f"{name}-{NAME}"
        self.configuration = f"{REGISTRATIONS}/{self.fullname}"
        self.deployment_path = f"/apis/apps/v1/namespaces/{name}/deployments/{self.fullname}"
        self.secret = f"/api/v1/namespaces/{name}/secrets/{self.fullname}-tls"
        self.lease = f"/apis/coordination.k8s.io/v1/namespaces/{name}/leases/{self.fullname}-release"

    def helm(self, *arguments: str, program: str = "") -> str:
        """Run Helm in the release's namespace and return its output."""
        program = program or self.program
        if program == "helm3":
            self.plane.binaries |= build.rare(program)
        return self.plane._run_as_admin(program, (*arguments, f"--namespace={self.namespace}"), None)

    def install(self, *arguments: str) -> Release:
        self.helm("install", self.name, str(CHART), "--create-namespace", *arguments)
        return self

    def upgrade(self, *arguments: str, program: str = "") -> None:
        self.helm("upgrade", self.name, str(CHART), *arguments, program=program)

    def uninstall(self, *arguments: str) -> None:
        self.helm("uninstall", self.name, *arguments)

    def deployment(self) -> Object:
        return self.plane.request("GET", self.deployment_path)

    def webhooks(self) -> list[Object]:
        found: list[Object] = self.plane.request("GET", self.configuration)["webhooks"]
        return found

    def remove_webhook(self, webhook: str) -> None:
        """Remove one webhook from the configuration; the next upgrade adds it again."""
        configuration = self.plane.request("GET", self.configuration)
        remaining = [each for each in configuration["webhooks"] if each["name"] != webhook]
        self.plane.request("PUT", self.configuration, configuration | {"webhooks": remaining})

    def ca_bundles(self) -> set[str]:
        """Return the distinct `caBundle` values of the webhooks; "" stands for a missing one."""
        return {each["clientConfig"].get("caBundle", "") for each in self.webhooks()}

    def has_ca_bundle(self) -> bool:
        """Return whether every webhook has a `caBundle`, and all have the same one."""
        return len(self.ca_bundles()) == 1 and self.ca_bundles() != {""}

    def test_kubeconfig(self, file: Path) -> Path:
        """Create the account and the rights of `helm test`, and write a kubeconfig for it."""
        for each in yaml.safe_load_all(self.helm("get", "hooks", self.name)):
            if collection := TEST_RIGHTS.get(each["kind"]):
                self.plane.request("POST", collection.format(each["metadata"]["namespace"]), each)
        return self.plane.write_kubeconfig(
            file, self.plane.service_account_token(self.namespace, f"{self.fullname}-test")
        )

    def command(self, spec: Object, account: str, **overrides: str) -> list[str]:
        """Return a container's command line, with a kubeconfig for its service account and some options overridden."""
        token = self.plane.service_account_token(self.namespace, account)
        kubeconfig = self.plane.write_kubeconfig(self.plane.folder / f"{account}-{next(NUMBERS)}-kubeconfig", token)
        options = dict(argument.split("=", 1) for argument in spec["args"][1:])
        environment = {"KUBECONFIG": str(kubeconfig)} | env_values(spec)
        command = ["/usr/bin/env", "-i", *(f"{key}={value}" for key, value in environment.items()), str(PROGRAM)]
        return [*command, spec["args"][0], *(f"{key}={value}" for key, value in (options | overrides).items())]


def source_path(release: Release, volume: Object) -> str:
    """Return the path of the Secret or ConfigMap of a volume at the API server."""
    kind, name = ("secrets", "secretName") if "secret" in volume else ("configmaps", "name")
    source = volume["secret" if kind == "secrets" else "configMap"]
    return f"/api/v1/namespaces/{release.namespace}/{kind}/{source[name]}"


class SecretVolume:
    """A Secret or ConfigMap as the kubelet mounts it: fields are links into `..data`, which an update replaces."""

    def __init__(self, plane: ControlPlane, secret: str, folder: Path) -> None:
        """`secret` is the path of the Secret or ConfigMap at the API server."""
        self._plane, self._secret, self._folder = plane, secret, folder
        self._seen = self._mounted = ""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        folder.mkdir()

    def start(self) -> None:
        """Start to follow the Secret, and return when the volume is filled: a pod's containers start only then."""
        self._plane.wait(self._poll, 30, f"{self._secret}, which a pod mounts")
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _follow(self) -> None:
        while not self._stopped.wait(SECRET_INTERVAL if "/secrets/" in self._secret else CONFIG_MAP_INTERVAL):
            with suppress(ApiError):  # without its Secret, a running pod retains the mounted files
                self._poll()

    def _poll(self) -> bool:
        secret = self._plane.request("GET", self._secret)
        before, self._seen = self._seen, secret["metadata"]["resourceVersion"]
        if self._seen != self._mounted and (not self._mounted or self._seen == before):
            decode = base64.b64decode if "/secrets/" in self._secret else str.encode
            self._update({name: decode(value) for name, value in secret.get("data", {}).items()})
            self._mounted = self._seen
        return True

    def _update(self, fields: Mapping[str, bytes]) -> None:
        """Replace the content of the folder by these fields, atomically."""
        version, data = self._folder / f"..{self._seen}", self._folder / "..data"
        version.mkdir()
        for name, content in fields.items():
            (version / name).write_bytes(content)
            (version / name).chmod(0o440)
        previous = data.readlink() if data.is_symlink() else None
        new = self._folder / "..data_tmp"
        new.symlink_to(version.name)
        new.replace(data)
        for name in fields:
            if not (link := self._folder / name).is_symlink():
                link.symlink_to(Path("..data", name))
        if previous:
            shutil.rmtree(self._folder / previous)


class Replica:
    """One pod of the Deployment: a local process, with its Secret volumes."""

    def __init__(self, release: Release, deployment: Object) -> None:
        self.template = deployment["spec"]["template"]
        spec, (https, http) = container(deployment), free_ports(2)
        overrides = {"--bind": LOOPBACK, "--https-port": str(https), "--http-port": str(http)}
        self.mounts: list[SecretVolume] = []
        for volume in self.template["spec"].get("volumes", []):
            folder = release.plane.folder / f"{release.fullname}-{volume['name']}-{next(NUMBERS)}"
            (mount,) = (each for each in spec["volumeMounts"] if each["name"] == volume["name"])
            option, file = {"tls": ("--tls-dir", ""), "client-ca": ("--client-ca-file", "/ca.crt")}[volume["name"]]
            assert f"{option}={mount['mountPath']}{file}" in spec["args"]
            overrides[option] = f"{folder}{file}"
            self.mounts.append(SecretVolume(release.plane, source_path(release, volume), folder))
        command = release.command(spec, self.template["spec"]["serviceAccountName"], **overrides)
        ready = f"http://{LOOPBACK}:{http}{spec['readinessProbe']['httpGet']['path']}"
        self.address, self.plain_address = (LOOPBACK, https), (LOOPBACK, http)
        self.process = Process(f"{release.fullname}-{next(NUMBERS)}", command, ready, release.plane.folder)
        lifecycle = spec.get("lifecycle")
        self.pre_stop: float = lifecycle["preStop"]["sleep"]["seconds"] if lifecycle else 0.0

    def start(self) -> None:
        """Mount the Secrets and start the process, as the kubelet does. Returns when the replica is ready."""
        for mount in self.mounts:
            mount.start()
        self.process.start()
        self.process.wait_until_healthy(30)

    def kill(self) -> None:
        self.process.kill()
        for mount in self.mounts:
            mount.stop()

    def terminate(self) -> None:
        if self.process.alive:
            self.process.should_run = False
            os.kill(self.process.pid, signal.SIGTERM)

    def wait_for_exit(self) -> int:
        """Wait for the process to exit, at most for the pod's grace period, and return its exit code."""
        return self.process.wait_for_exit(self.template["spec"]["terminationGracePeriodSeconds"])


class Replicas:
    """The replicas of a release's Deployment. `with Replicas(release)` starts them, and kills them at the end."""

    def __init__(self, release: Release) -> None:
        self.release = release
        self.running: list[Replica] = []
        self.terminating: list[Replica] = []
        self._service_addresses: list[tuple[str, int]] = []  # where the API server calls the Service
        self._timers: list[threading.Timer] = []

    def __enter__(self) -> Replicas:
        try:
            self.reconcile()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for timer in self._timers:
            timer.cancel()
            timer.join()
        for each in self.running + self.terminating:
            each.kill()

    def reconcile(self) -> int:
        """Roll out the Deployment and return the number of started replicas. Old ones shut down in the background."""
        deployment = self.release.deployment()
        spec, started = deployment["spec"], 0
        assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}  # the loop below does this
        while len(self.running) < spec["replicas"] or any(each.template != spec["template"] for each in self.running):
            self._start(deployment)
            started += 1
            self._shrink(spec["replicas"])
        self._shrink(spec["replicas"])  # `kubectl scale`
        return started

    def exit_codes(self) -> list[int]:
        """Wait for the terminating replicas to exit, and return their exit codes."""
        for timer in self._timers:
            timer.join()
        return [each.wait_for_exit() for each in self.terminating]

    def error_lines(self) -> list[str]:
        """Return the lines of the replicas' logs that contain "forbidden" or "cannot "."""
        lines = [line for each in self.running + self.terminating for line in each.process.log.read_text().splitlines()]
        return [line for line in lines if "forbidden" in line or "cannot " in line]

    def close_connections(self) -> None:
        """Close the API server's idle connections to the replicas, so that its next call does a new TLS handshake."""
        for address in self._service_addresses:
            self.release.plane.close_connections(*address)

    def _start(self, deployment: Object) -> None:
        new = Replica(self.release, deployment)
        self.terminating.append(new)  # so that it is killed if it never becomes ready
        new.start()
        self.terminating.remove(new)
        self.running.append(new)
        service = f"/api/v1/namespaces/{self.release.namespace}/services/{self.release.fullname}"
        spec = self.release.plane.request("GET", service)["spec"]
        self._service_addresses = [(spec["clusterIP"], port["port"]) for port in spec["ports"]]
        self._publish()

    def _publish(self) -> None:
        for host, port in self._service_addresses:
            self.release.plane.route(host, port, *(each.address for each in self.running))

    def _shrink(self, count: int) -> None:
        while len(self.running) > count:
            self._stop(self.running.pop(0))

    def _stop(self, old: Replica) -> None:
        """Remove the endpoint and, independently, wait for preStop and send SIGTERM, as Kubernetes does."""
        self.terminating.append(old)
        for seconds, step in (ENDPOINT_LAG, self._publish), (old.pre_stop, old.terminate):
            self._timers.append(threading.Timer(seconds, step))
            self._timers[-1].start()


def scheduler_process(plane: ControlPlane, objects: list[Object], credentials: Path) -> Process:
    """Return a replica of the secondary scheduler. Only its credentials and its address differ from those of a pod."""
    name = f"chart-scheduler-{next(NUMBERS)}"
    config = yaml.safe_load(find_one(objects, "ConfigMap")["data"]["config.yaml"])
    config["clientConnection"] = {"kubeconfig": str(credentials)}
    file = plane.folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(config))
    deployment = find_one(objects, "Deployment")
    spec, port = container(deployment), free_ports(1)[0]
    overrides = {"--config": str(file), "--bind-address": LOOPBACK, "--secure-port": str(port)}
    options = dict(argument.split("=", 1) for argument in spec["args"])
    overrides |= dict.fromkeys(("--authentication-kubeconfig", "--authorization-kubeconfig"), str(credentials))
    program = str(plane.binaries[spec["command"][0]])
    command = [program, *(f"{key}={value}" for key, value in (options | overrides).items())]
    health = f"https://{LOOPBACK}:{port}{spec['livenessProbe']['httpGet']['path']}"
    return Process(name, command, health, plane.folder)


def run_test_pod(release: Release, pod: Object) -> int:
    """Run the command of the `helm test` pod with its service account, set its phase, and return the exit code."""
    command = release.command(container({"spec": {"template": pod}}), pod["spec"]["serviceAccountName"])
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90)
    status = {
        "phase": "Failed" if result.returncode else "Succeeded",
        "message": (result.stdout + result.stderr)[-1000:],
    }
    path = f"/api/v1/namespaces/{release.namespace}/pods/{pod['metadata']['name']}/status"
    release.plane.request("PATCH", path, {"status": status})
    return result.returncode
