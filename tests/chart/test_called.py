"""The real API server calls for the pods that the chart means, and for no other."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.controlplane.api import ApiError
from tests.support.controlplane.plane import ControlPlane
from tests.support.helm_chart import CHART, NAME, NAMESPACE, Object, only, render, variables
from tests.support.longhorn import Longhorn
from tests.support.scenario import DECISION, recorded
from tests.support.webhook_process import RBAC, REGISTRATIONS, Webhook
from webhook.commands.check import check, vm_pod
from webhook.placement.settings import OPT_IN_ANNOTATIONS

pytestmark = pytest.mark.controlplane

FULLNAME = "charted"
# Where what `helm test` needs is made.
PATHS = {
    "ServiceAccount": f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
    "Role": f"{RBAC}/namespaces/default/roles",
    "RoleBinding": f"{RBAC}/namespaces/default/rolebindings",
}
MAPPED = {"settings": {"schedulerNames": {"old-scheduler": "new-scheduler"}}}


class Charted:
    """A webhook that the API server calls by the chart's own configuration and Service."""

    def __init__(self, plane: ControlPlane, webhook: Webhook) -> None:
        self.plane = plane
        self.webhook = webhook
        self._services = f"/api/v1/namespaces/{NAMESPACE}/services"

    def register(self, values: Object) -> Charted:
        objects = render({"fullnameOverride": FULLNAME} | values)
        self.plane.request("POST", self._services, only(objects, "Service"))
        self.plane.route_service(NAMESPACE, FULLNAME, ("127.0.0.1", self.webhook._https))
        configuration = only(objects, "MutatingWebhookConfiguration")
        for each in configuration["webhooks"]:  # what the program will do itself
            each["clientConfig"]["caBundle"] = base64.b64encode(self.webhook._ca.certificate).decode()
            each["timeoutSeconds"] = 10  # a machine that stalls for 3 s is no reason to be passed over
        self.plane.request("POST", REGISTRATIONS, configuration)
        # Until the API server knows of it.
        self.plane.wait(lambda: self.called(vm_pod(OPT_IN_ANNOTATIONS[0])), 20, "a call")
        return self

    def unregister(self) -> None:
        self.plane.request("DELETE", f"{REGISTRATIONS}/{FULLNAME}")
        # Else the next one of this name could pass for known while it is still this one that is followed.
        self.plane.wait(lambda: not self.called(vm_pod(OPT_IN_ANNOTATIONS[0])), 20, "no call")
        self.plane.request("DELETE", f"{self._services}/{FULLNAME}")

    def created(self, pod: Object, namespace: str = "default") -> Object:
        return self.plane.request("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod)

    def called(self, pod: Object, namespace: str = "default") -> bool:
        """Whether the webhook saw the pod."""
        before = self.webhook.metric("kubevirt_scheduler_responses_total")
        self.created(pod, namespace)
        return self.webhook.metric("kubevirt_scheduler_responses_total") > before


@pytest.fixture(scope="module")
def answering(plane: ControlPlane, longhorn: Longhorn, kubeconfig: Path) -> Iterator[Webhook]:
    """A webhook that nobody has registered."""
    settings = {"longhorn_namespace": longhorn.namespace} | {"scheduler_names": '{"old-scheduler": "new-scheduler"}'}
    with Webhook(plane, FULLNAME, kubeconfig, settings) as webhook:
        yield webhook


@pytest.fixture
def charted(plane: ControlPlane, answering: Webhook) -> Iterator[Charted]:
    charted = Charted(plane, answering)
    yield charted
    with suppress(ApiError):  # a test may have done so
        charted.unregister()


def vm(opt_in: Object | None = None, labels: Object | None = None, review: str = "vm-start", **spec: Any) -> Object:
    """A pod of a VM as recorded, opted in by these annotations and by no others."""
    pod = recorded(review)
    pod["metadata"]["annotations"].pop(OPT_IN_ANNOTATIONS[0], None)
    pod["metadata"]["annotations"] |= opt_in or {}
    pod["metadata"]["labels"] |= labels or {}
    pod["spec"] |= {"schedulerName": "old-scheduler"} | spec
    return pod


IN, IN_AS_BEFORE = ({key: "true"} for key in OPT_IN_ANNOTATIONS)
MIGRATING = {"kubevirt.io/migrationJobUID": "bbf19cb9"}


def test_it_is_called_for_opted_in_vms_that_do_not_migrate_and_for_no_other_pod(charted: Charted) -> None:
    called = charted.register({}).called
    assert called(vm(IN))
    assert called(vm(IN_AS_BEFORE))
    assert called(vm(IN, {"kubevirt.io/migrationJobUID": ""}))
    assert not called(vm())
    assert not called(vm({OPT_IN_ANNOTATIONS[0]: "True"}))
    assert not called(vm({OPT_IN_ANNOTATIONS[0]: "false", "another/key": "true"}))
    assert not called(vm(IN, MIGRATING))
    assert not called(vm(IN, review="migration-target"))
    assert not called(vm(IN, {"kubevirt.io": "hotplug-disk"}))
    bare = vm_pod("a/b")
    del bare["metadata"]["annotations"]
    assert not called(bare)


def test_it_is_not_called_for_the_namespaces_that_are_left_out(charted: Charted, plane: ControlPlane) -> None:
    plane.create_namespace("charted-backup")
    charted.register({"webhook": {"excludedNamespaces": ["charted-backup"]}})
    for namespace in ("kube-system", NAMESPACE, "charted-backup"):
        assert not charted.called(vm(IN), namespace)
    assert charted.called(vm(IN))


def test_with_a_map_of_names_a_migration_target_gets_its_other_scheduler(charted: Charted) -> None:
    charted.register(MAPPED)
    created = charted.created(vm(IN, review="migration-target"))
    assert created["spec"]["schedulerName"] == "new-scheduler"
    assert DECISION not in created["metadata"]["annotations"]
    assert not charted.called(vm(review="migration-target"))


def test_annotations_of_one_s_own_count_instead(charted: Charted) -> None:
    keys = {"settings": {"optInAnnotations": [OPT_IN_ANNOTATIONS[0], "example.com/near-storage"]}}
    charted.register(keys)
    assert charted.called(vm({"example.com/near-storage": "true"}))
    assert not charted.called(vm(IN_AS_BEFORE))


@pytest.mark.parametrize(
    ("steering", "source"), [(True, "self"), (False, "self"), (True, "cert-manager"), (False, "cert-manager")]
)
def test_share_managers_are_sent_from_longhorn_s_namespace_and_only_with_steering(
    charted: Charted, longhorn: Longhorn, steering: bool, source: str
) -> None:
    settings = {"steering": steering, "longhornNamespace": longhorn.namespace}
    charted.register({"settings": settings, "certificates": {"source": source}})
    pod = recorded("share-manager")
    for key in "serviceAccountName", "serviceAccount":
        pod["spec"].pop(key, None)
    assert charted.called(pod, longhorn.namespace) is steering
    assert not charted.called(pod)


# --- helm test ---


@pytest.fixture
def tester(plane: ControlPlane) -> Iterator[str]:
    """A token of the account that `helm test` runs with, which has the rendered rights and no others."""
    made = [each for each in render() if each["metadata"]["name"] == f"{NAME}-test" and each["kind"] in PATHS]
    for item in made:
        plane.request("POST", PATHS[item["kind"]], item)
    yield plane.service_account_token(NAMESPACE, f"{NAME}-test")
    for item in made:
        plane.request("DELETE", f"{PATHS[item['kind']]}/{item['metadata']['name']}")


def test_helm_s_test_passes_with_the_rights_of_its_account_and_fails_where_nobody_looks(
    charted: Charted, plane: ControlPlane, tester: str, tmp_path: Path
) -> None:
    charted.register({})
    (contained,) = only(render(), "Pod")["spec"]["containers"]
    kubeconfig = plane.write_kubeconfig(tmp_path / "kubeconfig", tester)
    arguments = [*contained["args"][1:], "--timeout=0", f"--kubeconfig={kubeconfig}"]
    passed = CliRunner().invoke(check, arguments, env=variables(contained))
    assert "with this decision: NoShareManager: " in passed.output
    assert passed.exit_code == 0
    charted.unregister()
    plane.wait(lambda: CliRunner().invoke(check, arguments).exit_code == 1, 20, "a pod without a decision")
    elsewhere = CliRunner().invoke(check, [*arguments, "--namespace=kube-system"])
    assert "cannot create resource" in str(elsewhere.exception)


# --- what is measured ---


def test_before_its_certificate_is_known_pods_are_created_all_the_same_and_the_api_server_counts_it(
    charted: Charted, plane: ControlPlane
) -> None:
    charted.register({})
    empty = [{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]
    plane.request("PATCH", f"{REGISTRATIONS}/{FULLNAME}", empty)
    plane.wait(
        lambda: DECISION not in charted.created(vm(IN))["metadata"]["annotations"], 20, "a pod without a decision"
    )
    rules = only(render({"prometheusRule": {"enabled": True}}), "PrometheusRule")["spec"]["groups"][0]["rules"]
    (metric,) = (rule["expr"] for rule in rules if rule["alert"] == "KubevirtSchedulerMissed")
    name = re.search(r"(apiserver_\w+)\{", metric)[1]
    assert f'{name}{{name="vms.kubevirt-scheduler.io",type="admit"}}' in plane.request("GET", "/metrics")["message"]


def test_alerts_and_dashboard_ask_for_what_is_measured_and_no_more(answering: Webhook) -> None:
    told = set(re.findall(r"^(?:# TYPE )?(\w+)", answering.page("/metrics")[1], re.MULTILINE))
    rules = only(render({"prometheusRule": {"enabled": True}}), "PrometheusRule")["spec"]["groups"][0]["rules"]
    dashboard = json.loads((CHART / "dashboards" / "kubevirt-scheduler.json").read_text())
    asked = [rule["expr"] for rule in rules]
    asked += [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    names = {name for expression in asked for name in re.findall(r"(\w+)\{", expression)}
    ours = {name for name in names if not name.startswith("apiserver_")}
    assert len(ours) > 10
    assert ours <= told
