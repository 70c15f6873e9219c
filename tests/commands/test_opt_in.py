"""`opt-in` and `opt-out` annotate the templates of VMs, and leave alone what another program manages."""

import json
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from tests.support.builders import OPT_IN, Object, labeled_namespace, virtual_machine
from tests.support.command_line import run_cli
from tests.support.fake_api_server import ApiServer, Connection, body, error_response, no_response, status
from tests.support.fleet import installation
from webhook.fleet.gitops import SIGNS, managed_by

OLD_KEY = "scheduler.kubevirt-scheduler.io/co-schedule"
PLURAL = "virtualmachines"

Run = Callable[..., Result]


@pytest.fixture
def run(server: ApiServer, tmp_path: Path) -> Run:
    kubeconfig = server.kubeconfig(tmp_path)
    return lambda *arguments: run_cli(*arguments, "--kubeconfig", kubeconfig)


def annotations(server: ApiServer, name: str = "vm1") -> Object:
    found: Object = server.stored(PLURAL, ("default", name))["spec"]["template"]["metadata"]["annotations"]
    return found


def in_argo_cd(name: str = "vm1") -> Object:
    vm = virtual_machine(name)
    vm["metadata"]["annotations"] = {"argocd.argoproj.io/tracking-id": "shop:kubevirt.io/VirtualMachine:default/vm1"}
    return vm


def test_without_yes_the_change_is_printed_and_nothing_is_written(server: ApiServer, run: Run) -> None:
    server.put(virtual_machine("vm1"), virtual_machine("vm2", annotations={OLD_KEY: "true"}))
    result = run("opt-in", "-n", "default")
    assert result.stdout == (
        "NAMESPACE   VM    RESULT         DETAIL\n"
        'default     vm1   would change   kubevirt-scheduler/co-schedule: "true"\n'
        "default     vm2   unchanged      already opted in\n"
        "\n"
        "2 VMs: 1 would change, 1 unchanged\n"
    )
    assert (result.stderr, result.exit_code) == ("Dry run: nothing changed. To apply the changes, add --yes\n", 0)
    assert server.count("patch", PLURAL) == 0
    server.script("list", PLURAL, body({"metadata": {}, "items": [None, virtual_machine("vm1")]}))
    assert run("opt-in").stdout.endswith("\n1 VM: 1 would change\n")
    server.forbidden.add(("list", "mutatingwebhookconfigurations"))
    assert run("opt-in").stderr.startswith("Settings: the defaults, because you may not read those of the cluster.\n")


BY_NAME = '{"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["default"]}]}'


@pytest.mark.parametrize(
    ("selector", "setting", "forbidden"),
    [
        ("excludedNamespaces", BY_NAME, False),
        ("namespaceSelector", '{"matchLabels": {"team": "db"}}', False),
        ("namespaceSelector", '{"matchLabels": {"team": "db"}}', True),
    ],
)  # fmt: skip
def test_a_vm_of_an_excluded_namespace_is_skipped(
    server: ApiServer, run: Run, selector: str, setting: str, forbidden: bool
) -> None:
    labels = {"kubernetes.io/metadata.name": "default"}
    server.put(*installation({"CO_SCHEDULE_NAMESPACE_SELECTOR": setting}), virtual_machine("vm1"))
    server.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "labels": labels}})
    if forbidden:
        server.forbidden.add(("get", "namespaces"))
    result = run("opt-in", "-n", "default")
    assert (result.exit_code, f"skipped   webhook.{selector} excludes its namespace" in result.stdout) == (1, True)
    assert run("opt-out", "-n", "default").exit_code == 0


