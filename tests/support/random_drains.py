"""Random fleets for `drain-check` on the real control plane, and what happens to their VMs in a drain.

A fleet has its own namespace and nodes, so that several are drained at once. Nothing is random but the seed.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from typing import Any, NamedTuple

from tests.support.command_line import run_line
from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.evacuation import Evacuation
from tests.support.kubevirt import vm_path
from tests.support.longhorn import Longhorn
from tests.support.migration_controller import FINAL, MigrationController
from tests.support.paths import ROOT
from tests.support.playground.simulation import KubeVirt
from tests.support.scenario import HOSTNAME, POOL, Scenario
from tests.support.virt_controller import _Vm
from tests.support.webhook_process import PROGRAM, Webhook

DRAIN = "--ignore-daemonsets --delete-emptydir-data"
ASK = "kubevirt-scheduler drain-check"
OPT_IN = {"kubevirt-scheduler/co-schedule": "true"}


_COMMAND = threading.Lock()


class Plan(NamedTuple):
    """One VM of a fleet."""

    name: str
    host: int  # the index of its node
    storage: int | None  # the index of its share-manager's node; None without a claim
    claim: str  # empty without one; VMs may share one
    run: str  # strategy
    eviction: str  # strategy; empty for KubeVirt's default
    migratable: bool
    opt_in: str  # before or after its start, or never
    limited: bool  # its share-manager may only run on the first node
    group: str  # of a PodDisruptionBudget; empty without one


class Design(NamedTuple):
    """A fleet. The first node is drained."""

    nodes: int
    full: frozenset[int]  # nodes that run one VM at most
    cordoned: frozenset[int]
    vms: tuple[Plan, ...]
    in_order: bool  # drain it in the printed order, not at once


def design(seed: int) -> Design:
    """Return the fleet of a seed."""
    chance = random.Random(seed)
    nodes = chance.choice((1, 2, 2, 3, 3, 4, 5))
    others = range(1, nodes)
    full = frozenset(node for node in others if chance.random() < 0.2)
    cordoned = frozenset(node for node in others if node not in full and nodes > 2 and chance.random() < 0.15)
    vms = list[Plan]()
    for number in range(chance.randint(2, 4)):
        name, host = f"vm{number}", 0 if chance.random() < 0.7 else chance.randrange(nodes)
        if host in full and any(each.host == host for each in vms):
            host = 0
        shared = [each for each in vms if each.claim and not each.limited]
        other = chance.choice(shared) if shared and chance.random() < 0.15 else None
        storage = None if chance.random() < 0.15 else 0 if chance.random() < 0.7 else chance.randrange(nodes)
        limited = storage == 0 and chance.random() < 0.2
        vms.append(
            Plan(
                name,
                host,
                other.storage if other else storage,
                other.claim if other else "" if storage is None else name,
                chance.choice(("Always", "Always", "Always", "RerunOnFailure", "Once")),
                chance.choice(("LiveMigrate", "LiveMigrate", "None", "LiveMigrateIfPossible", "External", "")),
                chance.random() < 0.7,
                chance.choice(("before", "before", "after", "never")),
                False if other else limited,
                "pair" if chance.random() < 0.25 else "",
            )
        )
    return Design(nodes, full, cordoned, tuple(vms), chance.random() < 0.5)


class _KubeVirt(KubeVirt):
    """A virt-controller that binds the first pod of each VM itself."""

    def __init__(self, scenario: Scenario, hosts: dict[str, str]) -> None:
        super().__init__(scenario, back_off=1)
        self._hosts = hosts

    def _owned_pod(self, name: str, vm: _Vm) -> Object:
        pod = super()._owned_pod(name, vm)
        pod["metadata"]["labels"] |= self.vm(name)["spec"]["template"]["metadata"].get("labels", {})
        pod["spec"]["nodeSelector"][POOL] = self._scenario.namespace
        if node := self._hosts.pop(name, ""):
            pod["spec"]["nodeName"] = node
        return pod


class Seen(NamedTuple):
    """What the API server shows of a VM."""

    vmi: str  # its uid, empty if it doesn't run
    node: str
    server: str  # the uid of the share-manager pod that serves it, empty without one that runs
    server_node: str


class Fleet:
    """A fleet on the control plane. `with Fleet(...) as fleet` builds it."""

    def __init__(
        self, plane: ControlPlane, longhorn: Longhorn, webhook: Webhook, seed: int, *, default: str, deletes: bool
    ) -> None:
        self.plane, self.seed, self.design, self._deletes = plane, seed, design(seed), deletes
        self._longhorn, self._webhook, self._default = longhorn, webhook, default
        self._stack = ExitStack()
        self.said: Any = {}
        self.migrated = frozenset[str]()
        self.restarted = frozenset[str]()
        self._instances = defaultdict[str, set[str]](set)  # the uids of each VM's instances until now
        self.log = list[str]()
        self.counts = Counter[str]()

    def __enter__(self) -> Fleet:
        with ExitStack() as stack:
            self._scenario = Scenario(self.plane, self._longhorn, self._webhook)
            stack.callback(self._scenario.close)
            self.namespace = self._scenario.namespace
            self._vmis = vm_path(self._scenario).removesuffix("s") + "instances"
            self._build(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _build(self, stack: ExitStack) -> None:
        scenario, found = self._scenario, self.design
        self.nodes = [f"{scenario.namespace}-n{number}" for number in range(found.nodes)]
        for number, node in enumerate(self.nodes):
            scenario.add_node(node, None, **({"memory": "2Gi"} if number in found.full else {}))
        scenario.wait_ready(self.nodes)
        scenario.add_storage_class(f"{scenario.namespace}-here", HOSTNAME, self.nodes[0])
        self.volumes = dict(self._claims())
        scenario.wait_bound(*self.volumes)
        if any(vm.group for vm in found.vms):
            budget = {"minAvailable": 1, "selector": {"matchLabels": {"group": "pair"}}}
            path = f"/apis/policy/v1/namespaces/{scenario.namespace}/poddisruptionbudgets"
            self.plane.request("POST", path, {"metadata": {"name": "pair"}, "spec": budget})
            stack.callback(self.plane.request, "DELETE", path)
        stack.enter_context(MigrationController(scenario, 0.5))
        hosts = {vm.name: self.nodes[vm.host] for vm in found.vms}
        for vm in found.vms:
            self.plane.request("POST", vm_path(scenario), self._manifest(vm))
        stack.enter_context(_KubeVirt(scenario, hosts))
        stack.enter_context(Evacuation(scenario, self._default))
        self._wait_built()

    def _claims(self) -> Iterator[tuple[str, str]]:
        for vm in self.design.vms:
            if vm.claim == vm.name:
                limited = {"storage_class": f"{self._scenario.namespace}-here"} if vm.limited else {}
                volume = self._scenario.add_volume(vm.claim, **limited)
                self._longhorn.first_nodes[volume] = self.nodes[vm.storage or 0]
                yield vm.claim, volume

    def _manifest(self, vm: Plan) -> Object:
        claims = [{"name": "disk", "persistentVolumeClaim": {"claimName": vm.claim}}] if vm.claim else []
        devices = {} if vm.migratable else {"domain": {"devices": {"hostDevices": [{"name": "gpu"}]}}}
        spec = {"volumes": claims} | devices | ({"evictionStrategy": vm.eviction} if vm.eviction else {})
        metadata = {"annotations": OPT_IN if vm.opt_in == "before" else {}}
        metadata |= {"labels": {"group": vm.group}} if vm.group else {}
        kind = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": vm.name}}
        return kind | {"spec": {"runStrategy": vm.run, "template": {"metadata": metadata, "spec": spec}}}

    def _wait_built(self) -> None:
        def is_built() -> bool:
            pairs = zip(self.design.vms, self.seen().values(), strict=True)
            return all(each.vmi and (each.server or not vm.claim) for vm, each in pairs)

        self.plane.wait(is_built, 60, f"the fleet of seed {self.seed}")
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

    def seen(self) -> dict[str, Seen]:
        """Return what the API server shows of each VM now."""
        vmis = {each["metadata"]["name"]: each for each in self.plane.request("GET", self._vmis)["items"]}
        return {vm.name: self._seen(vm, vmis.get(vm.name, {})) for vm in self.design.vms}

    def _seen(self, vm: Plan, vmi: Object) -> Seen:
        status = vmi.get("status", {})
        self._instances[vm.name] |= {vmi["metadata"]["uid"]} if vmi else set()
        runs = status.get("phase") == "Running"
        server = (self._longhorn.pod(self.volumes[vm.claim]) or {}) if vm.claim else {}
        serves = server.get("status", {}).get("phase") == "Running" and "deletionTimestamp" not in server["metadata"]
        return Seen(
            vmi["metadata"]["uid"] if runs else "",
            status.get("nodeName", "") if runs else "",
            server["metadata"]["uid"] if serves else "",
            server["spec"]["nodeName"] if serves else "",
        )

    def settle(self, most: float = 45.0) -> dict[str, Seen]:
        """Wait until nothing changes any more, and return what is then."""
        quiet, began = (7.5 if self._deletes else 2.5), time.monotonic()
        last, since = None, began
        while time.monotonic() < began + most:
            now = (self.seen(), self._unfinished(), self._pods())
            if now != last or now[1]:
                last, since = now, time.monotonic()
            elif time.monotonic() - since > quiet:
                break
            time.sleep(0.6)
        return self.seen()

    def note_restarts(self) -> None:
        """Remember which VMs have had more than one instance until now."""
        self.restarted = frozenset(name for name, found in self._instances.items() if len(found) > 1)

    def _unfinished(self) -> list[str]:
        """Return what is under way: migrations, and share-managers that a scheduler hasn't refused."""
        path = self._vmis.removesuffix("s") + "migrations"
        migrations = self.plane.request("GET", path)["items"]
        done = {each["spec"]["vmiName"] for each in migrations if each.get("status", {}).get("phase") == "Succeeded"}
        self.migrated = self.migrated | done
        found = [each["metadata"]["name"] for each in migrations if each.get("status", {}).get("phase") not in FINAL]
        for volume in self.volumes.values():
            manager, pod = self._longhorn.share_manager(volume) or {}, self._longhorn.pod(volume) or {}
            state, conditions = manager.get("status", {}).get("state"), pod.get("status", {}).get("conditions", [])
            refused = any(each["type"] == "PodScheduled" and each["status"] == "False" for each in conditions)
            if state != "running" and not refused and not (state == "stopped" and volume not in self._used()):
                found.append(volume)
        return found

    def _used(self) -> set[str]:
        """Return the volumes of the VMs that run."""
        return {self.volumes[vm.claim] for vm in self.design.vms if vm.claim and self.seen()[vm.name].vmi}

    def _pods(self) -> list[tuple[str, str]]:
        pods = self.plane.request("GET", self._scenario.pods)["items"]
        return sorted((pod["metadata"]["uid"], pod["status"].get("phase", "")) for pod in pods)

    def run(self, command: str) -> int:
        """Run a command as a user does, and return its exit status."""
        programs = {self.plane.binaries["kubectl"].parent, PROGRAM.parent, ROOT / "tests/support/playground"}
        path = ":".join([*map(str, programs), os.environ["PATH"]])
        environment = os.environ | {"PATH": path, "KUBECONFIG": str(self.plane.kubeconfig)}
        with _COMMAND if command.startswith(ASK) else nullcontext():  # which runs in this process
            ended = run_line(command, environment, ROOT)
        if command.startswith(ASK):
            self.said = json.loads(ended.stdout)
        else:
            self.log.append(f"$ {command}\n{ended.stdout[-300:]}{ended.stderr[-300:]}[{ended.exit_code}]")
        return ended.exit_code


