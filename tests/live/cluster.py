"""A cluster as its users see it: kubectl, Helm and this project's command, with the kubeconfig of the environment."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tests.support.command_line import run_line
from tests.support.paths import ROOT

T = TypeVar("T")
Object = dict[str, Any]
INTERVAL = 0.5  # seconds between two looks at the cluster
CONTROL = 120  # seconds for one command


class CommandError(Exception):
    """A command failed; the message has its output."""


class Cluster:
    """The cluster that the environment's KUBECONFIG selects, and the options of `make test-live`."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self.storage_class = environment.get("STORAGE_CLASS") or "longhorn"
        self.vm_image = environment.get("VM_IMAGE") or "quay.io/kubevirt/cirros-container-disk-demo:v1.9.0"
        # How long a scenario watches that nothing happens. Longhorn deletes a pod about 7 s after its share-manager.
        self.settle = float(environment.get("SETTLE") or 30)
        # The first VM on a node pulls its image.
        self.patience = float(environment.get("PATIENCE") or 600)

    def run(self, *command: str, text: str | None = None, seconds: float = CONTROL) -> str:
        """Run a command and return what it prints. Raises CommandError."""
        try:
            done = subprocess.run(
                command,
                input=text,
                env=dict(self.environment),
                capture_output=True,
                text=True,
                check=False,
                timeout=seconds,
            )
        except subprocess.TimeoutExpired as error:
            raise CommandError(f"`{shlex.join(command)}` did not end within {seconds:g} s") from error
        if done.returncode:
            raise CommandError(f"`{shlex.join(command)}`: exit status {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def read(self, *arguments: str) -> str:
        """Run this project's command, which only reads, in this process: its start takes half a second of CPU time."""
        shown = run_line(shlex.join(("kubevirt-scheduler", *arguments)), self.environment, ROOT)
        if shown.exit_code:
            raise CommandError(f"`{shlex.join(arguments)}`: status {shown.exit_code}\n{shown.stdout}{shown.stderr}")
        return shown.stdout

    def kubectl(self, *arguments: str, text: str | None = None, seconds: float = CONTROL) -> str:
        return self.run("kubectl", *arguments, text=text, seconds=seconds)

    def get(self, *arguments: str) -> Object:
        """Return an object, or a list of them, as `kubectl get` prints it."""
        found: Object = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return found

    def items(self, *arguments: str) -> list[Object]:
        return list(self.get(*arguments)["items"])

    def create(self, kind: str, name: str, spec: Object | None = None, namespace: str = "", **metadata: Object) -> None:
        """Create an object. `kind` is its apiVersion and its kind, separated by a slash."""
        version, _, kind = kind.rpartition("/")
        found = {"apiVersion": version, "kind": kind, "metadata": {"name": name} | metadata, "spec": spec or {}}
        scope = [f"--namespace={namespace}"] if namespace else []
        self.kubectl("create", "-f", "-", *scope, text=json.dumps(found))

    def hostname(self, node: str) -> str:
        """Return the label by which pods select a node; empty without a node."""
        return str(self.get("node", node)["metadata"]["labels"]["kubernetes.io/hostname"]) if node else ""

    def wait(self, what: str, look: Callable[[], T], seconds: float = 0) -> T:
        """Wait until `look` returns a true value, and return the value. Say what for, and how long it may take."""
        seconds = seconds or self.patience
        begin, last = time.monotonic(), ""
        print(f"  waiting up to {seconds:g} s: {what}", flush=True)
        while True:
            try:
                if value := look():
                    print(f"  after {time.monotonic() - begin:.1f} s: {what}", flush=True)
                    return value
            except CommandError as error:  # an object that doesn't exist yet, or an API server that restarts
                last = f"; last error: {error}"
            if time.monotonic() > begin + seconds:
                raise AssertionError(f"not within {seconds:g} s: {what}{last}")
            time.sleep(INTERVAL)

    def watch(self, what: str, holds: Callable[[], bool]) -> None:
        """Watch that something remains true for the time to settle."""
        print(f"  watching for {self.settle:g} s: {what}", flush=True)
        end = time.monotonic() + self.settle
        while True:
            try:
                assert holds(), f"no longer: {what}"
                if time.monotonic() > end:
                    return
            except CommandError:  # an API server that restarts
                if time.monotonic() > end + self.patience:
                    raise
            time.sleep(INTERVAL)

    def versions(self) -> str:
        """Return what takes part, with its versions."""
        server = json.loads(self.kubectl("version", "-o", "json"))["serverVersion"]
        kubevirt = self.items("kubevirts.kubevirt.io", "-A")[0]["status"]
        settings = {each["metadata"]["name"]: each["value"] for each in self.items("settings.longhorn.io", "-A")}
        webhook = json.loads(self.read("version", "-o", "json"))["webhook"]
        kernels = Counter(each["status"]["nodeInfo"]["kernelVersion"] for each in self.items("nodes"))
        return ", ".join(
            (
                f"Kubernetes {server['gitVersion']}",
                f"KubeVirt {kubevirt['observedKubeVirtVersion']}",
                f"Longhorn {settings['current-longhorn-version']} (StorageClass {self.storage_class})",
                f"webhook {webhook['version']} ({webhook['activity']})",
                *(f"{count} nodes with Linux {kernel or 'unknown'}" for kernel, count in kernels.items()),
            )
        )


def real_cluster() -> Cluster:
    """Return the cluster of `make test-live`. Raises CommandError if it lacks something that all scenarios need."""
    cluster = Cluster(os.environ)
    if json.loads(cluster.read("version", "-o", "json"))["webhook"]["activity"] == "not-installed":
        raise CommandError("the webhook is not installed: see docs/guides/install.md")
    cluster.kubectl("get", "crd", "virtualmachines.kubevirt.io", "sharemanagers.longhorn.io")
    provisioner = cluster.get("storageclass", cluster.storage_class)["provisioner"]
    if provisioner != "driver.longhorn.io":
        raise CommandError(f"StorageClass {cluster.storage_class} is not Longhorn's, but of {provisioner}")
    return cluster
