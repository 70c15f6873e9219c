"""The manifests and the Helm commands of the guides fit the chart.

test_install.py and test_gitops.py run the commands that need an API server.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.docs.test_install import guide
from tests.docs.transcripts import blocks, commands
from tests.support import kubevirt, needs
from tests.support.controlplane import build
from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.helm_chart import NAME, SECONDARY, find_one, render, render_secondary
from tests.support.longhorn import Longhorn
from tests.support.paths import CHART, DOCS, EXAMPLES, ROOT, SECONDARY_CHART

HELM_COMMANDS = [
    (page.stem, shlex.split(command, comments=True))
    for page in [*sorted(DOCS.glob("guides/*.md")), CHART / "README.md", SECONDARY_CHART / "README.md"]
    for command in commands(page)
    if command.startswith(("helm install", "helm upgrade", "helm template"))
]
needs_helm = pytest.mark.controlplane  # Helm is built together with the control plane


def manifests(name: str) -> list[Object]:
    """The objects of a guide's YAML blocks and of the examples that it names."""
    named = re.findall(r"\[examples/([\w-]+\.yaml)\]", guide(name).read_text())
    texts = [*blocks(guide(name), "yaml"), *(EXAMPLES.joinpath(file).read_text() for file in named)]
    return [each for text in texts for each in yaml.safe_load_all(text)]


def run_helm(folder: Path, command: str) -> str:
    """Run a command of a guide in the repository, without a cluster, and return its output."""
    folder.joinpath("helm").symlink_to(build.binaries()["helm"])
    environment = {"PATH": f"{folder}:{os.defpath}", "HOME": str(folder)}
    shell = ["/bin/sh", "-ec", command]
    return subprocess.run(shell, cwd=ROOT, env=environment, check=True, capture_output=True, text=True).stdout


@needs_helm
@pytest.mark.parametrize("command", HELM_COMMANDS, ids=[f"{page}-{words[1]}" for page, words in HELM_COMMANDS])
def test_each_helm_command_uses_existing_values(command: tuple[str, list[str]]) -> None:
    _, words = command
    options = [f"--set={setting}" for option, setting in itertools.pairwise(words) if option == "--set"]
    files = [f"--values={ROOT / file}" for option, file in itertools.pairwise(words) if option == "-f"]
    if words[2] == SECONDARY:
        assert words[3] == "charts/secondary-scheduler"
        assert render_secondary({}, *files, *options)
    else:
        assert words[2:4] == [NAME, "charts/kubevirt-scheduler"]
        assert options or words[1] == "upgrade"
        assert render({}, *options)


@needs_helm
def test_the_air_gapped_guide_shows_the_images_that_the_chart_renders(tmp_path: Path) -> None:
    (block,) = (
        each for each in blocks(guide("platforms"), "console", "Install from a mirror") if "helm template" in each
    )
    command, shown = block.removeprefix("$ ").split("sort -u\n")
    assert run_helm(tmp_path, f"{command}sort -u") == shown


@needs_helm
def test_the_openshift_guide_renders_pods_without_a_user_and_a_group(tmp_path: Path) -> None:
    (command,) = commands(guide("platforms"), "OpenShift")
    rendered = [each for each in yaml.safe_load_all(run_helm(tmp_path, command)) if each]
    context = find_one(rendered, "Deployment")["spec"]["template"]["spec"]["securityContext"]
    assert set(context) == {"runAsNonRoot", "seccompProfile"}
    assert not [each for each in rendered if each["metadata"]["name"].endswith("-test")]


@needs_helm
def test_the_uninstall_guide_deletes_what_a_failed_test_leaves_in_another_namespace() -> None:
    left = {each["kind"].lower() for each in render() if each["metadata"].get("namespace") == "default"}
    (command,) = (each for each in commands(guide("upgrade")) if "-n default" in each)
    assert set(shlex.split(command)[2].split(",")) == left


@pytest.mark.controlplane
def test_the_commands_of_the_guide_to_block_disks_change_the_claim_of_a_vm(
    plane: ControlPlane, longhorn: Longhorn
) -> None:
    disk = {"name": "root", "persistentVolumeClaim": {"claimName": "disk1"}}
    scenario = kubevirt.scenario_with_vm(plane, longhorn, 1, {"spec": {"volumes": [disk]}})
    apply, patch, watch, ready, keep = (
        shlex.split(each)
        for each in re.findall(r"^ *\$ (kubectl (?:.*\n)+?)(?=^ *```)", guide("leave-nfs").read_text(), re.MULTILINE)
    )
    try:
        plane.kubectl(*apply[1:], "--dry-run=server", "--validate=strict", "-n", scenario.namespace)
        plane.kubectl(*patch[1:], "-n", scenario.namespace)
        vm = plane.request("GET", kubevirt.vm_path(scenario, "vm1"))["spec"]
        plane.kubectl(*keep[1:], "-n", scenario.namespace)
        kept = plane.request("GET", kubevirt.vm_path(scenario, "vm1"))["spec"]
    finally:
        scenario.close()
    claims = [each for each in yaml.safe_load_all((ROOT / apply[-1]).read_text()) if each["kind"].endswith("Claim")]
    old, _ = yaml.safe_load_all((EXAMPLES / "vm.yaml").read_text())
    (volume,) = vm["template"]["spec"]["volumes"]
    (claim,) = claims
    assert (vm["updateVolumesStrategy"], volume["persistentVolumeClaim"]["claimName"]) == (
        "Migration",
        claim["metadata"]["name"],
    )
    assert vm == kept | {"updateVolumesStrategy": "Migration"}  # which keeps the new claim
    assert ready[1:3] == ["get", "vmi"]
    assert (claim["spec"]["volumeMode"], claim["spec"]["resources"]) == ("Block", old["spec"]["resources"])
    # KubeVirt's pkg/virt-controller/watch/workload-updater creates the migration with this label and value.
    assert watch[1:5] == ["get", "virtualmachineinstancemigrations", "-l", "kubevirt.io/volume-update-migration=vm1"]


@pytest.mark.needs("openssl")
def test_the_script_for_client_certificates_renews_a_certificate_of_the_same_ca(tmp_path: Path) -> None:
    script = ["sh", str(EXAMPLES / "client-certificates" / "make.sh")]
    made = []
    for _ in range(2):
        subprocess.run(script, cwd=tmp_path, check=True, capture_output=True)
        made.append([tmp_path.joinpath(name).read_bytes() for name in ("client-ca.crt", "webhook-client.crt")])
    assert made[0][0] == made[1][0]
    assert made[0][1] != made[1][1]
    verify = ["verify", "-purpose", "sslclient", "-CAfile", "client-ca.crt", "webhook-client.crt"]
    subprocess.run([needs.find("openssl"), *verify], cwd=tmp_path, check=True, capture_output=True)
