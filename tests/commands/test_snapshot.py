"""`snapshot` writes what decisions read of a cluster, in pages, at once, and readable only by the user."""

import json
import re
import resource
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from click.testing import Result

from tests.support.builders import (
    OPT_IN,
    Object,
    node,
    pod,
    share_manager,
    share_manager_pod,
    storage,
    virt_launcher,
    virtual_machine,
)
from tests.support.command_line import run_cli, write_manifests
from tests.support.fake_api_server import ApiServer, body
from tests.support.fleet import vm, vm_pod, vmi, without_settings
from webhook.commands.fleet_source import SECRETS_WARNING

PASSPHRASE = "open-sesame"
ENCRYPTED = share_manager_pod(node="node-a")
ENCRYPTED["spec"]["containers"] = [{"name": "s", "env": [{"name": "PASSPHRASE", "value": PASSPHRASE}]}]
BACKUP = pod("backup", claims=["disk1"], node="node-b")
NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}
STORAGE_CLASS = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "longhorn", "annotations": {OPT_IN: "true", "example.com/token": PASSPHRASE}},
    "provisioner": "driver.longhorn.io",
    "parameters": {"share": "true", "encrypted": "true", "csi.storage.k8s.io/node-publish-secret-name": "crypto"},
}
VMI = {
    "apiVersion": "kubevirt.io/v1",
    "kind": "VirtualMachineInstance",
    "metadata": {"name": "vm1", "namespace": "default", "uid": "uid-of-vm1"},
}
CLUSTER: list[Object] = [
    *storage()[:2],
    ENCRYPTED,
    node(),
    share_manager(),
    virtual_machine(),
    VMI,
    NAMESPACE,
    STORAGE_CLASS,
]

INSTANCE_TYPE = {
    "apiVersion": "instancetype.kubevirt.io/v1beta1",
    "kind": "VirtualMachineInstancetype",
    "metadata": {"name": "u1", "namespace": "default"},
    "spec": {"cpu": {"guest": 1}, "memory": {"guest": "1Gi"}, "nodeSelector": {"disk": "ssd"}},
}
TIME = r'"time": ?"[^"]*"'
RunSnapshot = Callable[..., Result]


@pytest.fixture
def server(server: ApiServer) -> ApiServer:
    server.put(*CLUSTER)
    return server


@pytest.fixture
def run(server: ApiServer, tmp_path: Path) -> RunSnapshot:
    return partial(run_cli, "snapshot", "--kubeconfig", server.kubeconfig(tmp_path))


def items(content: str) -> list[Object]:
    document = json.loads(content)
    assert (document["apiVersion"], document["kind"]) == ("v1", "List")
    description, *found = document["items"]
    assert description["kind"] == "Snapshot"
    return found


