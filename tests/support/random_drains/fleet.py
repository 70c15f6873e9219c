"""A random fleet on the real control plane, with its own namespace and nodes: several are followed at once."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from typing import Any, NamedTuple

from tests.support.command_line import run_line
from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.evacuation import Evacuation
from tests.support.kubevirt import vm_path
from tests.support.live_view import MANAGERS, MIGRATIONS, PODS, VMIS, VMS, Life, LiveView, lives
from tests.support.longhorn import Longhorn
from tests.support.migration_controller import FINAL
from tests.support.paths import ROOT
from tests.support.random_drains.controllers import (
    FleetKubeVirt,
    FleetMigrations,
    hotplugged_claims,
    is_attachment,
    owner_of,
)
from tests.support.random_drains.design import Plan, design
from tests.support.scenario import HOSTNAME, Scenario
from tests.support.virt_controller import requests_of
from tests.support.webhook_process import PROGRAM, Webhook

OPT_IN = {"kubevirt-scheduler/co-schedule": "true"}
# These read only, so they run in this process, one after the other. `recolocate --yes` catches signals.
ASKS = ("kubevirt-scheduler drain-check", "kubevirt-scheduler report", "kubevirt-scheduler opt-in")
QUIET, PATIENCE = 1.0, 300.0  # seconds without a change until a fleet has settled, and the longest time
RETRIES = 2.5  # the same while the scheduler refuses a pod, which it tries again after at most 2 s
_COMMAND = threading.Lock()


class Cluster(NamedTuple):
    """What all fleets share."""

    plane: ControlPlane
    longhorn: Longhorn
    webhook: Webhook
    view: LiveView
    strategy: str  # KubeVirt's default eviction strategy


class Fleet:
    """A fleet on the control plane. `with Fleet(...) as fleet` builds it."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster, self.seed, self.design = cluster, seed, design(seed)
        self.plane, self._view, self._longhorn = cluster.plane, cluster.view, cluster.longhorn
        self._stack = ExitStack()
        self.log = list[str]()
        self.failures = list[str]()  # of commands that were advised

    def __enter__(self) -> Fleet:
        with ExitStack() as stack:
            self._scenario = Scenario(self.plane, self._longhorn, self.cluster.webhook)
            stack.callback(self._scenario.close)
            self.namespace = self._scenario.namespace
            self._build(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _build(self, stack: ExitStack) -> None:
        scenario, plan = self._scenario, self.design
        self.nodes = [f"{scenario.namespace}-n{number}" for number in range(plan.nodes)]
        for number, node in enumerate(self.nodes):
            scenario.add_node(node, None, **({"memory": "2Gi"} if number in plan.full else {}))
        scenario.wait_ready(self.nodes)
        scenario.add_storage_class(f"{scenario.namespace}-here", HOSTNAME, self.nodes[0])
        self.volumes = dict(self._claims())
        scenario.wait_bound(*self.volumes)
        if any(vm.group for vm in plan.vms):
            budget = {"minAvailable": 1, "selector": {"matchLabels": {"group": "pair"}}}
            path = f"/apis/policy/v1/namespaces/{scenario.namespace}/poddisruptionbudgets"
            self.plane.request("POST", path, {"metadata": {"name": "pair"}, "spec": budget})
            stack.callback(self.plane.request, "DELETE", path)
        migrations = stack.enter_context(FleetMigrations(scenario, self._view))
        for vm in plan.vms:
            self.plane.request("POST", vm_path(scenario), self._manifest(vm))
            if vm.run == "Manual":
                started = {"status": {"stateChangeRequests": [{"action": "Start"}]}}
                self.plane.request("PATCH", f"{vm_path(scenario, vm.name)}/status", started)
        hosts = {vm.name: self.nodes[vm.host] for vm in plan.vms}
        kubevirt = stack.enter_context(FleetKubeVirt(scenario, self._view, hosts))
        self._loops = (migrations.loop, kubevirt.loop, self._longhorn.loop)
        stack.enter_context(Evacuation(scenario, self.cluster.strategy))
        self._wait_built()

    def _claims(self) -> Iterator[tuple[str, str]]:
        for vm in self.design.vms:
            if vm.claim == vm.name:
                limited = {"storage_class": f"{self._scenario.namespace}-here"} if vm.limited else {}
                yield vm.claim, self._add_volume(vm.claim, vm.storage or 0, **limited)
            if vm.hotplugged:
                yield vm.hotplugged, self._add_volume(vm.hotplugged, vm.hotplug or 0)

    def _add_volume(self, claim: str, storage: int, **options: str) -> str:
        volume = self._scenario.add_volume(claim, **options)
        self._longhorn.first_nodes[volume] = self.nodes[storage]
        chance = random.Random(f"{self.seed} {claim}")
        self._longhorn.remounts.races[volume] = lambda: chance.random() < 0.5
        return volume

    def _manifest(self, vm: Plan) -> Object:
        disks: list[Object] = [{"claimName": vm.claim}] if vm.claim else []
        disks += [{"claimName": vm.hotplugged, "hotpluggable": True}] if vm.hotplugged else []
        volumes = [{"name": f"disk{number}", "persistentVolumeClaim": disk} for number, disk in enumerate(disks)]
        devices = {} if vm.migratable else {"domain": {"devices": {"hostDevices": [{"name": "gpu"}]}}}
        spec = {"volumes": volumes} | devices | ({"evictionStrategy": vm.eviction} if vm.eviction else {})
        metadata = {"annotations": OPT_IN if vm.opt_in == "before" else {}}
        metadata |= {"labels": {"group": vm.group}} if vm.group else {}
        kind = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": vm.name}}
        return kind | {"spec": {"runStrategy": vm.run, "template": {"metadata": metadata, "spec": spec}}}

    def _wait_built(self) -> None:
        def is_built() -> bool:
            now = time.monotonic()
            return not self._unfinished() and all(
                self.vm_at(vm, now) and self.is_served(vm, now) for vm in self.design.vms
            )

        self.plane.wait(is_built, 60, "a fleet that runs")
        for number in self.design.cordoned:
            self._scenario.change_node(self.nodes[number], {"spec": {"unschedulable": True}})
        change = {"spec": {"template": {"metadata": {"annotations": OPT_IN}}}}
        for vm in self.design.vms:
            if vm.opt_in == "after":
                self.plane.request("PATCH", vm_path(self._scenario, vm.name), change)
        if any(vm.group for vm in self.design.vms):
            path = f"/apis/policy/v1/namespaces/{self._scenario.namespace}/poddisruptionbudgets/pair"
            members = sum(bool(vm.group) for vm in self.design.vms)

            def is_counted() -> bool:
                status = self.plane.request("GET", path).get("status", {})
                return bool(status.get("currentHealthy") == members)

            self.plane.wait(is_counted, 30, "a budget that counts its pods")

    def instances(self, vm: Plan) -> list[Life]:
        """Return the lives of a VM's instances, in order."""
        return list(lives(self._view.sights(VMIS, self.namespace, vm.name)))

    def servers(self, claim: str) -> list[Life]:
        """Return the lives of the share-manager pods of a claim, in order."""
        name = f"share-manager-{self.volumes[claim]}"
        return list(lives(self._view.sights(PODS, self._longhorn.namespace, name)))

    def vm_at(self, vm: Plan, moment: float) -> Life | None:
        """Return the instance of a VM that ran then."""
        return next((life for life in self.instances(vm) if life.runs_at(moment)), None)

    def server_at(self, claim: str, moment: float) -> Life | None:
        """Return the share-manager pod that served a claim then."""
        return next((life for life in self.servers(claim) if life.runs_at(moment)), None)

    def is_served(self, vm: Plan, moment: float) -> bool:
        """Return whether share-managers served all claims of a VM then."""
        return all(self.server_at(claim, moment) for claim in vm.claims)

    def settle(self) -> float:
        """Wait until nothing changes any more, and return the time."""
        began, places = time.monotonic(), (self.namespace, *self.volumes.values())
        while (now := time.monotonic()) < began + PATIENCE:
            changed = max(began, *(self._view.changes(place)[1] for place in places))
            quiet = RETRIES if any(map(_is_refused, self._pods())) else QUIET
            # On a busy machine, a controller may not have seen the last change yet.
            passed = min(loop.passed_at for loop in self._loops)
            if now > changed + quiet and passed > changed and not self._unfinished():
                return time.monotonic()
            time.sleep(0.3)
        self.log.append(f"# not settled: {self._unfinished()}")
        return time.monotonic()

    def _pods(self) -> list[Object]:
        """Return the pods of the VMs and of their share-managers."""
        names = (f"share-manager-{volume}" for volume in self.volumes.values())
        servers = (self._view.find(PODS, self._longhorn.namespace, name) for name in names)
        return [*self._view.objects(PODS, self.namespace), *filter(None, servers)]

    def _unfinished(self) -> list[str]:
        """Return what is under way."""
        view, namespace = self._view, self.namespace
        pods, vmis = view.objects(PODS, namespace), view.objects(VMIS, namespace)
        migrations = view.objects(MIGRATIONS, namespace)
        found = [each["metadata"]["name"] for each in migrations if each.get("status", {}).get("phase") not in FINAL]
        found += [pod["metadata"]["name"] for pod in pods if _is_changing(pod)]
        running = {vmi["metadata"]["name"] for vmi in vmis if vmi.get("status", {}).get("phase") not in FINAL}
        strategies = {vm["metadata"]["name"]: vm["spec"].get("runStrategy") for vm in view.objects(VMS, namespace)}
        found += [name for name, strategy in strategies.items() if strategy == "Always" and name not in running]
        found += [vm["metadata"]["name"] for vm in view.objects(VMS, namespace) if requests_of(vm)]
        attached = {owner_of(pod) for pod in pods if is_attachment(pod)}
        for vmi in (vmi for vmi in vmis if hotplugged_claims(vmi)):
            uid = vmi["metadata"]["uid"]
            found += [
                vmi["metadata"]["name"] for pod in pods if _runs(pod, uid) and pod["metadata"]["uid"] not in attached
            ]
        return found + [what for volume in self.volumes.values() if (what := self._changing(volume))]

    def _changing(self, volume: str) -> str:
        """Return what Longhorn has not finished with a volume, empty if it has."""
        pod = self._view.find(PODS, self._longhorn.namespace, f"share-manager-{volume}")
        state = self._view.find(MANAGERS, self._longhorn.namespace, volume).get("status", {}).get("state")
        if _is_refused(pod):
            return ""
        used, asks = bool(self._users(volume)), bool(pod) and self._longhorn.remounts.is_pending(volume, pod)
        done = (state == "running") is bool(pod) is used and state in ("running", "stopped")
        return "" if done and not asks else f"{volume} {state}, used: {used}, remount: {asks}"

    def _users(self, volume: str) -> list[Object]:
        """Return the pods on nodes that mount the claim of a volume."""
        claims = {claim for claim, own in self.volumes.items() if own == volume}
        pods = (pod for pod in self._view.objects(PODS, self.namespace) if pod["spec"].get("nodeName"))
        alive = (pod for pod in pods if pod["status"].get("phase") not in FINAL)
        return [pod for pod in alive if claims & set(_claims_of(pod))]

    def errors(self) -> list[str]:
        """Return the last errors of the controllers."""
        return [f"# a controller's last error: {loop.last_error}" for loop in self._loops]

    def run(self, command: str) -> int:
        """Run a command as a user does, and return its exit status."""
        shown = self._shown(command)
        self.log.append(f"$ {command}\n{shown.stdout[-300:]}{shown.stderr[-300:]}[{shown.exit_code}]")
        return shown.exit_code

    def do(self, command: str) -> None:
        """Run a command that is advised."""
        if status := self.run(command):
            self.failures.append(f"{command} failed: {status}")

    def ask(self, command: str) -> Any:
        """Run a command that prints JSON, and return what it prints."""
        shown = self._shown(command)
        try:
            return json.loads(shown.stdout)
        except ValueError as error:
            raise AssertionError(f"{command}: {shown}") from error

    def lines(self, command: str) -> list[str]:
        """Run a command, and return the lines that it prints."""
        return self._shown(command).stdout.splitlines()

    def _shown(self, command: str) -> Any:
        programs = {self.plane.binaries["kubectl"].parent, PROGRAM.parent, ROOT / "tests/support/playground"}
        path = ":".join([*map(str, programs), os.environ["PATH"]])
        environment = os.environ | {"PATH": path, "KUBECONFIG": str(self.plane.kubeconfig)}
        with _COMMAND if command.startswith(ASKS) else nullcontext():
            return run_line(command if command.startswith(ASKS) else f"{command} 2>&1", environment, ROOT)


def _is_refused(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(each["type"] == "PodScheduled" and each["status"] == "False" for each in conditions)


def _is_changing(pod: Object) -> bool:
    """Return whether a pod is being created or deleted."""
    starting = pod["status"].get("phase", "Pending") == "Pending" and not _is_refused(pod)
    return starting or "deletionTimestamp" in pod["metadata"]


def _runs(pod: Object, vmi: str) -> bool:
    label = pod["metadata"].get("labels", {}).get("kubevirt.io/created-by")
    return bool(label == vmi and pod["status"].get("phase") == "Running")


def _claims_of(pod: Object) -> Iterator[str]:
    for volume in pod["spec"].get("volumes", []):
        if "persistentVolumeClaim" in volume:
            yield volume["persistentVolumeClaim"]["claimName"]