def test_with_yes_each_template_gets_the_annotation_and_keeps_the_others(server: ApiServer, run: Run) -> None:
    server.put(virtual_machine("vm1", annotations={"a": "b"}), virtual_machine("vm2", annotations={OPT_IN: "false"}))
    result = run("opt-in", "-n", "default", "--yes")
    assert result.exit_code == 0
    assert result.stdout.count("   changed   ") == 2
    assert annotations(server) == {"a": "b", OPT_IN: "true"}
    assert annotations(server, "vm2") == {OPT_IN: "true"}
    assert server.last("patch", PLURAL).query == {"fieldManager": "kubevirt-scheduler"}
    assert server.stored(PLURAL, ("default", "vm1"))["spec"]["runStrategy"] == "Always"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {OPT_IN: "false"}),
        ({OPT_IN: "true"}, {OPT_IN: "false"}),
        ({OLD_KEY: "true", "a": "b"}, {OPT_IN: "false", "a": "b"}),
        ({OPT_IN: "false", OLD_KEY: "true"}, {OPT_IN: "false"}),
        ({OPT_IN: "false", OLD_KEY: "false"}, {OPT_IN: "false", OLD_KEY: "false"}),
    ],
)
def test_opt_out_leaves_no_annotation_that_opts_in(server: ApiServer, run: Run, before: Object, after: Object) -> None:
    server.put(virtual_machine(annotations=before))
    assert run("opt-out", "--yes").exit_code == 0
    assert annotations(server) == after


def test_a_vm_that_is_managed_elsewhere_is_named_and_skipped(server: ApiServer, run: Run) -> None:
    server.put(in_argo_cd("vm1"), virtual_machine("vm2"))
    result = run("opt-in", "--yes")
    sentence = "managed by Argo CD (annotation argocd.argoproj.io/tracking-id): change its source"
    assert f"default     vm1   skipped   {sentence}\n" in result.stdout
    assert result.exit_code == 1
    assert (annotations(server), annotations(server, "vm2")) == ({}, {OPT_IN: "true"})
    vm = in_argo_cd()
    vm["spec"]["template"]["metadata"]["annotations"] = {OPT_IN: "true"}
    server.put(vm)
    assert run("opt-in").exit_code == 0  # nothing to change


@pytest.mark.parametrize(("program", "field", "key"), SIGNS)
def test_each_sign_of_another_program_counts(program: str, field: str, key: str) -> None:
    vm = virtual_machine()
    fields: Object = {
        "annotation": {"annotations": {key: "x"}},
        "label": {"labels": {key: "x"}},
        "field manager": {"managedFields": [{"manager": "kubectl"}, {"manager": key}]},
    }
    vm["metadata"] |= fields[field]
    assert managed_by(vm) == f"{program} ({field} {key})"


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"labels": {"app.kubernetes.io/managed-by": "Helm", "app.kubernetes.io/instance": "shop"}},
        {"managedFields": [{"manager": "kubectl-client-side-apply"}, {"manager": "virt-controller"}]},
        {"ownerReferences": [{"kind": "Application", "name": "a"}]},
    ],
)
def test_other_traces_do_not_count_but_an_owner(metadata: Object) -> None:
    assert managed_by({"metadata": metadata}) == ""
    owner = {"kind": "VirtualMachinePool", "name": "web", "controller": True}
    assert managed_by({"metadata": metadata | {"ownerReferences": [owner]}}) == "VirtualMachinePool web (its owner)"


@pytest.mark.parametrize(("code", "words"), [(403, "virtualmachines is forbidden"), (422, "denied")])
def test_a_vm_that_can_not_be_changed_does_not_stop_the_others(
    server: ApiServer, run: Run, code: int, words: str
) -> None:
    server.put(virtual_machine("vm1"), virtual_machine("vm2"))
    server.script("patch", PLURAL, error_response(status(code, words)))
    result = run("opt-in", "--yes")
    assert f"default     vm1   failed    {words}\n" in result.stdout
    assert (result.exit_code, annotations(server, "vm2")) == (1, {OPT_IN: "true"})