def test_the_snapshot_has_each_kind_without_secrets(run: RunSnapshot, tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    result = run("-o", file)
    assert (result.exit_code, result.stdout) == (0, "")
    found = items(file.read_text())
    assert sorted((item["apiVersion"], item["kind"]) for item in found) == sorted(
        (item["apiVersion"], item["kind"]) for item in CLUSTER
    )
    assert PASSPHRASE not in file.read_text()
    (storage_class,) = (item for item in found if item["kind"] == "StorageClass")
    assert (storage_class["parameters"], storage_class["metadata"]["annotations"]) == ({}, {OPT_IN: "true"})
    assert result.stderr.startswith(
        f"{file}: 1 PersistentVolumeClaim, 1 PersistentVolume, 1 ShareManager, 1 Node, 1 Pod"
    )


def test_the_report_and_its_page_are_the_same_from_a_snapshot_and_from_the_cluster(
    run: RunSnapshot, server: ApiServer, tmp_path: Path
) -> None:
    disk = {"name": "disk", "persistentVolumeClaim": {"claimName": "disk1"}}
    cloud_init = {"name": "init", "cloudInitNoCloud": {"userData": PASSPHRASE}}
    running = {"status": {"phase": "Running"}}
    sized = vm("sized", volumes=[disk])
    sized["spec"]["instancetype"] = {"name": "u1", "kind": "VirtualMachineInstancetype"}
    server.put(
        *(vm(name, volumes=[disk, cloud_init], domain={"cpu": {"cores": 2}}) for name in ("vm1", "stopped")),
        vm("efi", domain={"firmware": {"bootloader": {"efi": {"persistent": True}}}}, nodeSelector={"a": "b"}),
        sized,
        INSTANCE_TYPE,
        vm_pod("vm1", "node-b") | running,
        vm_pod("migrated", "node-b", labels={"kubevirt.io/migrationJobUID": "x"}) | running,
        vmi("migrated", paused=True),
        BACKUP,
    )
    file, kubeconfig = tmp_path / "cluster.json", server.kubeconfig(tmp_path)
    assert run("-o", file).exit_code == 0
    assert PASSPHRASE not in file.read_text()
    for output in ("json", "html"):
        live, snapshot = (
            run_cli("report", "-A", "-o", output, *source)
            for source in (["--kubeconfig", kubeconfig], ["--snapshot", file])
        )
        assert live.exit_code == 0
        assert re.sub(TIME, "", live.stdout) == re.sub(TIME, "", snapshot.stdout)
    vms = json.loads(run_cli("report", "--snapshot", file, "-o", "json").stdout)["vms"]
    # Without its instance type, whose node selector no node has, the VM would be pinned.
    assert [each["ifStarted"]["reason"] for each in vms if each["name"] == "sized"] == ["NodeMismatch"]
    explained = run_cli("explain", "vm", "sized", "--kubeconfig", kubeconfig)
    assert "NodeMismatch" in explained.stdout
    users = {each["name"]: {user["name"] for user in each["ifStarted"]["otherUsers"]} for each in vms}
    assert {name: found for name, found in users.items() if "backup" in found} == {
        "migrated": {"backup", "vm1"},
        "sized": {"backup", "migrated", "vm1"},
        "stopped": {"backup", "migrated", "vm1"},
        "vm1": {"backup", "migrated"},
    }


@pytest.mark.parametrize(
    ("kind", "secret"),
    [
        ("VirtualMachine", "passphrase"),
        ("VirtualMachine", "cloudInitNoCloud"),
        ("VirtualMachineInstance", "cloudInitConfigDrive"),
    ],
)
def test_plain_kubectl_output_is_read_like_a_snapshot_with_one_warning_about_its_secrets(
    run: RunSnapshot, tmp_path: Path, kind: str, secret: str
) -> None:
    file, received = tmp_path / "cluster.json", write_manifests(tmp_path, virt_launcher(), name="pod.yaml")
    run("-o", file)
    spec = {"volumes": [{"name": "init", secret: {"userData": f"password: {PASSPHRASE}"}}]}
    item = (VMI | {"spec": spec}) if kind == VMI["kind"] else vm(**spec)
    server = ENCRYPTED if secret == "passphrase" else share_manager_pod(node="node-a")
    plain = write_manifests(tmp_path, *CLUSTER, server, item)
    for command in (["inject", "-f", received], ["explain", "-f", received], ["report"]):
        kept, read = (run_cli(*command, "--snapshot", snapshot) for snapshot in (file, plain))
        assert (without_settings(kept.stderr), read.stderr) == ("", f"Warning: {SECRETS_WARNING}\n")
        assert PASSPHRASE not in read.output
        # Only the snapshot knows that nothing is installed: `explain` and `report` differ.
        assert ("node-a" in kept.stdout and kept.stdout == read.stdout) or command[0] != "inject"


def test_a_missing_product_or_right_is_reported_and_the_rest_is_written(run: RunSnapshot, server: ApiServer) -> None:
    server.missing |= {"sharemanagers", "virtualmachines"}
    result = run("-o", "-")
    assert result.exit_code == 0
    assert result.stderr.splitlines()[:-1] == [
        "Warning: the snapshot contains no sharemanagers: longhorn.io is not installed",
        "Warning: the snapshot contains no virtualmachines: kubevirt.io is not installed",
    ]
    assert len(items(result.stdout)) == len(CLUSTER) - 2
    server.missing.clear()
    server.forbidden.add(("list", "pods"))
    result = run()
    assert result.exit_code == 1
    assert result.stderr.startswith("Warning: the snapshot contains no pods: pods is forbidden: User ")
    assert {item["kind"] for item in items(result.stdout)} == {item["kind"] for item in CLUSTER} - {"Pod"}


def test_a_full_disk_or_a_cluster_that_does_not_answer_leaves_the_old_file(
    run: RunSnapshot, server: ApiServer, tmp_path: Path
) -> None:
    file = tmp_path / "cluster.json"
    file.write_text("old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        result = run("-o", file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (result.exit_code, {each.name for each in tmp_path.iterdir()}) == (2, {"cluster.json", "kubeconfig"})
    assert result.stderr.endswith("cluster.json: File too large; specify a writable file with enough space\n")
    for plural in "namespaces", "sharemanagers":  # the second one may be missing
        server.script("list", plural, body(b"no JSON"))
        result = run("-o", file)
        assert result.exit_code == 2
        assert result.stderr.startswith(f"Error: {plural}: cannot reach the API server: ")
    assert file.read_text() == "old"


def test_the_file_replaces_an_old_one_and_only_the_user_can_read_it(run: RunSnapshot, tmp_path: Path) -> None:
    target, link = tmp_path / "old.json", tmp_path / "link.json"
    target.write_text("old")
    target.chmod(0o644)
    link.symlink_to(target)
    assert run("-o", link).exit_code == 0
    assert link.is_symlink()
    assert len(items(target.read_text())) == len(CLUSTER)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert {file.name for file in tmp_path.iterdir()} == {"old.json", "link.json", "kubeconfig"}


def test_a_device_is_written_to_and_a_file_that_can_not_be_is_reported_in_one_line(
    run: RunSnapshot, tmp_path: Path
) -> None:
    assert run("-o", "/dev/null").exit_code == 0
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    for name in ("missing/cluster.json", "kubeconfig/cluster.json", "/dev/full", "x" * 300):
        result = run("-o", tmp_path / name)
        assert result.exit_code == 2
        (line,) = result.stderr.splitlines()
        assert line.endswith("; specify a writable file with enough space")
