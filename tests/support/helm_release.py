"""A release of the chart on the real control plane, and its pods, which no kubelet runs here: processes play them.

kwok says of each pod that it runs, and runs nothing. So what the Deployment's controller, the kubelet and the Service's
endpoints do is done here, as the Deployment's strategy says it: one more, and when that is ready, one less.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest
import yaml

from tests.support.controlplane import build
from tests.support.controlplane.api import LOOPBACK
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.process import Process, free_ports
from tests.support.helm_chart import CHART, NAME, Object, container, only, variables
from tests.support.secret_mount import Mount
from tests.support.webhook_process import PROGRAM, REGISTRATIONS

HELMS = ("helm", "helm3")
LAG = 0.3  # seconds until every node has heard that an endpoint has gone; kube-proxy syncs once a second at the most
NUMBERS = itertools.count(1)
# With `Ignore`, a machine that stalls for the chart's 3 s would have VMs passed over.
PATIENT = "--set=webhook.timeoutSeconds=10"


def build_both(request: pytest.FixtureRequest) -> None:
    """Build Helm 3 as well: that takes minutes in the first run on a machine, and its progress is to be seen."""
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        build.helm3()


class Release:
    """The chart, installed by a real Helm under one name, in a namespace of the same name."""

    def __init__(self, plane: ControlPlane, name: str, program: str = "helm") -> None:
        self.plane, self.name, self.namespace, self.program = plane, name, name, program
        self.fullname = name if NAME in name else f"{name}-{NAME}"
        self.configuration = f"{REGISTRATIONS}/{self.fullname}"
        self.secret = f"/api/v1/namespaces/{name}/secrets/{self.fullname}-tls"

    def helm(self, *arguments: str, program: str = "") -> str:
        """Run Helm on this release's namespace, and return what it prints."""
        program = program or self.program
        if program == "helm3":
            self.plane.binaries[program] = build.helm3()
        return self.plane._run(program, (*arguments, f"--namespace={self.namespace}"), None)

    def install(self, *arguments: str) -> Release:
        self.helm("install", self.name, str(CHART), "--create-namespace", *arguments)
        return self

    def upgrade(self, *arguments: str, program: str = "") -> None:
        self.helm("upgrade", self.name, str(CHART), *arguments, program=program)

    def uninstall(self, *arguments: str) -> None:
        self.helm("uninstall", self.name, *arguments)

    def objects(self) -> list[Object]:
        """What Helm has rendered of it, hooks left out."""
        return [each for each in yaml.safe_load_all(self.helm("get", "manifest", self.name)) if each]

    def deployment(self) -> Object:
        path = f"/apis/apps/v1/namespaces/{self.namespace}/deployments/{self.fullname}"
        return self.plane.request("GET", path)

    def webhooks(self) -> list[Object]:
        found: list[Object] = self.plane.request("GET", self.configuration)["webhooks"]
        return found

    def take_away(self, webhook: str) -> None:
        """Let somebody remove one of them: the next upgrade brings it back."""
        configuration = self.plane.request("GET", self.configuration)
        left = [each for each in configuration["webhooks"] if each["name"] != webhook]
        self.plane.request("PUT", self.configuration, configuration | {"webhooks": left})

    def bundles(self) -> set[str]:
        """The `caBundle` of each webhook; empty where there is none."""
        return {each["clientConfig"].get("caBundle", "") for each in self.webhooks()}

    def is_called(self) -> bool:
        """Whether every webhook has the same certificate to trust."""
        return len(self.bundles()) == 1 and self.bundles() != {""}

    def command(self, contained: Object, account: str, **own: str) -> list[str]:
        """A container's command line as it is, but for its addresses, and for where its account's token is."""
        token = self.plane.service_account_token(self.namespace, account)
        kubeconfig = self.plane.write_kubeconfig(self.plane.folder / f"{account}-{next(NUMBERS)}-kubeconfig", token)
        given = dict(argument.split("=", 1) for argument in contained["args"][1:])
        environment = {"KUBECONFIG": str(kubeconfig)} | variables(contained)
        command = ["/usr/bin/env", "-i", *(f"{key}={value}" for key, value in environment.items()), str(PROGRAM)]
        return [*command, contained["args"][0], *(f"{key}={value}" for key, value in (given | own).items())]


class Replica:
    """One pod of the Deployment."""

    def __init__(self, release: Release, deployment: Object) -> None:
        self.template = deployment["spec"]["template"]
        contained, (https, http) = container(deployment), free_ports(2)
        own = {"--bind": LOOPBACK, "--https-port": str(https), "--http-port": str(http)}
        self.mounts: list[Mount] = []
        for volume in self.template["spec"].get("volumes", []):
            folder = release.plane.folder / f"{release.fullname}-{volume['name']}-{next(NUMBERS)}"
            (mount,) = (each for each in contained["volumeMounts"] if each["name"] == volume["name"])
            assert f"--tls-dir={mount['mountPath']}" in contained["args"]
            own["--tls-dir"] = str(folder)
            secret = f"/api/v1/namespaces/{release.namespace}/secrets/{volume['secret']['secretName']}"
            self.mounts.append(Mount(release.plane, secret, folder))
        command = release.command(contained, self.template["spec"]["serviceAccountName"], **own)
        ready = f"http://{LOOPBACK}:{http}{contained['readinessProbe']['httpGet']['path']}"
        self.address = LOOPBACK, https
        self.process = Process(f"{release.fullname}-{next(NUMBERS)}", command, ready, release.plane.folder)
        lifecycle = contained.get("lifecycle")
        self.pre_stop: float = lifecycle["preStop"]["sleep"]["seconds"] if lifecycle else 0.0

    def start(self) -> None:
        """Do the kubelet's part, and return when it is ready."""
        for mount in self.mounts:
            mount.start()
        self.process.start()
        self.process.wait_until_healthy(30)

    def kill(self) -> None:
        self.process.kill()
        for mount in self.mounts:
            mount.stop()

    def ask_to_end(self) -> None:
        if self.process.alive:
            self.process.wanted = False
            os.kill(self.process.pid, signal.SIGTERM)

    def ended(self) -> int:
        """Wait until it has ended, within the pod's grace, and return its exit status."""
        return self.process.ended(self.template["spec"]["terminationGracePeriodSeconds"])


