"""The chart in special environments: OpenShift, unreachable pod IPs, and numeric namespace or release names."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.controlplane.api import ApiError
from tests.support.controlplane.plane import ControlPlane
from tests.support.helm_chart import NAME, Object, find_one, render, template
from tests.support.scenario import Scenario

pytestmark = pytest.mark.controlplane

OPENSHIFT = "--api-versions=security.openshift.io/v1"
ID_FIELDS = {"runAsUser", "runAsGroup", "fsGroup", "supplementalGroups"}
# Together, these values render each object and each field that can hold a namespace.
EVERYTHING: dict[str, Object] = {
    "self": {
        **{name: {"enabled": True} for name in ("serviceMonitor", "prometheusRule", "dashboard")},
        "networkPolicy": {"enabled": True, "apiServers": ["192.0.2.0/28"]},
    },
    "cert-manager": {"certificates": {"source": "cert-manager"}},
}


def pod_specs(objects: list[Object]) -> dict[str, Object]:
    """The pod specs by name: the replicas, `helm test`."""
    found = {each["metadata"]["name"]: each["spec"]["template"]["spec"]
             for each in objects if each["kind"] == "Deployment"}  # fmt: skip
    return found | {each["metadata"]["name"]: each["spec"] for each in objects if each["kind"] == "Pod"}


# --- OpenShift ---


@pytest.mark.parametrize(
    ("openshift", "cluster", "ids"),
    [
        ("auto", [], dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), 65532)),
        ("auto", [OPENSHIFT], {}),
        (True, [], {}),
        (False, [OPENSHIFT], dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), 65532)),
    ],
    ids=["auto off OpenShift", "auto on OpenShift", "forced on", "forced off"],
)
def test_pods_name_no_user_on_openshift_and_user_65532_elsewhere(
    openshift: Any, cluster: list[str], ids: dict[str, int]
) -> None:
    found = pod_specs(render({"openshift": openshift}, *cluster))
    assert set(found) == {NAME, f"{NAME}-test"}
    for pod in found.values():
        context = pod["securityContext"]
        assert {key: value for key, value in context.items() if key in ID_FIELDS} == ids
        assert (context["runAsNonRoot"], context["seccompProfile"]["type"]) == (True, "RuntimeDefault")
        assert not [key for each in pod["containers"] for key in each["securityContext"] if key in ID_FIELDS]


# --- host network ---


def test_on_the_host_network_an_upgrade_needs_no_third_node_and_cluster_names_resolve() -> None:
    deployment = find_one(render({"hostNetwork": True}), "Deployment")["spec"]
    assert deployment["strategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}
    assert deployment["template"]["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"


def test_pod_security_admits_all_pods_and_rejects_replicas_on_the_host_network(
    plane: ControlPlane, plain_scenario: Scenario
) -> None:
    path = f"/api/v1/namespaces/{plain_scenario.namespace}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    plane.request("PATCH", path, {"metadata": {"labels": labels}})

    def post(host_network: bool) -> None:
        for name, spec in pod_specs(render({"hostNetwork": host_network, "priorityClassName": ""})).items():
            body = {"metadata": {"name": name}, "spec": spec | {"serviceAccountName": "default"}}
            plane.request("POST", f"{path}/pods?dryRun=All", body)

    post(host_network=False)
    labels["pod-security.kubernetes.io/enforce"] = "baseline"
    plane.request("PATCH", path, {"metadata": {"labels": labels}})
    with pytest.raises(ApiError, match=r"violates PodSecurity .baseline:latest.: host namespaces"):
        post(host_network=True)


# --- numeric names ---


@pytest.mark.parametrize("values", EVERYTHING.values(), ids=EVERYTHING)
def test_numeric_namespace_and_release_names_are_always_quoted(values: Object) -> None:
    """Check the quotes, not the types: 1e3 is a number to Helm, but not to Python's YAML parser."""
    number = "1e3"
    names = {"settings": {"longhornNamespace": number}, "webhook": {"excludedNamespaces": [number]}}
    names |= {"test": {"namespace": "5678"}, "fullnameOverride": "near"}
    rendered = template(values | names, f"--namespace={number}", release=number)
    assert len(re.findall(rf"['\"]({number}|5678)['\"]", rendered)) > 40
    assert re.findall(rf"^.*(?:[:\[,-] *)(?:{number}|5678) *(?:[,}}\]].*)?$", rendered, re.MULTILINE) == []
