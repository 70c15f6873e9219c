"""The help of each command has examples, and each example runs as it is shown."""

import json
import os
import re
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest
import yaml

from certs import CONFIGURATIONS
from certs.controller import CertificateController
from certs.files import InMemory
from tests.support.builders import Object, claim, node, request, storage, storage_class, virt_launcher, virtual_machine
from tests.support.command_line import all_commands, run_line
from tests.support.fake_api_server import ApiServer, body
from tests.support.fake_certificate_cluster import (
    CONFIGURATION,
    NAME,
    NAMES,
    NAMESPACE,
    FakeCertificateCluster,
)
from tests.support.migrations import migration_crd
from tests.support.paths import EXAMPLES
from webhook.cli import commands
from webhook.placement.affinity import DECISION
from webhook.reading.kubernetes_yaml import to_yaml
from webhook.serving.review.admission_review import API_VERSION, KIND

SCRIPTS = Path(sys.executable).parent
POD = "virt-launcher-vm1-x7k2p"
KUBECTL = "#!/bin/sh\ncat pod.yaml\n"
# What the examples name, and what stands for it here.
STAND_INS = {
    "NAMESPACE": NAMESPACE,
    "--webhook-configuration NAME": f"--webhook-configuration {CONFIGURATION}",
    f"{NAMESPACE}/NAME": f"{NAMESPACE}/{NAME}",
    # No kubelets run here. tests/live/test_scenarios.py runs the whole benchmark.
    "longhorn --yes": "longhorn",
    "lab --yes": "lab",
    "--storage-class longhorn": "--storage-class longhorn --image image:1",
}


def examples(command: click.Command) -> list[str]:
    """Return the lines of a command's help below "Example:" or "Examples:"."""
    block = re.search(r"Examples?:\n((?: +\S.*\n?)+)", command.help or "")
    return [line.strip() for line in block[1].splitlines()] if block else []


COMMANDS = [*all_commands(), (("",), commands)]
SHOWN = [(line, path) for path, command in COMMANDS for line in examples(command)]
SERVERS = {"serve", "dashboard"}  # run until they are ended


def vm_objects(namespace: str) -> list[Object]:
    pod = virt_launcher(POD, annotations={"kubevirt.io/domain": "vm1"}, namespace=namespace, node="node-a")
    vm = virtual_machine(namespace=namespace)
    vm["metadata"]["labels"] = {"app": "db"}  # which the examples select
    return [*storage(), claim(namespace=namespace), pod, vm]


@pytest.fixture
def server(server: ApiServer) -> ApiServer:
    certificates = FakeCertificateCluster()
    own = {"secret": (NAMESPACE, NAME), "configuration": CONFIGURATION, "names": NAMES}
    CertificateController(certificates, **own, served=InMemory(), now=lambda: datetime.now(UTC)).run_pass()
    server.put(node(), node("node-b"), *vm_objects("default"), *vm_objects("shop"))
    server.put(virtual_machine("vm2", "shop"), migration_crd())
    server.put(storage_class("longhorn") | {"provisioner": "driver.longhorn.io"})
    for path, item in certificates.objects.items():
        kind = "MutatingWebhookConfiguration" if path.startswith(CONFIGURATIONS) else "Secret"
        server.put(item | {"kind": kind})
    server.script("post", "pods", body({"metadata": {"annotations": {DECISION: "a decision"}}}, 201))
    return server


@pytest.fixture
def environment(server: ApiServer, tmp_path: Path) -> dict[str, str]:
    """The environment in which the examples run: a folder with the files that they name, and a cluster."""
    kubeconfig = Path(server.kubeconfig(tmp_path))
    content = yaml.safe_load(kubeconfig.read_text())
    content["contexts"].append({"name": "production", "context": content["contexts"][0]["context"]})
    kubeconfig.write_text(yaml.safe_dump(content))
    pod = virt_launcher(POD, annotations={"kubevirt.io/domain": "vm1"})
    (tmp_path / "pod.yaml").write_text(to_yaml(pod))
    (tmp_path / "vm.yaml").write_bytes((EXAMPLES / "vm.yaml").read_bytes())
    review = {"apiVersion": API_VERSION, "kind": KIND, "request": request(pod)}
    (tmp_path / "review.json").write_text(json.dumps(review))
    for folder in ("cluster", "examples", "bin"):
        (tmp_path / folder).mkdir(parents=True)
    items = {"apiVersion": "v1", "kind": "List", "items": [node(), *vm_objects("default")]}
    for file in ("cluster.yaml", "cluster.json", "cluster/all.json", "examples/cluster.yaml"):
        (tmp_path / file).write_text(json.dumps(items))
    kubectl = tmp_path / "bin" / "kubectl"
    kubectl.write_text(KUBECTL)
    kubectl.chmod(0o755)
    return os.environ | {"KUBECONFIG": str(kubeconfig), "PATH": f"{tmp_path / 'bin'}:{SCRIPTS}:{os.environ['PATH']}"}


def runnable(example: str) -> str:
    for name, stand_in in STAND_INS.items():
        example = example.replace(name, stand_in)
    return example


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[" ".join(path) for path, _ in COMMANDS])
def test_each_command_has_an_example_that_calls_it(path: tuple[str, ...], command: click.Command) -> None:
    shown = examples(command)
    assert [line for line in shown if " ".join(["kubevirt-scheduler", *path]).strip() in line]
    assert [line for line in shown if "kubevirt-scheduler" not in line] == []


@pytest.mark.parametrize("example", dict.fromkeys(line for line, path in SHOWN if path[0] not in SERVERS))
def test_an_example_runs(
    example: str, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, errors = run_line(runnable(example), environment, tmp_path)
    # --fail-on asks for a failure, the doctor finds that nothing is installed, and a drain would end the VM.
    assert code in (0, 1) if {"--fail-on", "doctor", "drain-check"} & set(example.split()) else code == 0, errors
    assert "Error" not in errors


@pytest.mark.parametrize(("example", "path"), [each for each in SHOWN if each[1][0] in SERVERS])
def test_the_options_of_a_servers_example_are_valid(example: str, path: tuple[str, ...]) -> None:
    options = example.rpartition(" ".join(path))[2]
    assert dict(COMMANDS)[path].make_context(path[-1], shlex.split(options))
