"""A drain in the order that `drain-check` prints, of a node whose VM and whose share-managers are in use."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.nodes.test_faults import UNDISTURBED
from tests.support.command_line import run_line
from tests.support.controlplane.api import Object
from tests.support.evacuation import Evacuation
from tests.support.kubevirt import vm_path
from tests.support.measured import Measured
from tests.support.nodes.guests import START, NodeScenario
from tests.support.nodes.migrations import GuestMigrations
from tests.support.paths import ROOT
from tests.support.playground.simulation import KubeVirt
from tests.support.webhook_process import PROGRAM

pytestmark = [pytest.mark.nodes, pytest.mark.needs("buildah", "ip", "mkfs", "mmdebstrap", "nft", "nodes")]
# As with Longhorn 1.7.2 to 1.11, or with the settings of 1.12: the pods of VMs stay when their server is replaced.
VERSION: Object = {
    "apiVersion": "longhorn.io/v1beta2",
    "kind": "Setting",
    "metadata": {"name": "current-longhorn-version"},
    "value": "v1.11.3",
}
LOCAL, ELSEWHERE, UNTOUCHED = VMS = ("local", "elsewhere", "untouched")


class Fleet:
    """Three VMs at work: one beside its server on the drained node, one with its server there, one on the third."""

    def __init__(self, guests: NodeScenario) -> None:
        self.guests, self.plane = guests, guests.plane
        self.volumes = {vm: guests.add_volume(vm) for vm in VMS}
        guests.wait_bound(*VMS)
        self.drained, *others = guests.cluster.names
        places = dict(zip(VMS, (self.drained, *others), strict=True))
        self._allow(self.drained)
        self._add(LOCAL)
        consumer = guests.create_consumer(ELSEWHERE, opt_in=True)
        for vm, node in places.items():
            if vm != LOCAL:
                self._allow(node)
                self._add(vm)
            self._wait(lambda vm=vm: self._is_scheduled(vm), f"the scheduler has placed VM {vm}")
        self._allow(*guests.cluster.names)
        for vm, node in places.items():
            self._wait(lambda vm=vm, node=node: self.node(vm) == node, f"VM {vm} on {node}")
            guests.wait_for_work(vm)
        guests.delete(consumer)

    def _allow(self, *nodes: str) -> None:
        for name in self.guests.cluster.names:
            self.guests.change_node(name, {"spec": {"unschedulable": None if name in nodes else True}})
        for name in self.guests.cluster.names:
            if name not in nodes:
                self.guests.wait_rejected(name)

    def _add(self, vm: str) -> None:
        claim = {"name": "disk", "persistentVolumeClaim": {"claimName": vm}}
        metadata = {"annotations": {"kubevirt-scheduler/co-schedule": "true"}}
        template = {"metadata": metadata, "spec": {"volumes": [claim], "evictionStrategy": "LiveMigrate"}}
        body = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": vm}}
        body |= {"spec": {"runStrategy": "Always", "template": template}}
        self.plane.request("POST", vm_path(self.guests), body)

    def _is_scheduled(self, vm: str) -> bool:
        """Return whether the scheduler has placed the pod of a VM and the pod of its share-manager."""
        pods = self.plane.request("GET", f"{self.guests.pods}?labelSelector=vm.kubevirt.io/name%3D{vm}")["items"]
        server = self.guests.longhorn.pod(self.volumes[vm]) or {"spec": {}}
        return bool(pods) and all("nodeName" in each["spec"] for each in (server, *pods))

    def _wait(self, predicate: Any, what: str) -> None:
        self.plane.wait(predicate, START, what)

    def vmi(self, vm: str) -> Object:
        return self.plane.request("GET", f"{vm_path(self.guests).removesuffix('s')}instances/{vm}")

    def node(self, vm: str) -> str:
        """Return where a VM runs."""
        status = self.vmi(vm).get("status", {})
        return str(status.get("nodeName", "")) if status.get("phase") == "Running" else ""

    def state(self, vm: str) -> tuple[str, str, str]:
        """Return a VM's instance, its node, and the pod that serves its disk."""
        server = self.guests.longhorn.pod(self.volumes[vm]) or {}
        return self.vmi(vm)["metadata"]["uid"], self.node(vm), server.get("metadata", {}).get("uid", "")

    def settle(self) -> None:
        """Wait until each VM works, beside a server that runs."""
        for vm, volume in self.volumes.items():
            self.guests.longhorn.wait_running(volume)
            self._wait(lambda vm=vm: self.node(vm), f"VM {vm} running")
            self.guests.wait_for_work(vm)

    def run(self, command: str) -> str:
        """Run a command as a user does. It must succeed."""
        return run_as_user(self.guests, command)


