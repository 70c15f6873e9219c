"""charts/secondary-scheduler: a real kube-scheduler with the rendered configuration and rights."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.process import Process, running
from tests.support.helm_chart import (
    NAME,
    NAMESPACE,
    SECONDARY,
    HelmError,
    Object,
    container,
    find_one,
    render_secondary,
)
from tests.support.helm_release import scheduler_process
from tests.support.paths import SECONDARY_CHART
from tests.support.scenario import Scenario

pytestmark = pytest.mark.controlplane

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{NAME}"


@pytest.fixture(scope="module")
def objects() -> list[Object]:
    return render_secondary({"name": NAME})


@pytest.fixture(scope="module")
def credentials(plane: ControlPlane) -> Iterator[Path]:
    """A kubeconfig of the service account of the installed chart, which has only the chart's rights."""
    namespace = f"--namespace={NAMESPACE}"
    plane.helm("install", SECONDARY, str(SECONDARY_CHART), f"--set=name={NAME},nodeSelector.no-node=here", namespace)
    token = plane.service_account_token(NAMESPACE, SECONDARY)
    yield plane.write_kubeconfig(plane.folder / "chart-scheduler-kubeconfig", token)
    plane.helm("uninstall", SECONDARY, namespace)


@pytest.fixture
def replicas(plane: ControlPlane, objects: list[Object], credentials: Path) -> Iterator[list[Process]]:
    """Two healthy replicas, one of which leads."""
    both = [scheduler_process(plane, objects, credentials) for _ in range(2)]
    with running(*both):
        yield both


def lease_holder(plane: ControlPlane) -> str:
    return str(plane.request("GET", LEASE)["spec"].get("holderIdentity", ""))


def test_the_other_replica_takes_over_from_the_leader_and_holds_only_the_lease_of_its_release(
    scenario: Scenario, plane: ControlPlane, replicas: list[Process]
) -> None:
    scenario.add_nodes(8)
    _, node = scenario.add_attached_volume()
    first = scenario.start_vm("vm1", "disk1", schedulerName=NAME)
    assert scenario.wait_running(first) == node
    assert scenario.scheduler_of(first) == NAME
    leader = plane.wait(lambda: lease_holder(plane), 20, "a leader")
    (leading,) = (each for each in replicas if "Successfully acquired lease" in each.log.read_text())
    leading.should_run = False
    os.kill(leading.pid, signal.SIGTERM)  # the leader releases its Lease
    other = plane.wait(lambda: lease_holder(plane) not in ("", leader) and lease_holder(plane), 40, "another leader")
    second = scenario.start_vm("vm2", "disk1", schedulerName=NAME)
    assert scenario.wait_running(second) == node
    assert scenario.scheduler_of(second) == NAME
    for each in replicas:
        assert [line for line in each.log.read_text().splitlines() if "forbidden" in line.lower()] == []
    leases = plane.request("GET", "/apis/coordination.k8s.io/v1/leases")["items"]
    held = [each["metadata"]["name"] for each in leases if each["spec"].get("holderIdentity") == other]
    assert held == [NAME]


# --- Trimaran: compared with upstream's types, because upstream's scheduler isn't built here ---

# https://github.com/kubernetes-sigs/scheduler-plugins/blob/master/apis/config/v1/types.go: JSON field names and types.
PROVIDER = {"type": str, "address": str, "token": str, "insecureSkipVerify": bool}
# apis/config/v1/defaults.go
DEFAULTS = {
    "TargetLoadPacking": {"targetUtilization": 40, "defaultRequestsMultiplier": "1.5"},
    "LoadVariationRiskBalancing": {"safeVarianceMargin": 1, "safeVarianceSensitivity": 1},
}
TRIMARAN = {
    "trimaran-values.yaml": ("TargetLoadPacking", ["nodes"]),
    "trimaran-prometheus-values.yaml": ("LoadVariationRiskBalancing", []),
}


def profile(config: str) -> Object:
    (found,) = yaml.safe_load(config)["profiles"]
    return found


@pytest.mark.parametrize("file", TRIMARAN)
def test_the_values_of_trimaran_have_upstream_fields_and_defaults(file: str) -> None:
    plugin, resources = TRIMARAN[file]
    objects = render_secondary(SECONDARY_CHART / file)
    rendered = profile(find_one(objects, "ConfigMap")["data"]["config.yaml"])
    (configured,) = rendered["pluginConfig"]
    provider = configured["args"]["metricProvider"]
    assert rendered["plugins"]["score"]["enabled"] == [{"name": plugin}]
    assert (configured["name"], configured["args"]) == (plugin, DEFAULTS[plugin] | {"metricProvider": provider})
    assert all(isinstance(value, PROVIDER[key]) for key, value in provider.items())
    assert provider.get("insecureSkipVerify") is not True
    # Upstream reads the metrics server only if it is the configured provider.
    roles = [each["rules"] for each in objects if each["kind"] == "ClusterRole"]
    assert [rule["resources"] for rules in roles for rule in rules] == ([resources] if resources else [])
    image = container(find_one(objects, "Deployment"))["image"]
    assert image == "registry.k8s.io/scheduler-plugins/kube-scheduler:v0.34.7"


