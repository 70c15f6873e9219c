"""`recolocate` prints what it would do to each VM, and refuses a KubeVirt that can't do it."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.support.builders import Object, claim, labeled_namespace, node, share_manager_pod, storage, volume
from tests.support.command_line import run_cli
from tests.support.fake_api_server import ApiServer, error_response, status
from tests.support.fleet import installation, vm, vm_pod, vmi, without_settings
from tests.support.migrations import kubevirt, migratable, migration, migration_crd

MIGRATIONS = "virtualmachineinstancemigrations"
FIXED = [{"type": "LiveMigratable", "status": "False", "message": "it has a host device"}]
WHY = "becomes local; NotLiveMigratable: it has a host device"
LABELED = {"name": "apart", "namespace": "default", "labels": {"app": "db"}}


def disk(name: str, target: str, size: str) -> list[Object]:
    requests = {"requests": {"storage": size}}
    own = claim(name, storageClassName="fast", resources=requests)
    return [own, volume(name), share_manager_pod(f"vol-{name}", node=target)]


FLEET = [
    node("node-a"),
    node("node-b"),
    *disk("small", "node-a", "10Gi"),
    *disk("large", "node-a", "40Gi"),
    *disk("fixed", "node-a", "5Gi"),
    *disk("foreign", "node-a", "7Gi"),
    *storage("local", "node-b"),
    vm("apart") | {"metadata": LABELED},
    migratable("apart"),
    vm_pod("apart", "node-b", claims=["small"]),
    vm("big"),
    migratable("big"),
    vm_pod("big", "node-b", claims=["large"]),
    vm("fixed"),
    migratable("fixed", conditions=FIXED),
    vm_pod("fixed", "node-b", claims=["fixed"]),
    vm("foreign", opt_in=False),
    migratable("foreign", conditions=FIXED),
    vm_pod("foreign", "node-b", claims=["foreign"], opt_in=None),
    vm("together"),
    vmi("together"),
    vm_pod("together", "node-b", claims=["local"]),
]


@pytest.fixture
def server(server: ApiServer) -> ApiServer:
    server.put(migration_crd(), kubevirt(), *FLEET, *installation())
    return server


@pytest.fixture
def run(server: ApiServer, tmp_path: Path) -> Callable[..., Result]:
    return partial(run_cli, "recolocate", "--kubeconfig", server.kubeconfig(tmp_path))


def test_a_dry_run_lists_each_vm_that_is_apart_and_changes_nothing(run: Any, server: ApiServer) -> None:
    result = run("-A")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "NAMESPACE   VM        NODE     STORAGE   ACTION    WHY",
        "default     big       node-b   node-a    migrate   40Gi becomes local",
        "default     apart     node-b   node-a    migrate   10Gi becomes local",
        "default     foreign   node-b   node-a    restart   NotLiveMigratable: it has a host device",
        "default     fixed     node-b   node-a    restart   NotLiveMigratable: it has a host device",
        "",
        "4 apart: 2 would migrate, 2 need a restart",
    ]
    assert {request.verb for request in server.requests} == {"get", "list"}


def test_the_plan_of_a_snapshot_is_that_of_its_cluster(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    assert run_cli("snapshot", "-o", file, "--kubeconfig", tmp_path / "kubeconfig").exit_code == 0
    found = run_cli("recolocate", "--snapshot", file)
    live = run("-A").stdout.replace("it has a host device", "no VMI with the condition LiveMigratable")  # not kept
    assert (found.exit_code, found.stdout) == (0, live)
    assert "big" in run_cli("recolocate", "--snapshot", file, "big", "-o", "json").stdout


def test_json_has_one_line_for_each_vm(run: Any) -> None:
    lines = [json.loads(line) for line in run("-o", "json").stdout.splitlines()]
    assert [each["name"] for each in lines] == ["big", "apart", "foreign", "fixed"]
    names = {"namespace": "default", "name": "big", "node": "node-b", "storageNode": "node-a"}
    action = {"action": "migrate", "reason": None, "detail": None, "traffic": None}
    assert lines[0] == names | action | {"gainBytes": 40 * 1024**3, "storageClasses": ["fast"]}
    assert (lines[2]["action"], lines[2]["reason"]) == ("restart", "NotLiveMigratable")


def test_vms_are_selected_by_name_label_and_number(run: Any, server: ApiServer) -> None:
    named = run("together", "big").stdout
    assert "together   node-b   node-b    none      NotApart: the VM is Together" in named
    assert "apart " not in named.replace("1 apart", "")
    labeled = run("-l", "app=db").stdout
    assert labeled.endswith("1 apart: 1 would migrate\n")
    assert run("--max", "1").stdout.splitlines()[-1].startswith("4 apart: 1 of 2 would migrate")
    assert run("together").stdout.endswith("No VM is apart from its storage.\n")
    missing = run("bigg", "big")
    assert missing.exit_code == 2
    problem = 'Error: VirtualMachine "bigg" not found in namespace "default"; did you mean "big"?\n'
    assert without_settings(missing.stderr) == problem
    server.put(migration("m1", "big"))
    assert "none     Migrating: another live migration of the VM is unfinished" in run("big").stdout


def test_a_namespace_or_a_vm_is_left_out_and_an_exclusion_of_no_vm_is_named(run: Any) -> None:
    assert "No VM is apart from its storage." in run("-A", "--exclude", "default").stdout
    nothing = ["elsewhere", "default/bigg"]
    found = run("-A", *(f"--exclude={value}" for value in ("default/big", "default/fixed", *nothing)))
    assert found.stdout.endswith("2 apart: 1 would migrate, 1 need a restart\n")
    warnings = "".join(f"Warning: --exclude {value} excludes no VM\n" for value in sorted(nothing))
    assert (found.exit_code, without_settings(found.stderr)) == (0, warnings)
    for value in ("", "default/", "/big", "a/b/c"):  # an unset variable, for example
        refused = run("-A", "--yes", "--exclude", value)
        assert (refused.exit_code, f"expected NAMESPACE or NAMESPACE/NAME, got {value!r}" in refused.stderr) == (
            2,
            True,
        )


@pytest.mark.parametrize(
    ("option", "others"),
    [
        ("-A", "-n shop"), ("-A", "vm1"), ("--restart-list", "--yes"), ("--restart-list", "-o json"),
        ("--snapshot", "cluster.json --yes"),
    ],
)  # fmt: skip
def test_options_that_contradict_are_rejected(run: Any, option: str, others: str) -> None:
    result = run(option, *others.split())
    assert (result.exit_code, f"{option} cannot be combined with " in result.stderr) == (2, True)


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "99999999999"])
@pytest.mark.parametrize("option", ["recolocate --settle", "doctor --calls"])
def test_a_time_that_never_ends_is_rejected(option: str, value: str) -> None:
    result = run_cli(*option.split(), value)
    assert (result.exit_code, f"Invalid value for '{option.split()[1]}'" in result.stderr) == (2, True)


def test_the_restart_list_has_what_a_restart_moves_with_the_largest_gain_first(run: Any, server: ApiServer) -> None:
    assert run("-A", "--restart-list").stdout.splitlines() == [
        f"kubevirt-scheduler opt-in foreign -n default --yes && virtctl restart foreign -n default  # 7Gi {WHY}",
        f"virtctl restart fixed -n default  # 5Gi {WHY}",
    ]
    once = vm("fixed")
    once["spec"]["runStrategy"] = "Once"
    server.put(once)
    assert "kubectl delete vmi fixed -n default  #" in run("-A", "--restart-list").stdout
    once["spec"]["runStrategy"] = "Halted"
    server.put(once, vm("foreign"), migratable("foreign"))
    nothing = run("-A", "--restart-list")
    assert (nothing.stdout, without_settings(nothing.stderr)) == ("", "No VM needs a restart.\n")


def test_an_old_kubevirt_and_none_are_refused(run: Any, server: ApiServer) -> None:
    for old in migration_crd(selector=False), migration_crd(served=False):
        server.put(old)
        refused = run("-A")
        assert (refused.exit_code, "no field addedNodeSelector" in refused.stderr) == (2, True)
    assert run("-A", "--yes").exit_code == 2
    assert server.count("post", MIGRATIONS) == 0
    server.delete(migration_crd())
    refused = run("-A")
    assert (refused.exit_code, "KubeVirt is not installed" in refused.stderr) == (2, True)


@pytest.mark.parametrize("plural", ["customresourcedefinitions", MIGRATIONS, "kubevirts"])
def test_a_missing_right_exits_with_2(run: Any, server: ApiServer, plural: str) -> None:
    server.forbidden |= {("list", plural), ("get", plural)}
    result = run("-A", "--yes")
    assert result.exit_code == 2
    assert f"{plural} is forbidden" in result.stderr
    assert server.count("post", MIGRATIONS) == 0


def test_a_run_without_a_move_says_why_and_warns_of_nothing(run: Any) -> None:
    result = run("fixed", "--yes")
    why = "default/fixed stays: NotLiveMigratable: it has a host device\n"
    assert (result.exit_code, result.stdout, without_settings(result.stderr)) == (0, "No VM to migrate.\n", why)


def test_a_namespace_that_does_not_exist_is_an_error(run: Any, server: ApiServer) -> None:
    server.put(labeled_namespace("shop"))
    result = run("-n", "shpo", "--yes")
    assert (result.exit_code, result.stdout) == (2, "")
    assert 'namespace "shpo" not found; did you mean "shop"?' in result.stderr


def test_a_run_names_the_risk_of_the_storage_once(run: Any, server: ApiServer) -> None:
    server.script("post", MIGRATIONS, *[error_response(status(400, "denied"))] * 2)
    result = run("-A", "--yes", "-o", "json", "--parallel", "4")
    assert result.stderr.count("do not support live migration") == 1
    assert result.exit_code == 0
    *changes, last = [json.loads(line) for line in result.stdout.splitlines()]
    skipped = [(each["name"], each["stage"], each["detail"]) for each in changes]
    assert skipped == [("big", "Skipped", "denied"), ("apart", "Skipped", "denied")]
    assert (last["summary"]["skipped"], last["stopped"], last["left"]) == (2, None, [])
