"""The pages about versions name those that the tests use, that the code requires, and that have known bugs."""

from __future__ import annotations

import configparser
import re

import yaml

from tests.docs.test_commands import rows
from tests.support.paths import CHART, DOCS, ROOT
from webhook.commands.doctor.products import BUGS, LONGHORN
from webhook.fleet.nfs import DELETES_PODS_FROM

PAGE = DOCS / "reference/versions.md"
REQUIRED = {cells[0]: cells[1] for cells in rows(PAGE, "component")}
TESTED = {cells[0]: cells[2] for cells in rows(PAGE, "component")}


def pinned(module: str, folder: str = "[!o]*") -> str:
    """The version of a Go module that the tests build."""
    files = ROOT.glob(f"tests/support/{folder}/go.mod")
    (version,) = {
        found for file in files for found in re.findall(rf"^\s*{module} v(\S+)", file.read_text(), re.MULTILINE)
    }
    return version


def test_the_tested_versions_are_those_that_the_tests_build() -> None:
    newest, oldest = pinned("k8s.io/kubernetes"), pinned("k8s.io/kubernetes", "oldest_kubernetes")
    assert TESTED["Kubernetes"].startswith(f"{newest} and {oldest}:")
    assert REQUIRED["Kubernetes"] == f"{oldest.rpartition('.')[0]} or newer"
    assert TESTED["Helm"] == f"{pinned('helm.sh/helm/v4')} and {pinned('helm.sh/helm/v3')}"
    assert TESTED["cert-manager (optional)"] == pinned("github.com/cert-manager/cert-manager")


def test_the_required_versions_are_those_of_the_chart_and_the_package() -> None:
    oldest = REQUIRED["Kubernetes"].split()[0]
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"] == f">={oldest}.0-0"
    package = configparser.ConfigParser()
    package.read(ROOT / "setup.cfg")
    assert f">={REQUIRED['Python, for the command'].split()[0]}" == package["options"]["python_requires"]


def test_the_versions_of_longhorn_that_delete_pods_are_those_of_doctor() -> None:
    versions = [cells[0] for cells in rows(PAGE, "Longhorn | the running VM")]
    assert versions[-1] == "{}.{} or newer".format(*DELETES_PODS_FROM)


def test_each_known_bug_of_doctor_has_its_issue_and_the_reference_names_the_version_without_any() -> None:
    for bug in BUGS:
        assert bug.first < bug.fixed
        assert re.fullmatch(rf"{LONGHORN}/\d+", bug.sources[0]), bug
    newest = ".".join(map(str, max(bug.fixed for bug in BUGS)))
    assert f"Longhorn {newest} has none of them." in (DOCS / "reference/doctor.md").read_text()