def test_a_ca_is_trusted_in_addition_to_those_of_the_image_and_config_secret_is_mounted_unchanged() -> None:
    objects = render_secondary({"caConfigMap": "ca", "configSecret": "mine"})
    assert not [each for each in objects if each["kind"] == "ConfigMap" or each["metadata"]["name"] == "mine"]
    pod = find_one(objects, "Deployment")["spec"]["template"]["spec"]
    assert {"name": "SSL_CERT_DIR", "value": "/etc/ssl/more"} in pod["containers"][0]["env"]
    assert pod["volumes"][0]["secret"]["secretName"] == "mine"
    assert pod["volumes"][1]["configMap"]["name"] == "ca"


def test_kube_scheduler_knows_the_plugins_that_packing_disables_and_has_a_lease_of_its_own_without_one_in_the_secret(
    plane: ControlPlane, credentials: Path
) -> None:
    rendered = find_one(render_secondary(SECONDARY_CHART / "trimaran-values.yaml"), "ConfigMap")["data"]["config.yaml"]
    plugins = profile(rendered)["plugins"]
    plugins["score"].pop("enabled")  # exists only in upstream's scheduler-plugins image
    bare = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    config = yaml.safe_dump(bare | {"profiles": [{"schedulerName": NAME, "plugins": plugins}]})
    config_map: Object = {"kind": "ConfigMap", "metadata": {"name": "mine"}, "data": {"config.yaml": config}}
    objects = [config_map, *render_secondary({"name": NAME, "configSecret": "mine"})]
    process = scheduler_process(plane, objects, credentials)
    with running(process):  # waits until the scheduler is healthy
        plane.wait(
            lambda: "Attempting to acquire leader lease" in process.log.read_text(), 20, "a log line with its Lease"
        )
        assert f'lock="{NAMESPACE}/{NAME}"' in process.log.read_text()


def test_only_a_changed_configuration_restarts_the_scheduler() -> None:
    def pods(**values: object) -> Object:
        found: Object = find_one(render_secondary(values), "Deployment")["spec"]["template"]
        return found

    assert pods() == pods(replicas=3)
    assert pods() != pods(name="my-scheduler")
    assert pods() != pods(profile={"percentageOfNodesToScore": 50})


@pytest.mark.parametrize("version", ["v1.30.0", "v1.33.1-eks-1", "v1.34.2+k3s1"])
def test_a_distribution_version_selects_the_upstream_image(version: str) -> None:
    image = container(find_one(render_secondary({}, f"--kube-version={version}"), "Deployment"))["image"]
    assert image == f"registry.k8s.io/kube-scheduler:{version.partition('-')[0].partition('+')[0]}"


OTHERS: Object = {
    "replicas": 3,
    "image": {"pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "registry"}],
    "caConfigMap": "ca",
    "resources": {"limits": {"memory": "1Gi"}},
    "priorityClassName": "",
    "nodeSelector": {"pool": "infra"},
    "tolerations": [{"operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}],
    "podSecurityContext": {"fsGroup": 1},
    "podLabels": {"mesh": "off"},
    "podAnnotations": {"mesh": "off"},
    "name": "another",
    "profile": {"percentageOfNodesToScore": 50},
    "configSecret": "mine",
}


def test_each_value_has_an_effect() -> None:
    assert set(yaml.safe_load((SECONDARY_CHART / "values.yaml").read_text())) == set(OTHERS)
    assert [name for name, other in OTHERS.items() if render_secondary({name: other}) == render_secondary()] == []


@pytest.mark.parametrize(
    ("values", "arguments", "message"),
    [
        ({"name": "default-scheduler"}, [], "/name"),
        ({"configSecret": "mine", "profile": {"plugins": {}}}, [], "Empty one of the two"),
        ({"image": {"repository": "a/b:1"}}, [], "/image/repository"),
        ({"profile": {"schedulerName": "a"}}, [], "/profile"),
        ({}, ["--kube-version=1.33"], "such as v1.36.3"),
    ],
)
def test_invalid_values_are_refused(values: Object, arguments: list[str], message: str) -> None:
    with pytest.raises(HelmError, match=message):
        render_secondary(values, *arguments)


def test_on_openshift_the_pods_name_no_user() -> None:
    for arguments, has_user in (["--api-versions=security.openshift.io/v1"], False), ([], True):
        pod = find_one(render_secondary({}, *arguments), "Deployment")["spec"]["template"]["spec"]
        assert ("runAsUser" in pod["securityContext"]) is has_user
