"""The commands read the settings of the installed webhook, and predict what it does: nothing if it is not called."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.support.builders import Object, labeled_namespace, node, pod, storage
from tests.support.command_line import run_cli
from tests.support.fake_api_server import ApiServer
from tests.support.fleet import OF_THE_FLEET, installation, vm, vm_pod
from tests.support.migrations import kubevirt, migratable, migration_crd
from webhook import __version__

# The VM is apart. Only its namespace opts it in, and a backup keeps its share-manager running.
CLUSTER = [
    *(*storage(), node("node-a"), node("node-b"), labeled_namespace(opt_in="true")),
    *(vm(opt_in=False), migratable(), vm_pod(node="node-b", opt_in=None)),
    pod("backup", claims=["disk1"], node="node-a"),
]
BY_NAMESPACE = {"CO_SCHEDULE_OPT_IN": "namespace"}
DEPLOYMENT = "Deployment kubevirt-scheduler/kubevirt-scheduler"
USED = f"Settings: {DEPLOYMENT}, version 1.2.3."
ANYWHERE = "so a restart places a VM anywhere."
INSTALLED = installation(BY_NAMESPACE)
UNREADY = INSTALLED[3] | {"status": {"phase": "Running"}}
# Sentence, objects, forbidden list, the shell's variables, the head line, what opts in the VM, VMs that a restart helps
ROWS: list[tuple[str, list[Object], str, dict[str, str], str, str | None, int]] = [
    ("called, and the shell has others", INSTALLED, "", {"CO_SCHEDULE_OPT_IN": "annotation"}, USED, "namespace", 1),
    ("observing", installation({"CO_SCHEDULE_ACTION": "observe"} | BY_NAMESPACE), "", {},
     f"{USED} The webhook only observes, {ANYWHERE}", "namespace", 0),
    ("without a caBundle", installation(BY_NAMESPACE, called=False), "", {},
     f"{USED} The API server does not call the webhook, because its configuration has no caBundle, {ANYWHERE}",
     "namespace", 0),
    ("without a ready replica", [*INSTALLED[:3], UNREADY], "", {},
     f"{USED} The API server does not call the webhook, because no replica is ready, {ANYWHERE}", "namespace", 0),
    ("not installed", [], "", BY_NAMESPACE,
     f"The webhook is not installed, {ANYWHERE} Settings: environment variables of this command.", "namespace", 0),
    ("not installed, without variables", [], "", {},
     f"The webhook is not installed, {ANYWHERE} Settings: the defaults.", None, 0),
    ("no right to read them", INSTALLED, "mutatingwebhookconfigurations", {},
     "Settings: the defaults, because you may not read those of the cluster.", None, 1),
    ("no Deployment", [*INSTALLED[:2], INSTALLED[3]], "", {},
     "Settings: the defaults, because the webhook's Deployment is not found.", None, 1),
    ("namespace deleted", INSTALLED[:1], "", {},
     f"Settings: the defaults. The API server does not call the webhook, because no replica is ready, {ANYWHERE}",
     None, 0),
    ("settings of another version", installation({"CO_SCHEDULE_LATER": "x"}), "", {},
     f"Settings: the defaults, because this version cannot read those of {DEPLOYMENT}: ", None, 1),
    ("the same without a ready replica", [*installation({"CO_SCHEDULE_LATER": "x"})[:3], UNREADY], "", {},
     f"Settings: the defaults. The API server does not call the webhook, because no replica is ready, {ANYWHERE}",
     None, 0),
]  # fmt: skip


@pytest.fixture
def server(server: ApiServer) -> ApiServer:
    server.put(*CLUSTER, kubevirt(), migration_crd())
    return server


def run(command: str, *arguments: str, variables: dict[str, str]) -> Result:
    result = run_cli(*command.split(), *arguments, env={"COLUMNS": None} | variables)
    assert result.exit_code == 0, result.output
    return result


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_settings_are_those_of_the_cluster(server: ApiServer, tmp_path: Path, row: Any) -> None:
    _, objects, forbidden, variables, head, opted_in_by, helped = row
    server.put(*objects)
    server.forbidden.add(("list", forbidden))
    live, file = ("--kubeconfig", server.kubeconfig(tmp_path)), tmp_path / "cluster.json"
    run("snapshot", "-o", str(file), *live, variables=variables)
    for source in (live, ("--snapshot", str(file))):
        found = json.loads(run("report -A -o json", *source, variables=variables).stdout)
        assert found["webhook"]["text"].startswith(head)
        (reported,) = [each for each in found["vms"] if each["name"] == "vm1"]
        assert reported["optedInBy"] == opted_in_by
        assert found["summary"]["togetherAfterRestart"] == helped
        assert (found["cluster"], found["version"] != "") == ("x", True)


def test_each_command_names_the_settings_that_it_uses(server: ApiServer, tmp_path: Path) -> None:
    server.put(*INSTALLED)
    live = "--kubeconfig", server.kubeconfig(tmp_path)
    found = json.loads(run("report -A -o json", *live, variables={}).stdout)
    assert found["settings"] == BY_NAMESPACE
    (reported,) = [each for each in found["vms"] if each["name"] == "vm1"]
    (explained,) = json.loads(run("explain vm vm1 -n default -o json", *live, variables={}).stdout)
    assert explained["vm"] == {key: value for key, value in reported.items() if key not in OF_THE_FLEET}
    assert explained["webhook"]["text"] == USED
    assert run("report -A -o wide", *live, variables={}).stdout.startswith(USED)
    for command in ("recolocate -A", "explain vm vm1 -n default"):
        assert run(command, *live, variables={}).stderr.startswith(USED)


@pytest.mark.parametrize(
    ("objects", "line", "known"),
    [(INSTALLED, f"1.2.3 ({DEPLOYMENT}, called)", "1.2.3"), ([], "unknown (not-installed)", "")],
)
def test_the_version_is_that_of_both_sides(
    server: ApiServer, tmp_path: Path, objects: list[Object], line: str, known: str
) -> None:
    server.put(*objects)
    live = "--kubeconfig", server.kubeconfig(tmp_path)
    assert run("version", *live, variables={}).stdout == f"command   {__version__}\nwebhook   {line}\n"
    found = json.loads(run("version -o json", *live, variables={}).stdout)
    assert (found["command"], found["webhook"]["version"]) == (__version__, known)