def test_ctrl_c_prints_the_vms_that_are_changed_by_then(server: ApiServer, run: Run) -> None:
    def press_ctrl_c(connection: Connection) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        no_response(connection)

    server.put(virtual_machine("vm1"), virtual_machine("vm2"))
    server.script("patch", PLURAL, body(virtual_machine("vm1")), press_ctrl_c)
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)  # in a shell's background job, it is ignored
    try:
        result = run("opt-in", "--yes")
    finally:
        signal.signal(signal.SIGINT, previous)
    assert (result.exit_code, result.stderr) == (130, "Interrupted\n")
    assert [line.split()[1:3] for line in result.stdout.splitlines()[1:2]] == [["vm1", "changed"]]


def test_only_the_named_or_labeled_vms_are_changed(server: ApiServer, run: Run) -> None:
    labeled = virtual_machine("vm2")
    labeled["metadata"]["labels"] = {"app": "db"}
    server.put(virtual_machine("vm1"), labeled, virtual_machine("vm3"), virtual_machine("vm4"))
    assert run("opt-in", "vm1", "vm3", "vm1", "--yes").exit_code == 0
    assert [annotations(server, f"vm{number}") for number in (1, 2, 3)] == [{OPT_IN: "true"}, {}, {OPT_IN: "true"}]
    assert run("opt-in", "-l", "app=db", "--yes").exit_code == 0
    assert [annotations(server, f"vm{number}") for number in (2, 4)] == [{OPT_IN: "true"}, {}]
    nothing = run("opt-in", "-n", "shop", "-l", "app=db,!old")
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert "No VM with these labels found in namespace shop" in nothing.stderr
    assert server.last("list", PLURAL).path == "/apis/kubevirt.io/v1/namespaces/shop/virtualmachines"
    server.put(labeled_namespace("shop"))
    wrong = run("opt-in", "-n", "prod", "--yes")
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert 'namespace "prod" not found; to list all: kubectl get namespaces' in wrong.stderr
    server.forbidden.add(("list", "namespaces"))
    assert run("opt-in", "-n", "prod").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["vm1", "typo", "--yes"], 'VirtualMachine "typo" not found in namespace "default"; to list all: kubectl'),
        (["-A", "-n", "shop"], "-A cannot be combined with -n or names"),
        (["-A", "vm1"], "-A cannot be combined with -n or names"),
        (["-n", "empty/", "--yes"], "the VM is missing"),
        (["-n", "..", "--yes"], "/namespaces/../virtualmachines: no name is . or .."),
        (["", "--yes"], 'VirtualMachine "" not found in namespace "default"'),
        (["vm1", "-l", "a=b"], "specify either names or -l, not both"),
        (["-l", "a b"], "invalid label selector"),
        (["-l", "", "--yes"], "empty label selector; to select all VMs, omit the option"),
    ],
)
def test_a_wrong_selection_changes_nothing(server: ApiServer, run: Run, arguments: list[str], words: str) -> None:
    server.put(virtual_machine())
    if "empty/" in arguments:
        server.script("list", PLURAL, error_response(status(404, "the VM is missing")))
    result = run("opt-in", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr
    assert server.count("patch", PLURAL) == 0


def test_all_namespaces_are_opted_in_and_reported_as_json(server: ApiServer, run: Run) -> None:
    other = virtual_machine("vm2")
    other["metadata"]["namespace"] = "shop"
    server.put(virtual_machine(), other)
    result = run("opt-in", "-A", "-o", "json")
    detail = 'kubevirt-scheduler/co-schedule: "true"'
    assert json.loads(result.stdout) == [
        {"namespace": namespace, "name": name, "result": "would change", "detail": detail}
        for namespace, name in (("default", "vm1"), ("shop", "vm2"))
    ]
    assert [each["result"] for each in json.loads(run("opt-in", "-A", "-o", "json", "--yes").stdout)] == ["changed"] * 2
    assert server.stored(PLURAL, ("shop", "vm2"))["spec"]["template"]["metadata"]["annotations"] == {OPT_IN: "true"}
