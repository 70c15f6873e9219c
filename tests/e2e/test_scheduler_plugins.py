"""The scheduler's default plugins, and what the node guard does about each one that may reject a node.

The table was written from the source of kube-scheduler 1.36.3 and 1.37.2. A plugin that a newer scheduler adds fails
the test: read what it filters, and add its row.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.controlplane import build

pytestmark = pytest.mark.controlplane


# What a plugin reads, and what the guard does about it. It `agrees` with the plugin (test_guard.py),
# it `softens` a pin that it can't evaluate, or the plugin `never` rejects one node of several for the pod of a VM.
SCORES_ONLY = "never: it scores, queues or binds"
PLUGINS = {
    "SchedulingGates": "softens: spec.schedulingGates",
    "NodeUnschedulable": "agrees: the node's spec.unschedulable, tolerations",
    "NodeName": "never: spec.nodeName; the webhook decides no bound pod",
    "TaintToleration": "agrees: taints, tolerations",
    "NodeAffinity": "agrees: nodeSelector, required node affinity",
    "NodePorts": "softens: hostPort",
    "NodeResourcesFit": "agrees: requests, allocatable",
    "VolumeRestrictions": "never: ReadWriteOncePod claims, on all nodes alike; volumes that KubeVirt never mounts",
    "NodeVolumeLimits": "softens: CSINodes",
    "VolumeBinding": "agrees: node affinity of PVs; unbound claims",
    "VolumeZone": "agrees: zone and region labels of PVs",
    "PodTopologySpread": "softens: DoNotSchedule constraints",
    "InterPodAffinity": "agrees: required pod (anti-)affinity",
    "DynamicResources": "softens: resource claims, DeviceClasses",
    "NodeDeclaredFeatures": "softens: restartPolicyRules, bindMountOptions, hostUsers with hostNetwork",
    **dict.fromkeys(
        (
            "PrioritySort",
            "DefaultPreemption",
            "NodeResourcesBalancedAllocation",
            "ImageLocality",
            "DefaultBinder",
        ),
        SCORES_ONLY,
    ),
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
