"""What `report` and `drain-check` say of a VM that was opted in after its start, with and without KubeVirt's copies."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.builders import OPT_IN, Object, node, storage
from tests.support.command_line import run_cli, write_manifests
from tests.support.fleet import vm, vm_pod
from tests.support.migrations import kubevirt, migratable

LIVE = {"evictionStrategy": "LiveMigrate"}
CLUSTER = [*map(node, ("node-a", "node-b", "node-c")), *storage(), migratable(node="node-b", spec=LIVE)]
OPTED_IN_LATER = [*CLUSTER, vm(), vm_pod(node="node-b", opt_in=None)]


def copying(*keys: str) -> Object:
    """KubeVirt's object, with the flag that names the annotations to copy."""
    built = kubevirt()
    flags = {"additional-launcher-annotations-sync": ",".join(keys)}
    return built | {"spec": {"customizeComponents": {"flags": {"controller": flags}}}}


@pytest.fixture(params=["", "other.example/key", OPT_IN, f"a/b,{OPT_IN.partition('/')[0]}/*"])
def copied(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, bool]:
    """A cluster, and whether KubeVirt copies the opt-in."""
    flag = str(request.param)
    return write_manifests(tmp_path, *OPTED_IN_LATER, copying(flag) if flag else kubevirt()), "kube" in flag


def said(command: str, *arguments: Any) -> Any:
    result = run_cli(command, *arguments, "-o", "json")
    assert result.stderr == ""
    return json.loads(result.stdout)


def test_report_says_from_when_on_an_opt_in_takes_effect(copied: tuple[Path, bool]) -> None:
    file, at_once = copied
    (found,) = said("report", "--snapshot", file)["vms"]
    assert (found["optedIn"], found["optInPending"]) == (True, not at_once)
    _, row, *_ = run_cli("report", "--snapshot", file, "-o", "wide").stdout.splitlines()
    assert ("from next start" in row) is not at_once


def test_drain_check_predicts_that_the_share_manager_follows_if_kubevirt_copies_the_opt_in(
    copied: tuple[Path, bool],
) -> None:
    file, at_once = copied
    (found,) = said("drain-check", "node-a", "--snapshot", file)["vms"]
    words = "its share-manager follows it" if at_once else "its share-manager may start on any node"
    assert words in found["why"]
    assert found["after"] == ("Together" if at_once else "MayBeApart")


def test_an_opt_out_after_the_start_takes_effect_in_the_same_way(tmp_path: Path) -> None:
    opted_out = [*CLUSTER, vm(annotations={OPT_IN: "false"}), vm_pod(node="node-b")]
    for flag, follows in (("other.example/key", True), (OPT_IN, False)):
        file = write_manifests(tmp_path, *opted_out, copying(flag))
        (found,) = said("drain-check", "node-a", "--snapshot", file)["vms"]
        assert ("its share-manager follows it" in found["why"]) is follows


def test_a_snapshot_keeps_the_flag_and_no_other_setting_of_the_controller(server: Any, tmp_path: Path) -> None:
    built = copying(OPT_IN)
    built["spec"]["customizeComponents"]["flags"]["controller"]["v"] = "secret"
    server.put(*OPTED_IN_LATER, built)
    kubeconfig, file = server.kubeconfig(tmp_path), tmp_path / "fleet.json"
    assert run_cli("snapshot", "-o", file, "--kubeconfig", kubeconfig).exit_code == 0
    assert "secret" not in file.read_text()
    (found,) = said("report", "--snapshot", file)["vms"]
    assert found["optInPending"] is False
