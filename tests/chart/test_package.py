"""The files that `make package` builds without the network: the chart, the krew manifest, and the checksums."""

from __future__ import annotations

import hashlib
import runpy
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.controlplane import build
from tests.support.helm_chart import CHART, NAME, alert_rules, container, find_one, helm
from tests.support.paths import ROOT, SECONDARY_CHART
from webhook import __version__

pytestmark = pytest.mark.controlplane  # Helm is built together with the control plane

DIGEST = f"sha256:{'0123456789abcdef' * 4}"
SOURCE = "https://git.example.com/kubevirt-scheduler"
ARCHIVE = f"{NAME}-{__version__}.tgz"
# https://artifacthub.io/docs/topics/annotations/helm/
KINDS = {"added", "changed", "deprecated", "removed", "fixed", "security"}


def package(out: Path, image: str, *options: str) -> None:
    command = [ROOT / ".ci/package.py", f"--out={out}", f"--image={image}", f"--version={__version__}", *options]
    helm_program = f"--helm={build.binaries()['helm']}"
    subprocess.run([sys.executable, *command, f"--source={SOURCE}", helm_program], check=True, capture_output=True)


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    for platform in "linux-amd64", "darwin-arm64":
        (out / f"kubectl-coschedule-{platform}.tar.gz").write_bytes(platform.encode())
    (out / "kubevirt-scheduler.spdx.json").write_text("{}")
    package(out, "registry.example.com:5000/storage/kubevirt-scheduler:1.2.3", f"--digest={DIGEST}")
    return out


@pytest.fixture(scope="module")
def metadata(dist: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(helm("show", "chart", dist / ARCHIVE))
    return found


def test_the_packaged_chart_runs_the_image_by_its_digest_and_links_to_the_runbooks_of_its_version(dist: Path) -> None:
    all_alerts = ["--set=prometheusRule.enabled=true", "--set=recolocate.schedule=0 3 * * *"]
    objects = [each for each in yaml.safe_load_all(helm("template", NAME, dist / ARCHIVE, *all_alerts)) if each]
    image = f"registry.example.com:5000/storage/kubevirt-scheduler:1.2.3@{DIGEST}"
    assert container(find_one(objects, "Deployment"))["image"] == image
    page = f"{SOURCE}/blob/v{__version__}/docs/runbooks/README.md#"
    for rule in alert_rules(objects):
        assert rule["annotations"]["runbook_url"] == f"{page}{rule['alert'].lower()}"


@pytest.mark.parametrize("chart", [CHART, SECONDARY_CHART], ids=lambda chart: chart.name)
def test_a_packaged_chart_passes_helm_lint_without_a_remark(dist: Path, tmp_path: Path, chart: Path) -> None:
    version = yaml.safe_load((chart / "Chart.yaml").read_text())["version"]
    with tarfile.open(dist / f"{chart.name}-{version}.tgz") as archive:
        archive.extractall(tmp_path, filter="data")
    output = helm("lint", "--strict", tmp_path / chart.name)
    assert "[INFO]" not in output
    assert {"LICENSE", "README.md", "values.schema.json"} <= {file.name for file in (tmp_path / chart.name).iterdir()}
    assert not (tmp_path / chart.name / "ci").exists()


def test_artifact_hub_finds_category_images_links_and_changes(metadata: dict[str, Any]) -> None:
    annotations = {key.partition("/")[2]: yaml.safe_load(text) for key, text in metadata["annotations"].items()}
    assert (annotations["category"], annotations["operator"], annotations["crds"]) == ("storage", False, [])
    image = f"registry.example.com:5000/storage/kubevirt-scheduler:1.2.3@{DIGEST}"
    assert annotations["images"] == [{"name": NAME, "image": image}]
    links = {link["name"]: link["url"] for link in annotations["links"]}
    assert (links["Documentation"], links["support"]) == (f"{SOURCE}#readme", f"{SOURCE}/issues")
    page, _, heading = links["Verify the signature"].removeprefix(f"{SOURCE}/blob/v{__version__}/").partition("#")
    assert f"## {heading.title()}\n" in (ROOT / page).read_text()
    assert {change["kind"] for change in annotations["changes"]} <= KINDS
    assert all(change["description"] for change in annotations["changes"])
    assert len(annotations["changes"]) > 5
    assert (metadata["home"], metadata["sources"]) == (SOURCE, [SOURCE])
    assert metadata["maintainers"]


def test_artifact_hub_finds_links_and_an_icon_of_the_second_chart_too(dist: Path) -> None:
    (archive,) = dist.glob("secondary-scheduler-*.tgz")
    chart = yaml.safe_load(helm("show", "chart", archive))
    assert len(yaml.safe_load(chart["annotations"]["artifacthub.io/links"])) == 5
    assert not {"artifacthub.io/changes", "artifacthub.io/images"} & set(chart["annotations"])
    assert chart["icon"] == yaml.safe_load((CHART / "Chart.yaml").read_text())["icon"]
    assert (chart["home"], chart["sources"]) == (SOURCE, [SOURCE])


def test_the_krew_manifest_names_each_archive_with_its_hash(dist: Path) -> None:
    manifest = yaml.safe_load((dist / "coschedule.yaml").read_text())
    assert (manifest["kind"], manifest["spec"]["version"]) == ("Plugin", f"v{__version__}")
    platforms = {each["uri"].rpartition("/")[2]: each for each in manifest["spec"]["platforms"]}
    assert len(platforms) == 2
    for name, platform in platforms.items():
        assert platform["uri"].startswith(f"{SOURCE}/releases/download/v{__version__}/")
        assert platform["sha256"] == hashlib.sha256((dist / name).read_bytes()).hexdigest()
    linux = platforms["kubectl-coschedule-linux-amd64.tar.gz"]
    assert linux["selector"] == {"matchLabels": {"os": "linux", "arch": "amd64"}}


def test_sha256sum_can_verify_every_file(dist: Path) -> None:
    files = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in dist.iterdir()}
    lines = (dist / "SHA256SUMS").read_text().splitlines()
    assert sorted(lines) == sorted(f"{digest}  {name}" for name, digest in files.items() if name != "SHA256SUMS")


def test_an_image_name_is_split_into_registry_repository_and_tag() -> None:
    read_image = runpy.run_path(str(ROOT / ".ci/package.py"))["read_image"]
    assert read_image("kubevirt-scheduler:1") == {"registry": "", "repository": "kubevirt-scheduler", "tag": "1"}
    assert read_image("localhost/a/b") == {"registry": "localhost", "repository": "a/b", "tag": ""}
    assert read_image("docker.example.com/b:v1") == {"registry": "docker.example.com", "repository": "b", "tag": "v1"}
