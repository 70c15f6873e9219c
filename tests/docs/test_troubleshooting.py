"""The commands of the troubleshooting page work on a real API server."""

from __future__ import annotations

import shlex

import pytest

from tests.docs.transcripts import commands
from tests.support.controlplane.plane import ControlPlane
from tests.support.paths import DOCS
from tests.support.scenario import CO_SCHEDULED, Scenario

pytestmark = pytest.mark.controlplane


def test_a_command_lists_a_pinned_pod_with_the_schedulers_words_and_another_one_warnings_about_vmis(
    plane: ControlPlane, plain_scenario: Scenario
) -> None:
    scenario = plain_scenario
    found = [shlex.split(each) for each in commands(DOCS / "guides/troubleshooting.md", "Pins that can't hold")]
    command, of_warnings = (words[1:] for words in found if words[0] == "kubectl")
    (node,) = scenario.add_nodes(1)
    scenario.change_node(node, {"spec": {"unschedulable": True}})
    pod = scenario.vm_pod("vm1")
    pod["metadata"]["annotations"][CO_SCHEDULED] = node
    scenario.create(pod)

    def row() -> str:
        rows = [line for line in plane.kubectl(*command).splitlines() if scenario.namespace in line]
        return rows[0] if rows and "<none>" not in rows[0] else ""

    namespace, vm, pinned_to, message = plane.wait(row, 20, "the pod with the scheduler's message").split(maxsplit=3)
    assert (namespace, vm, pinned_to) == (scenario.namespace, "vm1", node)
    assert "nodes are available" in message
    events = f"/api/v1/namespaces/{scenario.namespace}/events"
    vmi = {"kind": "VirtualMachineInstance", "namespace": scenario.namespace, "name": "vm1"}
    for kind in "Warning", "Normal":
        event = {"metadata": {"name": kind.lower()}, "involvedObject": vmi, "type": kind, "reason": "NodeCordoned"}
        plane.request("POST", events, event)
    listed = [line.split()[2] for line in plane.kubectl(*of_warnings).splitlines() if scenario.namespace in line]
    assert listed == ["Warning"]