def follow(fleet: Fleet) -> list[str]:
    """Ask, drain, and return in what the answer and the cluster disagree."""
    before = fleet.seen()
    fleet.run(f"{ASK} {fleet.nodes[0]} -o json")
    said = fleet.said["inOrder"] if fleet.design.in_order else fleet.said
    said = {vm["name"]: vm for vm in said["vms"] if vm["namespace"] == fleet.namespace}
    ended, during, after = _drain(fleet)
    problems = list[str]()
    if fleet.design.in_order and not ended:
        problems.append("the drain did not end")
    for vm in fleet.design.vms:
        words = said.get(vm.name, {"events": [], "after": None, "targets": [], "text": "", "why": ""})
        happened = effects(fleet, vm, before[vm.name], during[vm.name], after[vm.name], ended=ended)
        problems += [f"{vm.name}: {each}" for each in disagreements(words, happened, fleet, vm, during, after)]
    return problems


def _drain(fleet: Fleet) -> tuple[bool, dict[str, Seen], dict[str, Seen]]:
    node = fleet.nodes[0]
    straight = [f"kubectl cordon {node}", f"kubectl drain {node} {DRAIN}", f"kubectl uncordon {node}"]
    commands = [step["command"] for step in fleet.said["order"]] if fleet.design.in_order else straight
    ended, during = True, dict[str, Seen]()
    for command in commands:
        if command.startswith("kubectl drain"):
            if fleet.design.in_order:
                fleet.settle()  # "when the VMs have migrated"
            ended = fleet.run(f"{command} --timeout={40 if fleet.design.in_order else 15}s") == 0
            during = fleet.settle()
            fleet.note_restarts()
            continue
        if "recolocate" in command:
            fleet.settle()  # "once they run"
        fleet.run(f"{command} --settle 1 2>&1" if "recolocate" in command else command)
        if "recolocate" in command or "uncordon" in command:
            fleet.settle()
    return ended, during, fleet.settle()


