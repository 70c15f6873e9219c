"""Where it is installed: on OpenShift, where pods can't be reached, in a namespace or a release that is a number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.support.controlplane.api import ApiError
from tests.support.controlplane.plane import ControlPlane
from tests.support.helm_chart import NAME, Object, only, render, template
from tests.support.helm_release import Release
from tests.support.longhorn import Longhorn
from tests.support.scenario import POOL, World

pytestmark = pytest.mark.controlplane

SCHEDULER = {"scheduler": {"enabled": True}}
OPENSHIFT = "--api-versions=security.openshift.io/v1"
IDS = {"runAsUser", "runAsGroup", "fsGroup", "supplementalGroups"}
# Together each object and each field that may name a namespace.
LOAD_AWARE = {"enabled": True, "image": {"tag": "v0.34.7"}}
PROMETHEUS = {"address": "https://prometheus.example.com", "token": "not-a-real-token"}
EVERYTHING: dict[str, Object] = {
    "self": {
        **{name: {"enabled": True} for name in ("serviceMonitor", "prometheusRule", "dashboard")},
        "networkPolicy": {"enabled": True, "apiServers": ["192.0.2.0/28"]},
        "scheduler": LOAD_AWARE | {"loadAware": {"enabled": True}},
    },
    "cert-manager": {"certificates": {"source": "cert-manager"}},
    "a token": {
        "scheduler": LOAD_AWARE
        | {"loadAware": {"enabled": True, "metricProvider": "Prometheus", "prometheus": PROMETHEUS}}
    },
}


def pods(objects: list[Object]) -> dict[str, Object]:
    """What is said of each pod: the replicas, the second scheduler, the test."""
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
    ids=["elsewhere", "seen", "told", "denied"],
)
def test_pods_leave_it_to_openshift_which_user_they_are_and_to_nobody_else(
    openshift: Any, cluster: list[str], ids: dict[str, int]
) -> None:
    found = pods(render({"openshift": openshift} | SCHEDULER, *cluster))
    assert set(found) == {NAME, f"{NAME}-kube-scheduler", f"{NAME}-test"}
    for pod in found.values():
        context = pod["securityContext"]
        assert {key: value for key, value in context.items() if key in IDS} == ids
        assert (context["runAsNonRoot"], context["seccompProfile"]["type"]) == (True, "RuntimeDefault")
        assert not [key for each in pod["containers"] for key in each["securityContext"] if key in IDS]


# --- the nodes' network ---


def test_the_replicas_and_they_alone_are_on_their_nodes_network_where_that_is_asked_for() -> None:
    before, after = (render({"hostNetwork": on} | SCHEDULER) for on in (False, True))
    assert {name for name, pod in pods(after).items() if pod != pods(before)[name]} == {NAME}
    replica = pods(after)[NAME]
    assert replica == pods(before)[NAME] | {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    # The Service and the probes find the ports by their names, on whatever network.
    assert only(after, "Service") == only(before, "Service")
    assert all("hostPort" not in port for each in replica["containers"] for port in each["ports"])


@pytest.fixture
def world(plane: ControlPlane, longhorn: Longhorn) -> Iterator[World]:
    world = World(plane, longhorn, None)
    yield world
    world.close()


@pytest.fixture
def release(plane: ControlPlane, world: World) -> Iterator[Release]:
    """As many nodes as replicas, whose ports are those of their nodes."""
    world.add_nodes(2)
    release = Release(plane, "chart-host")
    yield release.install("--set=hostNetwork=true", f"--set=nodeSelector.{POOL}={world.namespace}")
    release.uninstall()


def test_two_replicas_come_to_stand_on_two_nodes_and_an_upgrade_needs_no_third(
    plane: ControlPlane, world: World, release: Release
) -> None:
    def rolled_out() -> bool:
        deployment = release.deployment()
        status, seen = deployment["status"], deployment["status"].get("observedGeneration")
        counts = [status.get(key) for key in ("replicas", "updatedReplicas", "availableReplicas")]
        return bool(seen == deployment["metadata"]["generation"] and counts == [2, 2, 2])

    def nodes() -> list[str]:
        query = f"labelSelector=app.kubernetes.io/instance%3D{release.name}"
        found = plane.request("GET", f"/api/v1/namespaces/{release.namespace}/pods?{query}")["items"]
        return sorted(each["spec"]["nodeName"] for each in found if "deletionTimestamp" not in each["metadata"])

    plane.wait(rolled_out, 20, "both replicas")
    assert nodes() == sorted(world.node_names)
    release.upgrade("--reuse-values", "--set=settings.logLevel=warning")
    plane.wait(rolled_out, 20, "both replicas anew")
    assert nodes() == sorted(world.node_names)


def test_pod_security_takes_the_replicas_and_on_their_nodes_network_refuses_them(
    plane: ControlPlane, world: World
) -> None:
    path = f"/api/v1/namespaces/{world.namespace}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    plane.request("PATCH", path, {"metadata": {"labels": labels}})

    def post(on: bool) -> None:
        pod = pods(render({"hostNetwork": on, "priorityClassName": ""}))[NAME] | {"serviceAccountName": "default"}
        plane.request("POST", f"{path}/pods?dryRun=All", {"metadata": {"name": "replica"}, "spec": pod})

    post(on=False)
    labels["pod-security.kubernetes.io/enforce"] = "baseline"
    plane.request("PATCH", path, {"metadata": {"labels": labels}})
    with pytest.raises(ApiError, match=r"violates PodSecurity .baseline:latest.: host namespaces"):
        post(on=True)


# --- numbers ---


def scalars(node: yaml.Node | None) -> Iterator[yaml.ScalarNode]:
    """Each scalar of a document, and of a scheduler's configuration in it."""
    if node is None:  # a document with comments alone
        return
    if isinstance(node, yaml.ScalarNode):
        yield node
        if node.value.startswith("apiVersion: kubescheduler.config.k8s.io/"):
            yield from scalars(yaml.compose(node.value))
        return
    children = sum(node.value, ()) if isinstance(node, yaml.MappingNode) else node.value
    for child in children:
        yield from scalars(child)


@pytest.mark.parametrize("number", ["1234", "1e3"])
@pytest.mark.parametrize("values", EVERYTHING.values(), ids=EVERYTHING)
def test_a_namespace_or_a_release_that_is_a_number_is_quoted_wherever_it_stands(number: str, values: Object) -> None:
    """By the quotes, for Helm and Python do not agree on what is a number: 1e3 is one to Helm alone."""
    told = {"settings": {"longhornNamespace": number}, "webhook": {"excludedNamespaces": [number]}}
    rendered = template(values | told | {"test": {"namespace": "5678"}}, f"--namespace={number}", release=number)
    found = [node for document in yaml.compose_all(rendered) for node in scalars(document)]
    written = [node for node in found if node.value in (number, "5678")]
    assert len(written) > 40
    assert [str(node.start_mark) for node in written if node.style not in ("'", '"')] == []