def run_as_user(guests: NodeScenario, command: str) -> str:
    """Run a command with the administrator's kubeconfig, and return its output. It must succeed."""
    programs = guests.plane.binaries["kubectl"].parent, PROGRAM.parent, ROOT / "tests/support/playground"
    path = ":".join([*map(str, programs), os.environ["PATH"]])
    result = run_line(command, os.environ | {"PATH": path, "KUBECONFIG": str(guests.plane.kubeconfig)}, ROOT)
    assert result.exit_code == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture
def fleet(guests: NodeScenario) -> Iterator[Fleet]:
    guests.works = True
    with ExitStack() as stack:
        settings = guests.longhorn.settings
        guests.plane.request("POST", settings, VERSION)
        stack.callback(guests.plane.request, "DELETE", f"{settings}/current-longhorn-version")
        stack.callback(setattr, guests.longhorn, "deletes_consumers", guests.longhorn.deletes_consumers)
        guests.longhorn.deletes_consumers = False
        stack.enter_context(GuestMigrations(guests))
        stack.enter_context(KubeVirt(guests, back_off=1))
        stack.enter_context(Evacuation(guests))
        try:
            yield Fleet(guests)
        finally:
            for name in guests.cluster.names:
                guests.change_node(name, {"spec": {"unschedulable": None}})


def said_seconds(notes: list[str]) -> int:
    """Return how many seconds of a pause the check allows after a new share-manager runs."""
    return int(re.search(r"for at most (\d+) s", " ".join(notes))[1])  # type: ignore[index]


def test_a_drain_in_the_printed_order_pauses_the_disks_that_the_check_named(fleet: Fleet, measured: Measured) -> None:
    said = json.loads(fleet.run(f"kubevirt-scheduler drain-check {fleet.drained} -o json"))
    ordered = {vm["name"]: vm["effects"] for vm in said["inOrder"]["vms"]}
    assert ordered == {LOCAL: ["Migrates", "IOPauses"], ELSEWHERE: ["IOPauses"]}
    before = {vm: fleet.state(vm) for vm in VMS}
    for step in said["order"]:
        command = step["command"]
        if "recolocate" in command:
            fleet.settle()  # "once they run"
            command += " --settle 1"
        if command.startswith("kubectl drain"):  # "when the VMs have migrated"
            fleet.plane.wait(lambda: fleet.node(LOCAL) != fleet.drained, START, f"the migration of {LOCAL}")
        fleet.run(command)
    fleet.settle()
    pauses = {vm: fleet.guests.longest_pause(vm) for vm in VMS}
    longest = ", ".join(f"{vm} {seconds:.1f} s" for vm, seconds in pauses.items())
    measured(f"drain in the order of drain-check: {said['inOrder']['text']}; longest operations: {longest}")
    after = {vm: fleet.state(vm) for vm in VMS}
    assert [after[vm][0] for vm in VMS] == [before[vm][0] for vm in VMS]  # no VM was restarted
    assert {vm for vm in VMS if after[vm][2] != before[vm][2]} == {LOCAL, ELSEWHERE}
    assert after[UNTOUCHED] == before[UNTOUCHED]
    assert pauses[UNTOUCHED] < UNDISTURBED
    assert max(pauses.values()) < said_seconds(said["notes"]) + START
    states = json.loads(fleet.run(f"kubevirt-scheduler report -n {fleet.guests.namespace} -o json"))["vms"]
    assert {vm["name"]: vm["state"] for vm in states} == dict.fromkeys(VMS, "Together")
