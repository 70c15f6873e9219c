"""The chart's second scheduler: the real kube-scheduler, with the rendered configuration and the rendered rights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.process import Process, running
from tests.support.controlplane.rights import are_known, bound, is_granted
from tests.support.helm_chart import CHART, NAME, NAMESPACE, Object, container, only, render
from tests.support.helm_release import scheduler
from tests.support.scenario import World
from tests.support.webhook_process import RBAC

pytestmark = pytest.mark.controlplane

SCHEDULER = f"{NAME}-kube-scheduler"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{NAME}"
PATHS = {
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "Role": f"{RBAC}/namespaces/{{}}/roles",
    "RoleBinding": f"{RBAC}/namespaces/{{}}/rolebindings",
}


def rights(objects: list[Object]) -> list[Object]:
    """The scheduler's account and what it may do."""
    ours = [each for each in objects if each["metadata"]["labels"]["app.kubernetes.io/component"] == "scheduler"]
    return [each for each in ours if each["kind"] in PATHS]


def path_of(item: Object) -> str:
    return PATHS[item["kind"]].format(item["metadata"].get("namespace"))


@pytest.fixture(scope="module")
def objects() -> list[Object]:
    return render({"scheduler": {"enabled": True}})


@pytest.fixture(scope="module")
def credentials(plane: ControlPlane, objects: list[Object]) -> Iterator[Path]:
    """The scheduler's own account, with the chart's rights and no others."""
    made = [item for item in rights(objects) if plane.request("POST", path_of(item), item)]
    token = plane.service_account_token(NAMESPACE, SCHEDULER)
    yield plane.write_kubeconfig(plane.folder / "chart-scheduler-kubeconfig", token)
    for item in made:
        plane.request("DELETE", f"{path_of(item)}/{item['metadata']['name']}")


@pytest.fixture
def replicas(plane: ControlPlane, objects: list[Object], credentials: Path) -> Iterator[list[Process]]:
    """Both replicas, well; one of them leads."""
    both = [scheduler(plane, objects, credentials) for _ in range(2)]
    with running(*both):
        yield both


def holder(plane: ControlPlane) -> str:
    return str(plane.request("GET", LEASE)["spec"].get("holderIdentity", ""))


def test_two_of_them_run_and_one_leads_and_when_it_is_gone_the_other_takes_over(
    world: World, plane: ControlPlane, replicas: list[Process]
) -> None:
    world.add_nodes(8)
    _, node = world.warm_volume()
    first = world.start_vm("vm1", "disk1", schedulerName=NAME)
    assert world.running(first) == node
    assert world.bound_by(first) == NAME
    leader = plane.wait(lambda: holder(plane), 20, "a leader")
    (leading,) = (each for each in replicas if "Successfully acquired lease" in each.log.read_text())
    leading.kill()
    # As after a crash: the Lease is good for 15 seconds more.
    plane.wait(lambda: holder(plane) not in ("", leader), 40, "another leader")
    second = world.start_vm("vm2", "disk1", schedulerName=NAME)
    assert world.running(second) == node
    assert world.bound_by(second) == NAME
    for each in replicas:
        assert [line for line in each.log.read_text().splitlines() if "forbidden" in line.lower()] == []


@pytest.mark.usefixtures("replicas")
def test_its_lease_is_one_of_its_own(plane: ControlPlane) -> None:
    plane.wait(lambda: holder(plane), 20, "a leader")
    # One answer for all: the Lease of replicas that were killed a moment ago may pass to another at any time.
    leases = plane.request("GET", "/apis/coordination.k8s.io/v1/leases")["items"]
    holders = {(each["metadata"]["namespace"], each["metadata"]["name"]): each["spec"].get("holderIdentity")
               for each in leases}  # fmt: skip
    leader = holders[NAMESPACE, NAME]
    ours = [name for name, each in holders.items() if each == leader]
    assert ours == [(NAMESPACE, NAME)]


@pytest.mark.parametrize("right", ["Role", "ClusterRoleBinding"])
def test_each_right_is_needed(plane: ControlPlane, objects: list[Object], credentials: Path, right: str) -> None:
    (item, *_) = (each for each in rights(objects) if each["kind"] == right)
    before = [one for role in bound(plane, NAMESPACE, SCHEDULER) for one in role]
    plane.request("DELETE", f"{path_of(item)}/{item['metadata']['name']}")
    # What it has listed and watches before the API server knows, it is not refused for a long time.
    plane.wait(lambda: not all(is_granted(plane, each) for each in before), 20, f"the loss of the {right}")
    poor = scheduler(plane, objects, credentials)
    poor.start()
    try:
        plane.wait(lambda: "forbidden" in poor.log.read_text(), 20, f"word of the missing {right}")
    finally:
        poor.kill()
        plane.request("POST", path_of(item), item)
        plane.wait(lambda: are_known(plane, NAMESPACE, SCHEDULER), 20, f"the {right} again")


# --- the load-aware plugins: rendered, and held against what upstream decodes; their scheduler is not built here ---

