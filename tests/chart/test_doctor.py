"""`doctor` on a real API server: before and after the chart is installed, and for a user with few rights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import crds
from tests.support.command_line import run_cli
from tests.support.controlplane.plane import ControlPlane
from tests.support.helm_chart import container, env_values
from tests.support.helm_release import LONG_TIMEOUT, Release, Replicas
from tests.support.kubevirt import install_crds
from tests.support.longhorn import Longhorn
from tests.support.scenario import Scenario
from tests.support.webhook_process import RBAC, REGISTRATIONS
from webhook.commands.doctor.installed_webhook import CLUSTER_SCOPED, NAMESPACED

pytestmark = pytest.mark.controlplane

NAME = "chart-doctor"
POD_ADDRESS = "10.77.0.{}"  # routed to the replica's process
KUBEVIRT = "chart-doctor-virtualization"
KUBEVIRTS, BINDINGS = f"/apis/kubevirt.io/v1/namespaces/{KUBEVIRT}/kubevirts", f"{RBAC}/clusterrolebindings"
Findings = dict[str, list[tuple[str, str]]]


def run_doctor(kubeconfig: Path, *arguments: str) -> tuple[int, Findings]:
    """Run `doctor`, and return its exit status and the level and text of each finding by check."""
    result = run_cli("doctor", "-o", "json", "--kubeconfig", kubeconfig, *arguments)
    assert result.exit_code in (0, 1, 2), result.output
    found: Findings = {}
    for each in json.loads(result.stdout)["checks"]:
        found.setdefault(each["check"], []).append((each["level"], each["finding"]))
    return result.exit_code, found


def publish_pods(plane: ControlPlane, replicas: Replicas) -> None:
    """Mark the Deployment's pods as Ready, as kubelets do, and connect each of them to a replica."""
    path = f"/api/v1/namespaces/{replicas.release.namespace}/pods"

    def pods() -> list[Any]:
        found: list[Any] = plane.request("GET", path)["items"]
        return found

    plane.wait(lambda: len(pods()) == len(replicas.running), 30, "the Deployment's pods")
    for number, (pod, replica) in enumerate(zip(pods(), replicas.running, strict=True), 1):
        address = POD_ADDRESS.format(number)
        status = {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        plane.request("PATCH", f"{path}/{pod['metadata']['name']}/status", {"status": status})
        plane.route(address, 8080, replica.plain_address)


@pytest.fixture(scope="module")
def virt_controller(plane: ControlPlane) -> Iterator[str]:
    """The account of a virt-controller whose KubeVirt object isn't in one of the usual namespaces."""
    install_crds(plane)
    crds.install(plane, crds.crd("KubeVirt"))
    core, name = f"/api/v1/namespaces/{plane.create_namespace(KUBEVIRT)}", "kubevirt-controller"
    subject = {"kind": "ServiceAccount", "namespace": KUBEVIRT, "name": name}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    labels, spec = {"kubevirt.io": "virt-controller"}, {"containers": [{"name": "c", "image": "x"}]}
    kubevirt = {"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": {"name": "kubevirt"}}
    plane.request("POST", KUBEVIRTS, kubevirt)
    plane.request("POST", f"{core}/serviceaccounts", {"metadata": {"name": name}})
    plane.request("POST", BINDINGS, {"metadata": {"name": KUBEVIRT}, "subjects": [subject], "roleRef": role})
    pod = {"metadata": {"name": "virt-controller-1", "labels": labels}, "spec": spec | {"serviceAccountName": name}}
    plane.request("POST", f"{core}/pods", pod)
    yield f"system:serviceaccount:{KUBEVIRT}:{name}"
    for path in f"{KUBEVIRTS}/kubevirt", f"{BINDINGS}/{KUBEVIRT}", core:
        plane.request("DELETE", path)


@pytest.fixture(scope="module")
def installed(
    plane: ControlPlane,
    longhorn: Longhorn,  # noqa: ARG001 (installs Longhorn's CRDs)
    virt_controller: str,  # noqa: ARG001 (exists before Helm looks it up)
) -> Iterator[Replicas]:
    """Two ready replicas of the chart, with their pods."""
    # No node that a test adds may run the Deployment's pods: kwok would give them addresses of its own.
    release = Release(plane, NAME).install("--set=replicas=2,nodeSelector.no-node=has-this", LONG_TIMEOUT)
    try:
        with Replicas(release) as replicas:
            publish_pods(plane, replicas)
            plane.wait(release.has_ca_bundle, 20, "the caBundle of both webhooks")
            yield replicas
    finally:
        plane.request("DELETE", f"/api/v1/namespaces/{NAME}/pods?gracePeriodSeconds=0")
        release.uninstall()


def options(replicas: Replicas) -> list[str]:
    return ["--webhook-configuration", replicas.release.fullname]


def test_a_healthy_installation_decides_for_the_account_that_helm_looked_up_and_passes_the_checks(
    plane: ControlPlane, plain_scenario: Scenario, virt_controller: str, installed: Replicas
) -> None:
    variables = env_values(container(installed.release.deployment()))
    assert variables["CO_SCHEDULE_KUBEVIRT_ACCOUNTS"] == virt_controller
    (condition, *_) = installed.release.webhooks()[0]["matchConditions"]
    assert f"in ['{virt_controller}']" in condition["expression"]
    plain_scenario.add_nodes(2)
    _, found = run_doctor(plane.kubeconfig, *options(installed))
    assert found["replicas"] == [("ok", "2 of 2 replicas are ready")]
    for check in ("caches", "certificates", "calls", "selection", "other-webhooks", "rights"):
        assert [level for level, _ in found[check]] == ["ok"], found[check]
    assert found["caches"][0][1].startswith("the caches of all ready replicas are up to date (oldest update: ")
    assert found["calls"] == [("ok", "the API server calls the webhook for VMs in namespace default")]
    assert found["accounts"] == [("ok", f"the webhook decides for KubeVirt's controller, {virt_controller}")]
    assert [level for level, _ in found["nodes"]] == ["ok"]


def test_missing_rights_and_an_untrusted_certificate_are_failures(plane: ControlPlane, installed: Replicas) -> None:
    role = f"{RBAC}/clusterroles/{installed.release.fullname}"
    configuration = f"{REGISTRATIONS}/{installed.release.fullname}"
    rules = plane.request("GET", role)["rules"]
    webhooks = plane.request("GET", configuration)["webhooks"]
    kept = [rule for rule in rules if rule["resources"] != ["mutatingwebhookconfigurations"]]
    try:
        # Without its right, the webhook can't repair the caBundle.
        plane.request("PATCH", role, {"rules": kept})
        emptied = [each | {"clientConfig": each["clientConfig"] | {"caBundle": ""}} for each in webhooks]

        def distrusted() -> bool:
            plane.request("PATCH", configuration, {"webhooks": emptied})
            _, found = run_doctor(plane.kubeconfig, *options(installed))
            return found["certificates"][0][0] == "failure" and found["calls"][0][0] == "failure"

        plane.wait(distrusted, 30, "failed calls with an untrusted certificate")
        code, found = run_doctor(plane.kubeconfig, *options(installed))
        account = f"system:serviceaccount:{NAME}:{installed.release.fullname}"
        missing = "get mutatingwebhookconfigurations, update mutatingwebhookconfigurations"
        assert (code, found["rights"]) == (1, [("failure", f"{account} lacks rights: {missing}")])
    finally:
        plane.request("PATCH", role, {"rules": rules})
        plane.request("PATCH", configuration, {"webhooks": webhooks})
        plane.wait(installed.release.has_ca_bundle, 30, "the caBundle of both webhooks")


def test_a_user_with_few_rights_learns_what_was_not_checked(installed: Replicas, kubeconfig: Path) -> None:
    code, found = run_doctor(kubeconfig, *options(installed))
    assert code == 2
    # It goes on with what doesn't depend on the configuration.
    unknown = {check for check, results in found.items() if {level for level, _ in results} == {"unknown"}}
    assert unknown == {"configuration", "kubevirt", "longhorn", "known-bugs"}
    level, finding = found["configuration"][0]
    assert level == "unknown"
    assert finding.startswith(
        "configuration: not checked: the API server responded with 403: mutatingwebhookconfigurations"
    )
    code, found = run_doctor(kubeconfig, "--pre")
    ((level, finding),) = found["rights"]
    assert (code, level, finding.count("create ")) == (1, "failure", len(CLUSTER_SCOPED) + len(NAMESPACED))