def effects(fleet: Fleet, vm: Plan, before: Seen, during: Seen, after: Seen, *, ended: bool) -> set[str]:
    """Return what has happened to a VM, in the words of `drain-check`."""
    found = {"Migrates"} if vm.name in fleet.migrated else set[str]()
    if not during.vmi:
        found.add("Stops")
        found |= {"Restarts"} if vm.name in fleet.restarted else set()  # before it stopped
    elif during.vmi != before.vmi:
        found.add("Restarts")
    if after.vmi and during.vmi and after.vmi != during.vmi:
        found.add("Restarts")
    if during.vmi and vm.claim and not during.server:
        found.add("IOHangs")
    elif during.vmi == before.vmi and during.server != before.server:
        found.add("IOPauses")
    if not ended and during.node == fleet.nodes[0] and during.vmi:
        found.add("Blocks")
    return found


def disagreements(  # noqa: PLR0917 (what was said, and all that was seen)
    said: Any, happened: set[str], fleet: Fleet, vm: Plan, during: dict[str, Seen], after: dict[str, Seen]
) -> Iterator[str]:
    """Yield in what the words about a VM are wrong."""
    can = {each["effect"] for each in said["events"]}
    must = {each["effect"] for each in said["events"] if not each["may"]}
    if "Restarts" in happened - can and "Stops" in can:  # a step of the order has started it again
        happened = happened - {"Restarts"} | {"Stops"}
    if happened & {"Restarts", "Stops"}:  # whether its disk paused before that can't be seen
        must, happened = must - {"IOPauses"}, happened - {"IOPauses"}
    if not must <= happened <= can:
        yield f"said {said['text']!r}, {said['why']}; happened {sorted(happened)}"
    fleet.counts.update(happened)
    fleet.counts.update(f"may {each}" for each in can - must)
    now = after[vm.name]
    place = "Stopped" if not now.vmi else "Together" if now.node == now.server_node else "Apart"
    if vm.claim and said["after"]:
        right = said["after"] == place or (place != "Stopped" and said["after"] == "MayBeApart")
        if not right and not (place == "Stopped" and "Stops" in can):
            yield f"said {said['after']} afterwards; it is {place}"
        fleet.counts[said["after"]] += 1
    moved = must & {"Migrates", "Restarts"} and not fleet.design.in_order and len(said["events"]) == 1
    if moved and said["targets"] and during[vm.name].node not in said["targets"]:
        yield f"said to {said['targets']}; it is on {during[vm.name].node}"
