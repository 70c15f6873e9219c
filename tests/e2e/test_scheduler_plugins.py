"""The scheduler's default plugins, and what the node guard does about each one that may reject a node.

The table was written from the source of kube-scheduler 1.36.3 and 1.37.2. A plugin that a newer scheduler adds fails
the test: read what it filters, and add its row.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tests.support.controlplane import build
from tests.support.paths import ROOT

pytestmark = pytest.mark.controlplane


class Row(NamedTuple):
    """What the plugin reads, what the guard does with it, and the test that shows it.

    The guard `agrees`, it `softens` a pin that it can't evaluate, or the plugin `never` rejects one node of several for
    the pod of a VM.
    """

    reads: str
    guard: str
    test: str = ""


FEASIBILITY, PROPERTY = "placement/test_feasibility.py", "e2e/test_properties.py"
SCORES_ONLY = Row("scores, queues or binds, and filters no node", "never")
PLUGINS = {
    "SchedulingGates": Row("spec.schedulingGates", "softens", f"{FEASIBILITY}::test_a_constraint_that_the_guard"),
    "NodeUnschedulable": Row(
        "the node's spec.unschedulable, tolerations", "agrees", "e2e/test_guard.py::test_the_vm_runs"
    ),
    "NodeName": Row("spec.nodeName: the webhook decides no bound pod", "never"),
    "TaintToleration": Row("taints, tolerations", "agrees", "placement/test_tolerations.py::test_"),
    "NodeAffinity": Row(
        "nodeSelector, required node affinity", "agrees", f"{FEASIBILITY}::test_the_guard_checks_the_node"
    ),
    "NodePorts": Row("hostPort", "softens", f"{FEASIBILITY}::test_a_constraint_that_the_guard"),
    "NodeResourcesFit": Row(
        "requests, allocatable", "agrees", "placement/test_feasibility_room.py::test_the_requests_of_a_vm"
    ),
    "VolumeRestrictions": Row(
        "ReadWriteOncePod claims, on all nodes alike; volumes that KubeVirt never mounts", "never"
    ),
    "NodeVolumeLimits": Row("CSINodes", "softens", "e2e/test_guard.py::test_a_volume_or_a_device"),
    "VolumeBinding": Row("node affinity of PVs; unbound claims", "agrees", f"{FEASIBILITY}::test_every_pv_of_the_pod"),
    "VolumeZone": Row("zone and region labels of PVs", "agrees", "e2e/test_guard.py::test_a_volume_or_a_device"),
    "PodTopologySpread": Row(
        "DoNotSchedule constraints", "softens", f"{FEASIBILITY}::test_a_constraint_that_the_guard"
    ),
    "InterPodAffinity": Row("required pod (anti-)affinity", "agrees", f"{PROPERTY}::test_the_guard_pins"),
    "DynamicResources": Row(
        "resource claims, DeviceClasses", "softens", "e2e/test_guard.py::test_a_volume_or_a_device"
    ),
    "NodeDeclaredFeatures": Row(
        "restartPolicyRules, bindMountOptions, hostUsers with hostNetwork: KubeVirt sets none of them", "never"
    ),
    "PrioritySort": SCORES_ONLY,
    "DefaultPreemption": SCORES_ONLY,
    "NodeResourcesBalancedAllocation": SCORES_ONLY,
    "ImageLocality": SCORES_ONLY,
    "DefaultBinder": SCORES_ONLY,
}


def test_the_table_has_each_default_plugin_of_the_scheduler(tmp_path: Path) -> None:
    kubeconfig, config = tmp_path / "kubeconfig", tmp_path / "config.yaml"
    cluster = [{"name": "none", "cluster": {"server": "https://127.0.0.1:1"}}]
    context = {"contexts": [{"name": "none", "context": {"cluster": "none"}}], "current-context": "none"}
    kubeconfig.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "clusters": cluster} | context))
    # The scheduler writes its complete configuration and exits.
    command = [build.binaries()["kube-scheduler"], f"--kubeconfig={kubeconfig}", f"--write-config-to={config}"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    (profile,) = yaml.safe_load(config.read_text())["profiles"]
    assert {each["name"] for each in profile["plugins"]["multiPoint"]["enabled"]} == set(PLUGINS)


def test_each_row_names_a_test() -> None:
    for name, row in PLUGINS.items():
        assert bool(row.test) == (row.guard != "never"), name
        file, _, test = row.test.partition("::")
        assert not file or f"def {test}" in (ROOT / "tests" / file).read_text(), row.test
