"""A release from a clean tag: image, SBOM, charts and plugin, with a registry on loopback."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.image.image import Image, call
from tests.support.controlplane import build
from tests.support.controlplane.process import Process, free_ports, running
from tests.support.helm_chart import NAME, SECONDARY, container, find_one, helm
from tests.support.paths import EXAMPLES, ROOT
from webhook import __version__

pytestmark = [pytest.mark.image, pytest.mark.needs("buildah", "mmdebstrap", "crane", "krew", "syft")]

SOURCE = "https://git.example.com/kubevirt-scheduler"
PLUGIN = "kubectl-coschedule-linux-amd64.tar.gz"


@dataclass(frozen=True, slots=True)
class Release:
    """What was published: the registry, the digest of the image, each chart with its digest, and the files."""

    registry: str
    digest: str
    charts: list[str]
    dist: Path


def make(tree: Path, *arguments: str) -> str:
    """Run a target in the tagged repository, with the environment of this one."""
    venv = Path(sys.prefix)
    return call(
        [
            "make",
            f"--directory={tree}",
            "--no-print-directory",
            f"--old-file={venv}/installed",
            f"VENV={venv}",
            *arguments,
        ]
    )


@pytest.fixture(scope="module")
def release(image: Image, tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    folder = tmp_path_factory.mktemp("registry")
    address = f"127.0.0.1:{free_ports(1)[0]}"
    crane = str(build.rare("crane")["crane"])
    serve = [crane, "registry", "serve", f"--address={address}", f"--disk={folder}"]
    with running(Process("registry", serve, f"http://{address}/v2/", tmp_path_factory.mktemp("log"))):
        name = f"{address}/storage/kubevirt-scheduler:v{__version__}"
        digest = image.push(name, folder / "digest")
        tools = [f"HELM={build.binaries()['helm']}", f"SYFT={build.rare('syft')['syft']}"]
        scanned = f"SBOM_OF=registry:{name}@{digest}"
        names = [f"IMAGE={name}", f"DIGEST={digest}", f"SOURCE={SOURCE}", scanned, "PLATFORMS=linux-amd64"]
        make(tree, "package", *tools, *names)
        charts = make(tree, "push-charts", f"CHARTS=oci://{address}/charts", "HELM_ARGS=--plain-http", *tools)
        yield Release(address, digest, charts.split(), tree / "dist")


def test_the_sbom_names_the_packages_of_the_lock_and_of_debian(release: Release) -> None:
    sbom = json.loads((release.dist / f"{NAME}-{__version__}.spdx.json").read_text())
    found = {(package["name"].lower().replace("_", "-"), package.get("versionInfo")) for package in sbom["packages"]}
    locked = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements-image.lock").read_text(), re.MULTILINE)
    assert len(locked) > 10
    assert set(locked) - found == set()
    assert {"libc6", "python3"} <= {name for name, _ in found}
    checksums = [checksum["checksumValue"] for package in sbom["packages"] for checksum in package.get("checksums", ())]
    assert release.digest.removeprefix("sha256:") in checksums


def test_both_charts_are_pulled_by_their_digests_and_the_image_is_in_the_registry(
    release: Release, tmp_path: Path
) -> None:
    charts = f"{release.registry}/charts"
    assert [chart.partition("@sha256:")[0] for chart in release.charts] == [f"{charts}/{NAME}", f"{charts}/{SECONDARY}"]
    for chart in release.charts:
        helm("pull", f"oci://{chart}", "--plain-http", f"--destination={tmp_path}")
    chart, _ = sorted(tmp_path.glob("*.tgz"))
    assert chart.name.startswith(f"{NAME}@")
    objects = [each for each in yaml.safe_load_all(helm("template", NAME, chart)) if each]
    image = container(find_one(objects, "Deployment"))["image"]
    assert image == f"{release.registry}/storage/kubevirt-scheduler:v{__version__}@{release.digest}"
    crane = str(build.rare("crane")["crane"])
    config = json.loads(call([crane, "config", image]))
    assert config["config"]["Labels"]["org.opencontainers.image.version"] == __version__


def krew(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"KREW_ROOT": str(home), "KREW_NO_UPGRADE_CHECK": "1"}
    command = [str(build.rare("krew")["krew"]), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_krew_installs_the_plugin_and_it_reports(release: Release, tmp_path: Path) -> None:
    manifest, archive = f"--manifest={release.dist / 'coschedule.yaml'}", f"--archive={release.dist / PLUGIN}"
    install = krew(tmp_path, "install", manifest, archive)
    assert install.returncode == 0, install.stderr
    assert "Installed plugin: coschedule" in install.stderr
    receipt = yaml.safe_load((tmp_path / "receipts" / "coschedule.yaml").read_text())
    assert receipt["spec"]["version"] == f"v{__version__}"
    snapshots = [f"--snapshot={EXAMPLES / name}" for name in ("cluster.yaml", "fleet.yaml")]
    plugin = [str(tmp_path / "bin" / "kubectl-coschedule"), "report", *snapshots, "-n", "shop"]
    assert "Together" in call(plugin, {"PATH": os.environ["PATH"]})
