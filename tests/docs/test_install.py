"""The guides to install, upgrade and uninstall work: their commands run verbatim, in a fresh folder.

The reader has kubectl, Helm, the `kubevirt-scheduler` command and a kubeconfig. No kubelet and no KubeVirt run here:
local processes stand in for the replicas and the pod of `helm test` (helm_release.py), a script for `virtctl`.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.docs.transcripts import commands
from tests.support import kubevirt
from tests.support.controlplane.plane import ControlPlane
from tests.support.helm_chart import NAME, NAMESPACE, container, env_values
from tests.support.longhorn import Longhorn
from tests.support.paths import DOCS, ROOT
from tests.support.release_pods import ReleasePods
from tests.support.webhook_process import PROGRAM
from webhook.placement.settings import OPT_IN_ANNOTATIONS

# The sections whose commands run, in this order.
JOURNEY = {"install": ("Install", "Opt a VM in"), "upgrade": ("Upgrade", "Roll back", "Uninstall")}
VIRTCTL = """#!/bin/sh
[ "$1" = restart ]
"""


def guide(name: str) -> Path:
    return DOCS / "guides" / f"{name}.md"


class Workstation:
    """The reader's machine: a fresh folder with a checkout, the programs and a kubeconfig."""

    def __init__(self, folder: Path, cluster: ReleasePods) -> None:
        self.folder, self.cluster, plane = folder, cluster, cluster.plane
        for part in "charts", "examples":
            shutil.copytree(ROOT / part, folder / part)
        programs = folder / "bin"
        programs.mkdir()
        for name, program in ("kubectl", plane.binaries["kubectl"]), ("helm", plane.binaries["helm"]), (NAME, PROGRAM):
            programs.joinpath(name).symlink_to(program)
        programs.joinpath("virtctl").write_text(VIRTCTL)
        programs.joinpath("virtctl").chmod(0o755)
        plane.write_kubeconfig(folder / "kubeconfig", namespace=cluster.scenario.namespace)
        self.environment = {
            "PATH": f"{programs}:/usr/bin:/bin",
            "HOME": str(folder),
            "KUBECONFIG": str(folder / "kubeconfig"),
            "COLUMNS": "200",
            "GOGC": "off",  # kubectl and helm take a quarter less CPU time
        }

    def run(self, command: str) -> str:
        """Run a command while the cluster reconciles, and return its output. Fails the test if the command fails."""
        output = self.folder / "output"
        with output.open("w") as file:
            process = subprocess.Popen(
                ["/bin/sh", "-ec", command], cwd=self.folder, env=self.environment, stdout=file, stderr=file
            )
            while process.poll() is None:
                self.cluster.reconcile()
                with suppress(subprocess.TimeoutExpired):  # the machine has other work, too
                    process.wait(0.1)
        assert process.returncode == 0, f"$ {command}\n{output.read_text()}"
        self.cluster.reconcile()
        if command.startswith("virtctl restart"):
            self.cluster.scenario.wait_running(
                kubevirt.restart_vm(self.cluster.scenario, command.rsplit(maxsplit=1)[-1])
            )
        return output.read_text()


@pytest.fixture
def cluster(plane: ControlPlane, longhorn: Longhorn) -> Iterator[ReleasePods]:
    """Four nodes, and an existing VM with the claim `disk1`."""
    volume = {"name": "root", "persistentVolumeClaim": {"claimName": "disk1"}}
    cluster = ReleasePods(kubevirt.scenario_with_vm(plane, longhorn, 4, {"spec": {"volumes": [volume]}}))
    yield cluster
    cluster.stop()
    cluster.release.uninstall("--ignore-not-found")
    cluster.scenario.close()


@pytest.mark.controlplane
def test_the_commands_of_the_guides_install_upgrade_and_uninstall(tmp_path: Path, cluster: ReleasePods) -> None:
    scenario, release = cluster.scenario, cluster.release
    _, node = scenario.add_attached_volume()
    workstation = Workstation(tmp_path, cluster)
    (pull_secret,) = (each for each in commands(guide("platforms"), "Install from a mirror") if " secret " in each)
    workstation.run(pull_secret)  # test_guides.py renders the chart with it
    cluster.plane.kubectl("delete", "secret", "mirror", "-n", NAMESPACE)
    outputs, modes = {}, []
    for command in itertools.chain(*(commands(guide(page), *sections) for page, sections in JOURNEY.items())):
        # The guide's upgrade changes no value. With one, the modes show that upgrade and rollback took effect.
        change = "--reset-then-reuse-values --set settings.affinityMode=preferred"
        outputs[command] = workstation.run(command.replace("--reset-then-reuse-values", change))
        if command.startswith(("helm install", "helm upgrade", "helm rollback")):
            modes.append(env_values(container(release.deployment()))["CO_SCHEDULE_AFFINITY_MODE"])

    def output_of(prefix: str) -> str:
        (found,) = (output for command, output in outputs.items() if command.startswith(prefix))
        return found

    assert "Phase:          Succeeded" in output_of("helm test")
    assert output_of("kubectl get pod").startswith(f"CoScheduled: pinned to {node}, which serves claim disk1")
    assert f"on {node}" in output_of("kubevirt-scheduler explain")
    assert modes == ["required", "preferred", "required"]
    vm = cluster.plane.request("GET", kubevirt.vm_path(scenario, "vm1"))
    assert vm["spec"]["template"]["metadata"]["annotations"] == {OPT_IN_ANNOTATIONS[0]: "true"}
    # The last command has uninstalled the release: the VM still starts, without a decision.
    assert (
        "kubevirt-scheduler/decision"
        not in scenario.dry_run(kubevirt.launcher_pod(scenario, "vm1"))["metadata"]["annotations"]
    )
