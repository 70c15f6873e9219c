"""The pages about installing say what works: their commands are followed word for word, in a fresh folder.

By somebody who has kubectl, Helm, our command line and a kubeconfig. No kubelet runs here, and no KubeVirt: replicas
and the pod of `helm test` are processes of ours (chart_release.py), `virtctl` is a script that prints what it would.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import kubevirt
from tests.support import reasons_table as troubleshooting
from tests.support.controlplane.api import ApiError
from tests.support.controlplane.plane import ControlPlane
from tests.support.helm_chart import CHART, NAME, NAMESPACE, container, only, render, variables
from tests.support.helm_release import Release, Replicas, run_test_pod
from tests.support.longhorn import Longhorn
from tests.support.paths import ROOT
from tests.support.scenario import World
from tests.support.webhook_process import PROGRAM
from webhook.placement.settings import OPT_IN_ANNOTATIONS

INSTALL = ROOT / "docs" / "install.md"
FOLLOWED = ("Install", "Opt a VM in", "Upgrade", "Uninstall")
VIRTCTL = """#!/bin/sh
case $1 in
create) echo '{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "'$4'"}, "spec": {}}' ;;
restart) ;;
*) exit 2 ;;
esac
"""


def commands(page: Path, *sections: str) -> list[str]:
    """Each command of a page's console blocks, with its lines; of these sections, or of all."""
    found = []
    for part in re.split(r"^## ", page.read_text(), flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        for block in re.findall(r"^```console\n(.*?)^```$", body, re.MULTILINE | re.DOTALL):
            if not sections or title in sections:
                found += re.findall(r"^\$ ((?:.*\\\n)*.*)$", block, re.MULTILINE)
    return found


class Cluster:
    """What a cluster does by itself while somebody types: it runs the pods of the release, and its VMs."""

    def __init__(self, world: World) -> None:
        self.world, self.plane = world, world.plane
        self.release = Release(world.plane, NAMESPACE)
        self.replicas = Replicas(self.release)

    def turn(self) -> None:
        """Do what is to be done now."""
        try:
            self.replicas.reconcile()
            pod = self.plane.request("GET", f"/api/v1/namespaces/{NAMESPACE}/pods/{self.release.fullname}-test")
        except ApiError as error:
            if error.reason != "NotFound":
                raise
        else:
            if pod["status"].get("phase") == "Running":
                run_test_pod(self.release, pod)


class Reader:
    """Somebody in a fresh folder, with a checkout, who does as the page says."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.folder, self.cluster, plane = folder, cluster, cluster.plane
        for part in "charts", "examples":
            shutil.copytree(ROOT / part, folder / part)
        programs = folder / "bin"
        programs.mkdir()
        for name, program in ("kubectl", plane.binaries["kubectl"]), ("helm", plane.binaries["helm"]), (NAME, PROGRAM):
            programs.joinpath(name).symlink_to(program)
        programs.joinpath("virtctl").write_text(VIRTCTL)
        programs.joinpath("virtctl").chmod(0o755)
        config = json.loads(plane.write_kubeconfig(folder / "kubeconfig").read_text())
        config["contexts"][0]["context"]["namespace"] = cluster.world.namespace
        folder.joinpath("kubeconfig").write_text(json.dumps(config))
        self.environment = {
            "PATH": f"{programs}:/usr/bin:/bin",
            "HOME": str(folder),
            "KUBECONFIG": str(folder / "kubeconfig"),
            "COLUMNS": "200",
        }

    def follow(self, command: str) -> str:
        """Run a command while the cluster does its part; return what it prints, and fail where it fails."""
        output = self.folder / "output"
        with output.open("w") as file:
            run = subprocess.Popen(
                ["/bin/sh", "-ec", command], cwd=self.folder, env=self.environment, stdout=file, stderr=file
            )
            while run.poll() is None:
                self.cluster.turn()
        assert run.returncode == 0, f"$ {command}\n{output.read_text()}"
        self.cluster.turn()
        if command.startswith("virtctl restart"):
            self.cluster.world.running(kubevirt.restart(self.cluster.world, command.rsplit(maxsplit=1)[-1]))
        return output.read_text()


@pytest.fixture
def cluster(plane: ControlPlane, longhorn: Longhorn) -> Iterator[Cluster]:
    """Nodes, and a VM of somebody's whose share-manager runs."""
    volume = {"name": "root", "persistentVolumeClaim": {"claimName": "disk1"}}
    cluster = Cluster(kubevirt.a_vm(plane, longhorn, 4, {"spec": {"volumes": [volume]}}))
    yield cluster
    cluster.replicas.__exit__()
    cluster.release.uninstall("--ignore-not-found")
    cluster.world.close()


@pytest.mark.controlplane
def test_who_follows_the_page_installs_opts_in_upgrades_and_uninstalls(tmp_path: Path, cluster: Cluster) -> None:
    world, release = cluster.world, cluster.release
    _, node = world.warm_volume()
    reader = Reader(tmp_path, cluster)
    printed, modes = {}, []
    for command in commands(INSTALL, *FOLLOWED):
        printed[command] = reader.follow(command)
        if command.startswith(("helm install", "helm upgrade", "helm rollback")):
            modes.append(variables(container(release.deployment()))["CO_SCHEDULE_AFFINITY_MODE"])

    def after(beginning: str) -> str:
        (found,) = (output for command, output in printed.items() if command.startswith(beginning))
        return found

    assert "Phase:          Succeeded" in after("helm test")
    assert after("kubectl get pod").startswith(f"CoScheduled: pinned to {node}, which serves claim disk1")
    assert f"on {node}" in after("kubevirt-scheduler explain")
    assert modes == ["required", "preferred", "required"]
    made = [cluster.plane.request("GET", kubevirt.path(world, name)) for name in ("vm1", "vm3")]
    assert [vm["spec"]["template"]["metadata"]["annotations"] for vm in made] == [{OPT_IN_ANNOTATIONS[0]: "true"}] * 2
    # It was the last command that uninstalled it: a VM starts at once, and unseen.
    assert "kubevirt-scheduler/decision" not in world.tried(kubevirt.pod_of(world, "vm1"))["metadata"]["annotations"]


@pytest.mark.controlplane  # Helm is built with it
@pytest.mark.parametrize("page", [INSTALL, CHART / "README.md"], ids=lambda page: page.stem)
def test_each_helm_command_sets_what_the_chart_has(page: Path) -> None:
    given = [shlex.split(command, comments=True) for command in commands(page)]
    helm = [words for words in given if words[0] == "helm" and words[1] in ("install", "upgrade")]
    assert len(helm) >= 4
    for words in helm:
        options = [f"--set={setting}" for option, setting in itertools.pairwise(words) if option == "--set"]
        assert words[3] == "charts/kubevirt-scheduler"
        assert render({}, *options)


def test_what_is_to_be_written_into_a_vm_is_what_counts() -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```$", INSTALL.read_text(), re.MULTILINE | re.DOTALL)
    vm, preference, config, operator = (each for block in blocks for each in yaml.safe_load_all(block))
    annotations: list[dict[str, Any]] = [vm["spec"]["template"]["metadata"], preference["spec"]]
    assert [each["annotations"] for each in annotations] == [{OPT_IN_ANNOTATIONS[0]: "true"}] * 2
    assert operator["spec"]["schedulerConfig"] == config["metadata"]["name"]
    assert "token" not in config["data"]["config.yaml"]


@pytest.mark.controlplane  # Helm is built with it
def test_what_argo_cd_is_told_to_ignore_is_what_the_webhook_writes() -> None:
    """Not tried with Argo CD itself."""
    (block,) = re.findall(r"^```\n(spec:\n.*?)^```$", INSTALL.read_text(), re.MULTILINE | re.DOTALL)
    objects, ignored = render(), yaml.safe_load(block)["spec"]["ignoreDifferences"]
    for each in ignored:
        group, _, _ = only(objects, each["kind"], each["name"])["apiVersion"].rpartition("/")
        assert group == each["group"]
    paths = [each.get("jqPathExpressions") or each["jsonPointers"] for each in ignored]
    assert paths == [[".webhooks[]?.clientConfig.caBundle"], ["/data"]]


def test_the_table_of_reasons_is_what_tests_troubleshooting_py_makes() -> None:
    assert troubleshooting.PAGE.file.read_text() == troubleshooting.PAGE.made()