# https://github.com/kubernetes-sigs/scheduler-plugins/blob/master/apis/config/v1/types.go: field and type as in JSON.
SPEC = {"metricProvider": dict}
PROVIDER = {"type": str, "address": str, "token": str, "insecureSkipVerify": bool}
ARGS = {
    "TargetLoadPacking": SPEC | {"targetUtilization": int, "defaultRequestsMultiplier": str},
    "LoadVariationRiskBalancing": SPEC | {"safeVarianceMargin": (int, float), "safeVarianceSensitivity": (int, float)},
    "LowRiskOverCommitment": SPEC | {"smoothingWindowSize": int, "riskLimitWeights": dict},
}
# apis/config/v1/defaults.go
DEFAULTS = {
    "TargetLoadPacking": {"targetUtilization": 40, "defaultRequestsMultiplier": "1.5"},
    "LoadVariationRiskBalancing": {"safeVarianceMargin": 1, "safeVarianceSensitivity": 1},
    "LowRiskOverCommitment": {"smoothingWindowSize": 5, "riskLimitWeights": {"cpu": 0.5, "memory": 0.5}},
}
SERVER = {"type": "KubernetesMetricsServer"}


def load_aware(**chosen: object) -> list[Object]:
    return render(
        {"scheduler": {"enabled": True, "image": {"tag": "v0.34.7"}, "loadAware": {"enabled": True} | chosen}}
    )


def profile(config: str) -> Object:
    (found,) = yaml.safe_load(config)["profiles"]
    return found


@pytest.mark.parametrize("plugin", ARGS)
def test_a_plugin_is_asked_for_with_upstream_s_defaults_and_fields(plugin: str) -> None:
    objects = load_aware(plugin=plugin)
    rendered = profile(only(objects, "ConfigMap")["data"]["config.yaml"])
    (configured,) = rendered["pluginConfig"]
    assert rendered["plugins"]["score"]["enabled"] == [{"name": plugin}]
    assert (configured["name"], configured["args"]) == (plugin, DEFAULTS[plugin] | {"metricProvider": SERVER})
    assert all(isinstance(value, ARGS[plugin][key]) for key, value in configured["args"].items())
    (role,) = (each for each in objects if each["kind"] == "ClusterRole" and each["metadata"]["name"] != NAME)
    assert role["rules"] == [{"apiGroups": ["metrics.k8s.io"], "resources": ["nodes"], "verbs": ["get", "list"]}]
    image = container(only(objects, "Deployment", SCHEDULER))["image"]
    assert image == "registry.k8s.io/scheduler-plugins/kube-scheduler:v0.34.7"


def test_a_token_makes_the_configuration_a_secret_and_its_server_is_verified() -> None:
    objects = render(CHART / "ci" / "load-aware-values.yaml")
    assert [each for each in objects if each["kind"] == "ConfigMap"] == []
    rendered = profile(only(objects, "Secret", SCHEDULER)["stringData"]["config.yaml"])
    provider = rendered["pluginConfig"][0]["args"]["metricProvider"]
    assert provider["insecureSkipVerify"] is False
    assert provider["token"] == "not-a-real-token"
    assert all(isinstance(value, PROVIDER[key]) for key, value in provider.items())
    pod = only(objects, "Deployment", SCHEDULER)["spec"]["template"]["spec"]
    assert {"name": "SSL_CERT_DIR", "value": "/etc/prometheus-ca"} in pod["containers"][0]["env"]
    assert pod["volumes"][0]["secret"]["secretName"] == SCHEDULER
    # Upstream reads the metrics server only where it is told to.
    assert not [each for each in objects if each["kind"] == "ClusterRole" and each["metadata"]["name"] != NAME]


def test_a_secret_of_one_s_own_is_taken_as_it_is() -> None:
    objects = render({"scheduler": {"enabled": True, "configSecret": "mine"}})
    assert not [each for each in objects if each["kind"] == "ConfigMap" or each["metadata"]["name"] == "mine"]
    assert (
        only(objects, "Deployment", SCHEDULER)["spec"]["template"]["spec"]["volumes"][0]["secret"]["secretName"]
        == "mine"
    )


def test_a_secret_of_one_s_own_that_names_no_lease_does_not_take_the_cluster_s_own(
    plane: ControlPlane, credentials: Path
) -> None:
    bare = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    theirs: Object = {"kind": "ConfigMap", "metadata": {"name": "mine"}, "data": {"config.yaml": yaml.safe_dump(bare)}}
    rendered = render({"scheduler": {"enabled": True, "configSecret": "mine"}})
    only_ours = scheduler(plane, [theirs, *rendered], credentials)
    with running(only_ours):
        plane.wait(lambda: "Attempting to acquire leader lease" in only_ours.log.read_text(), 20, "word of its Lease")
        assert f'lock="{NAMESPACE}/{NAME}"' in only_ours.log.read_text()


def test_what_packing_switches_off_is_what_the_real_scheduler_knows(
    plane: ControlPlane, credentials: Path, objects: list[Object]
) -> None:
    packing = profile(only(load_aware(), "ConfigMap")["data"]["config.yaml"])["plugins"]
    packing["score"].pop("enabled")  # in the other image only
    config = yaml.safe_load(only(objects, "ConfigMap")["data"]["config.yaml"])
    config["profiles"][0]["plugins"] = packing
    changed = [
        {**each, "data": {"config.yaml": yaml.safe_dump(config)}} if each["kind"] == "ConfigMap" else each
        for each in objects
    ]
    with running(scheduler(plane, changed, credentials)):
        pass  # it is healthy


def test_a_changed_configuration_restarts_the_scheduler_and_nothing_else_does() -> None:
    def template(**values: object) -> Object:
        found: Object = only(render({"scheduler": {"enabled": True} | values}), "Deployment", SCHEDULER)["spec"][
            "template"
        ]
        return found

    assert template() == template(replicas=3)
    assert template() != template(name="my-scheduler")
