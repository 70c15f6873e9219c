"""The guide to GitOps: its manifests fit the chart, and no apply reverts what the webhook writes.

Argo CD and Flux don't run here; kubectl applies as they do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.docs.test_guides import manifests, needs_helm
from tests.docs.test_install import Workstation, guide
from tests.docs.transcripts import commands
from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.helm_chart import NAME, container, find_one, render
from tests.support.helm_release import Release
from tests.support.longhorn import Longhorn
from tests.support.release_pods import ReleasePods
from tests.support.scenario import Scenario

WRITTEN = {
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration", NAME): "caBundle",
    ("", "Secret", f"{NAME}-tls"): "data",
    ("coordination.k8s.io", "Lease", f"{NAME}-release"): "spec",
}


def rendered() -> list[Object]:
    """The chart as a GitOps tool renders it, without hooks."""
    return [each for each in render() if "helm.sh/hook" not in each["metadata"].get("annotations", {})]


def live_objects(release: Release) -> list[Object]:
    """The three objects into which the webhook writes, in the order of WRITTEN."""
    paths = release.configuration, release.secret, release.lease
    return [without_times(release.plane.request("GET", path)) for path in paths]


def without_times(item: Object) -> Object:
    """Remove the metadata, and the time at which a Lease was renewed."""
    item.pop("metadata")
    item.get("spec", {}).pop("renewTime", None)
    return item


@pytest.fixture
def cluster(plane: ControlPlane, longhorn: Longhorn) -> Iterator[ReleasePods]:
    cluster = ReleasePods(Scenario(plane, longhorn, None))
    yield cluster
    cluster.stop()
    plane.kubectl("delete", "--ignore-not-found", "-f", "-", input=yaml.safe_dump_all(rendered()))
    cluster.scenario.close()


@needs_helm
def test_both_tools_install_the_release_of_the_guides_with_values_that_the_chart_accepts() -> None:
    application, repository, release = manifests("platforms")
    versions = {each["kind"]: each["apiVersion"] for each in (application, repository, release)}
    assert versions == {
        "Application": "argoproj.io/v1alpha1",
        "GitRepository": "source.toolkit.fluxcd.io/v1",
        "HelmRelease": "helm.toolkit.fluxcd.io/v2",
    }
    assert release["spec"]["chart"]["spec"]["sourceRef"] == {"kind": "GitRepository", "name": NAME}
    source = application["spec"]["source"]
    assert application["metadata"]["name"] == source["helm"]["releaseName"] == release["spec"]["releaseName"] == NAME
    assert source["path"] == release["spec"]["chart"]["spec"]["chart"] == "charts/kubevirt-scheduler"
    for values in source["helm"]["valuesObject"], release["spec"]["values"]:
        assert container(find_one(render(values), "Deployment"))["image"].startswith(values["image"]["repository"])


@needs_helm
def test_both_tools_ignore_exactly_what_the_webhook_writes() -> None:
    application, _, release = manifests("platforms")
    objects = render()
    webhooks = find_one(objects, "MutatingWebhookConfiguration")["webhooks"]
    paths = {
        "caBundle": [f"/webhooks/{number}/clientConfig/caBundle" for number in range(len(webhooks))],
        "data": ["/data"],
        "spec": ["/spec"],
    }
    rules = release["spec"]["driftDetection"]["ignore"]
    flux = {(each["target"]["kind"], each["target"]["name"]): each["paths"] for each in rules}
    assert flux == {(kind, name): paths[field] for (_, kind, name), field in WRITTEN.items()}
    argo_cd = {
        (each["group"], each["kind"], each["name"]): each.get("jsonPointers") or each["jqPathExpressions"]
        for each in application["spec"]["ignoreDifferences"]
    }
    expected = {key: paths[field] for key, field in WRITTEN.items() if key[1] != "Lease"}  # Argo CD never creates one
    assert argo_cd == expected | {next(iter(WRITTEN)): [".webhooks[]?.clientConfig.caBundle"]}
    for group, kind, name in WRITTEN:
        assert find_one(objects, kind, name)["apiVersion"].rpartition("/")[0] == group


@pytest.mark.controlplane
def test_only_a_replacement_reverts_what_the_webhook_writes(tmp_path: Path, cluster: ReleasePods) -> None:
    plane, release, everything = cluster.plane, cluster.release, yaml.safe_dump_all(rendered())
    without_lease = yaml.safe_dump_all([each for each in rendered() if each["kind"] != "Lease"])
    server_side = ("apply", "--server-side", "--force-conflicts", "--field-manager=helm-controller", "-f", "-")

    # Argo CD creates everything but the Lease, which the reader creates.
    plane.kubectl("apply", "-f", "-", input=without_lease)
    cluster.reconcile()
    workstation = Workstation(tmp_path, cluster)
    for command in commands(guide("platforms"), "Argo CD"):
        workstation.run(command)
    plane.wait(release.has_ca_bundle, 20, "the caBundle")
    plane.wait(lambda: plane.request("GET", release.lease).get("spec", {}).get("holderIdentity"), 20, "a leader")
    before = live_objects(release)
    assert {"tls.crt", "tls.key", "ca.crt"} <= set(before[1]["data"])

    plane.kubectl("apply", "-f", "-", input=without_lease)
    assert live_objects(release) == before
    plane.kubectl(*server_side, input=everything)  # Flux, and Argo CD with ServerSideApply=true
    assert live_objects(release) == before

    # Flux compares the live objects with a server-side dry run, to detect drift.
    for (_, kind, name), live in zip(WRITTEN, before, strict=True):
        one = yaml.safe_dump(find_one(rendered(), kind, name))
        applied = plane.kubectl(*server_side, "--dry-run=server", "-o", "json", input=one)
        assert without_times(json.loads(applied)) == live

    # Argo CD with Replace=true. The replicas repair the objects at once, so this looks at kubectl's response.
    for (_, kind, name), field in WRITTEN.items():
        one = yaml.safe_dump(find_one(rendered(), kind, name))
        replaced = plane.kubectl("replace", "-o", "json", "-f", "-", input=one)
        assert f'"{field}": ' not in replaced.replace('"spec": {}', "")