class Replicas:
    """The pods that the Deployment of a release wants. `with Replicas(release)` has them there, and ends them."""

    def __init__(self, release: Release) -> None:
        self.release = release
        self.running: list[Replica] = []
        self.ending: list[Replica] = []
        self._doors: list[tuple[str, int]] = []  # where the API server calls the Service
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
        for each in self.running + self.ending:
            each.kill()

    def reconcile(self) -> int:
        """Bring them to what the Deployment says; return how many were started. The old ones end meanwhile."""
        deployment = self.release.deployment()
        spec, started = deployment["spec"], 0
        assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}  # this is what is played
        while len(self.running) < spec["replicas"] or any(each.template != spec["template"] for each in self.running):
            self._start(deployment)
            started += 1
            while len(self.running) > spec["replicas"]:
                self._end(self.running.pop(0))
        return started

    def statuses(self) -> list[int]:
        """Wait for the old ones to end, and return their exit statuses."""
        for timer in self._timers:
            timer.join()
        return [each.ended() for each in self.ending]

    def complaints(self) -> list[str]:
        """The lines in their logs that speak of something forbidden, or that could not be done."""
        lines = [line for each in self.running + self.ending for line in each.process.log.read_text().splitlines()]
        return [line for line in lines if "forbidden" in line or "cannot " in line]

    def hang_up(self) -> None:
        """End the API server's idle connections to them: its next call shakes hands anew."""
        for door in self._doors:
            self.release.plane.hang_up(*door)

    def _start(self, deployment: Object) -> None:
        new = Replica(self.release, deployment)
        self.ending.append(new)  # should it never be ready
        new.start()
        self.ending.remove(new)
        self.running.append(new)
        service = f"/api/v1/namespaces/{self.release.namespace}/services/{self.release.fullname}"
        spec = self.release.plane.request("GET", service)["spec"]
        self._doors = [(spec["clusterIP"], port["port"]) for port in spec["ports"]]
        self._publish()

    def _publish(self) -> None:
        for host, port in self._doors:
            self.release.plane.route(host, port, *(each.address for each in self.running))

    def _end(self, old: Replica) -> None:
        """The kubelet's part, the preStop wait and SIGTERM, goes on beside that of the endpoints."""
        self.ending.append(old)
        for seconds, what in (LAG, self._publish), (old.pre_stop, old.ask_to_end):
            self._timers.append(threading.Timer(seconds, what))
            self._timers[-1].start()


def scheduler(plane: ControlPlane, objects: list[Object], credentials: Path) -> Process:
    """A replica of the chart's scheduler, but for what only a pod has: its account's token, an address of its own."""
    name = f"chart-scheduler-{next(NUMBERS)}"
    config = yaml.safe_load(only(objects, "ConfigMap")["data"]["config.yaml"])
    config["clientConnection"] = {"kubeconfig": str(credentials)}
    file = plane.folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(config))
    (deployment,) = (each for each in objects if each["metadata"]["name"].endswith("-kube-scheduler")
                     and each["kind"] == "Deployment")  # fmt: skip
    contained, port = container(deployment), free_ports(1)[0]
    own = {"--config": str(file), "--bind-address": LOOPBACK, "--secure-port": str(port)}
    given = dict(argument.split("=", 1) for argument in contained["args"])
    assert set(own) <= set(given)
    own |= dict.fromkeys(("--authentication-kubeconfig", "--authorization-kubeconfig"), str(credentials))
    program = str(plane.binaries[contained["command"][0]])
    command = [program, *(f"{key}={value}" for key, value in (given | own).items())]
    health = f"https://{LOOPBACK}:{port}{contained['livenessProbe']['httpGet']['path']}"
    return Process(name, command, health, plane.folder)


def run_test_pod(release: Release, pod: Object) -> int:
    """Do what the pod of `helm test` does, with its account, and tell the API server how it ended: 0 is well."""
    command = release.command(container({"spec": {"template": pod}}), pod["spec"]["serviceAccountName"])
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90)
    status = {"phase": "Failed" if done.returncode else "Succeeded", "message": (done.stdout + done.stderr)[-1000:]}
    path = f"/api/v1/namespaces/{release.namespace}/pods/{pod['metadata']['name']}/status"
    release.plane.request("PATCH", path, {"status": status})
    return done.returncode
