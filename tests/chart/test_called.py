"""The API server calls the webhook for exactly the pods that the chart's configuration selects."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.accounts import KUBEVIRT
from tests.support.controlplane.api import ApiError
from tests.support.controlplane.plane import ControlPlane
from tests.support.helm_chart import CHART, NAMESPACE, Object, alert_rules, find_one, render
from tests.support.longhorn import Longhorn
from tests.support.paths import DOCS
from tests.support.scenario import DECISION, recorded_pod
from tests.support.webhook_process import REGISTRATIONS, Webhook
from webhook.commands.doctor.probe import probe_pod
from webhook.placement.settings import OPT_IN_ANNOTATIONS

pytestmark = pytest.mark.controlplane

FULLNAME = "charted"
CHARTED = {"fullnameOverride": FULLNAME}


class ChartWebhook:
    """A running webhook that is registered with the chart's own configuration and Service."""

    def __init__(self, plane: ControlPlane, webhook: Webhook) -> None:
        self.plane = plane
        self.webhook = webhook
        self._services = f"/api/v1/namespaces/{NAMESPACE}/services"

    def register(self, values: Object) -> ChartWebhook:
        objects = render(CHARTED | values)
        self.plane.request("POST", self._services, find_one(objects, "Service"))
        self.plane.route_service(NAMESPACE, FULLNAME, ("127.0.0.1", self.webhook._https))
        configuration = find_one(objects, "MutatingWebhookConfiguration")
        # A real replica publishes its own caBundle. A test machine may stall for longer than the chart's 3 s.
        for each in configuration["webhooks"]:
            each["clientConfig"]["caBundle"] = base64.b64encode(self.webhook._ca.certificate).decode()
            each["timeoutSeconds"] = 10
        self.plane.request("POST", REGISTRATIONS, configuration)
        # The API server learns of a new configuration through a watch.
        self.plane.wait(lambda: self.is_called(probe_pod(OPT_IN_ANNOTATIONS[0])), 20, "a call")
        return self

    def unregister(self) -> None:
        self.plane.request("DELETE", f"{REGISTRATIONS}/{FULLNAME}")
        # Otherwise the next test could mistake this configuration for its own, which has the same name.
        self.plane.wait(lambda: not self.is_called(probe_pod(OPT_IN_ANNOTATIONS[0])), 20, "no call")
        self.plane.request("DELETE", f"{self._services}/{FULLNAME}")

    def create(self, pod: Object, namespace: str = "default", user: str | None = None) -> Object:
        return self.plane.request("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod, user=user)

    def is_called(self, pod: Object, namespace: str = "default", user: str | None = None) -> bool:
        """Create the pod in a dry run, and return whether the API server called the webhook."""
        before = self._decisions()
        self.create(pod, namespace, user)
        return self._decisions() > before

    def _decisions(self) -> int:
        """Count the decisions in the log, which the webhook writes before it responds."""
        return sum(line.get("event") == "decided" for line in self.webhook.log())


@pytest.fixture(scope="module")
def running_webhook(plane: ControlPlane, longhorn: Longhorn, kubeconfig: Path) -> Iterator[Webhook]:
    """A webhook without a MutatingWebhookConfiguration."""
    settings = {"longhorn_namespace": longhorn.namespace} | {"scheduler_names": '{"old-scheduler": "new-scheduler"}'}
    with Webhook(plane, FULLNAME, kubeconfig, settings) as webhook:
        yield webhook


@pytest.fixture
def chart_webhook(plane: ControlPlane, running_webhook: Webhook) -> Iterator[ChartWebhook]:
    chart_webhook = ChartWebhook(plane, running_webhook)
    yield chart_webhook
    with suppress(ApiError):  # the test may have unregistered the webhook
        chart_webhook.unregister()


def vm(opt_in: Object | None = None, labels: Object | None = None, review: str = "vm-start", **spec: Any) -> Object:
    """A recorded virt-launcher pod whose only opt-in annotations are these."""
    pod = recorded_pod(review)
    pod["metadata"]["annotations"].pop(OPT_IN_ANNOTATIONS[0], None)
    pod["metadata"]["annotations"] |= opt_in or {}
    pod["metadata"]["labels"] |= labels or {}
    pod["spec"] |= {"schedulerName": "old-scheduler"} | spec
    return pod


def share_manager() -> Object:
    """A recorded share-manager pod, without its account, which doesn't exist here."""
    pod = recorded_pod("share-manager")
    for key in "serviceAccountName", "serviceAccount":
        pod["spec"].pop(key, None)
    return pod


OPTED_IN, OPTED_IN_BY_OLD_KEY = ({key: "true"} for key in OPT_IN_ANNOTATIONS)
MIGRATING = {"kubevirt.io/migrationJobUID": "bbf19cb9"}


def test_the_api_server_calls_only_for_opted_in_vms_that_do_not_migrate(chart_webhook: ChartWebhook) -> None:
    is_called = chart_webhook.register({}).is_called
    assert is_called(vm(OPTED_IN))
    assert is_called(vm(OPTED_IN_BY_OLD_KEY))
    assert is_called(vm(OPTED_IN, {"kubevirt.io/migrationJobUID": ""}))
    assert not is_called(vm())
    assert not is_called(vm({OPT_IN_ANNOTATIONS[0]: "True"}))
    assert not is_called(vm({OPT_IN_ANNOTATIONS[0]: "false", "another/key": "true"}))
    assert not is_called(vm(OPTED_IN, MIGRATING))
    assert not is_called(vm(OPTED_IN, review="migration-target"))
    assert not is_called(vm(OPTED_IN, {"kubevirt.io": "hotplug-disk"}))
    bare = probe_pod("a/b")
    del bare["metadata"]["annotations"]
    assert not is_called(bare)


def test_the_api_server_calls_only_for_pods_that_kubevirt_and_longhorn_create(
    chart_webhook: ChartWebhook, longhorn: Longhorn
) -> None:
    own = "system:serviceaccount:vms:kubevirt-controller"
    settings = {"longhornNamespace": longhorn.namespace, "kubevirtAccounts": [KUBEVIRT, own]}
    is_called = chart_webhook.register({"settings": settings}).is_called
    assert is_called(vm(OPTED_IN), user=own)
    for user in "alice", "", "system:serviceaccount:alice:kubevirt-controller":
        assert not is_called(vm(OPTED_IN), user=user)
    for user in "alice", "", KUBEVIRT, own:
        assert not is_called(share_manager(), longhorn.namespace, user)


def test_with_the_opt_in_by_namespace_the_api_server_calls_for_vms_that_are_not_opted_out(
    chart_webhook: ChartWebhook,
) -> None:
    is_called = chart_webhook.register({"settings": {"optIn": "namespace"}}).is_called
    assert is_called(vm())
    assert is_called(vm(OPTED_IN))
    assert is_called(vm({OPT_IN_ANNOTATIONS[0]: "False"}))
    assert is_called(vm({OPT_IN_ANNOTATIONS[0]: "false"} | OPTED_IN_BY_OLD_KEY))
    assert not is_called(vm({OPT_IN_ANNOTATIONS[0]: "false"}))
    assert not is_called(vm({OPT_IN_ANNOTATIONS[1]: "false"}))
    assert not is_called(vm(labels=MIGRATING))
    assert not is_called(vm(labels={"kubevirt.io": "hotplug-disk"}))
    bare = probe_pod("a/b")
    del bare["metadata"]["annotations"]
    assert is_called(bare)


def test_the_api_server_shows_an_observer_every_vm(chart_webhook: ChartWebhook) -> None:
    is_called = chart_webhook.register({"settings": {"action": "observe"}}).is_called
    assert is_called(vm({OPT_IN_ANNOTATIONS[0]: "false"}))
    assert not is_called(vm(labels=MIGRATING))
    assert not is_called(vm(), "kube-system")


def test_excluded_namespaces_own_annotations_and_scheduler_names_are_called_for_as_configured(
    chart_webhook: ChartWebhook, plane: ControlPlane
) -> None:
    plane.create_namespace("charted-backup")
    key = "example.com/near-storage"
    settings = {"optInAnnotations": [OPT_IN_ANNOTATIONS[0], key], "schedulerNames": {"old-scheduler": "new-scheduler"}}
    chart_webhook.register({"settings": settings, "webhook": {"excludedNamespaces": ["charted-backup"]}})
    for namespace in ("kube-system", NAMESPACE, "charted-backup"):
        assert not chart_webhook.is_called(vm(OPTED_IN), namespace)
    started = chart_webhook.create(vm(OPTED_IN))
    assert (started["spec"]["schedulerName"], DECISION in started["metadata"]["annotations"]) == ("new-scheduler", True)
    assert chart_webhook.is_called(vm({key: "true"}))
    assert not chart_webhook.is_called(vm(OPTED_IN_BY_OLD_KEY))
    created = chart_webhook.create(vm(OPTED_IN, review="migration-target"))
    assert created["spec"]["schedulerName"] == "new-scheduler"
    assert DECISION not in created["metadata"]["annotations"]
    assert not chart_webhook.is_called(vm(review="migration-target"))


@pytest.mark.parametrize("steering", [True, False])
def test_the_api_server_calls_for_share_managers_in_the_longhorn_namespace_only_with_steering(
    chart_webhook: ChartWebhook, longhorn: Longhorn, steering: bool
) -> None:
    settings = {"steering": steering, "longhornNamespace": longhorn.namespace}
    # With cert-manager, the chart annotates the configuration.
    chart_webhook.register({"settings": settings, "certificates": {"source": "cert-manager"}})
    assert chart_webhook.is_called(share_manager(), longhorn.namespace) is steering
    assert not chart_webhook.is_called(share_manager())


# --- metrics ---


@pytest.mark.parametrize(
    ("policy", "alert", "labels"),
    [
        ("Ignore", "Undecided", 'name="vms.kubevirt-scheduler.io",type="admit"'),
        ("Fail", "Rejected", 'error_type="calling_webhook_error",name="vms.kubevirt-scheduler.io"'),
    ],
)
def test_the_api_server_counts_a_failed_call_by_its_failure_policy_as_the_alerts_expect(
    chart_webhook: ChartWebhook, plane: ControlPlane, policy: str, alert: str, labels: str
) -> None:
    chart_webhook.register({})
    changes = [
        {"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"},
        {"op": "replace", "path": "/webhooks/0/failurePolicy", "value": policy},
    ]
    plane.request("PATCH", f"{REGISTRATIONS}/{FULLNAME}", changes)

    def outcome() -> str:
        try:
            pod = chart_webhook.create(vm(OPTED_IN))
        except ApiError as error:
            return "Fail" if "failed calling webhook" in str(error) else str(error)
        return "" if DECISION in pod["metadata"]["annotations"] else "Ignore"

    plane.wait(lambda: outcome() == policy, 20, "a failed call")
    rules = alert_rules(render({"prometheusRule": {"enabled": True}}))
    (expression,) = (rule["expr"] for rule in rules if rule["alert"] == f"KubevirtScheduler{alert}")
    name = re.search(r"(apiserver_\w+)\{", expression)[1]
    assert f"{name}{{{labels}" in plane.request("GET", "/metrics")["message"]


def labels_by_metric(text: str) -> dict[str, set[str]]:
    """The labels of each metric of the webhook in a page of metrics, in expressions, or in the lists of the docs."""
    found: dict[str, set[str]] = {}
    for name, labels in re.findall(r"(?:kubevirt_scheduler_|^- `)(\w+)(?:\{([^}]*)\}|`)", text, re.MULTILINE):
        names = re.findall(r"(\w+)(?=!?=)", labels) or labels.split(",")
        found.setdefault(re.sub("_(bucket|sum|count)$", "", name), set()).update(filter(None, names))
    return found


def test_the_docs_have_each_exported_metric_and_its_labels_and_alerts_and_dashboard_use_no_others(
    running_webhook: Webhook,
) -> None:
    metrics = running_webhook.get("/metrics")[1]
    documented = labels_by_metric((DOCS / "reference/metrics.md").read_text())
    exported = set(re.findall(r"^# TYPE kubevirt_scheduler_(\w+)", metrics, re.MULTILINE))
    assert exported <= documented.keys()
    dashboard = (CHART / "dashboards" / "kubevirt-scheduler.json").read_text()
    expressions = [rule["expr"] for rule in alert_rules(render({"prometheusRule": {"enabled": True}}))]
    queried = labels_by_metric(" ".join([*expressions, dashboard]))
    assert len(queried) > 10
    assert queried.keys() <= exported
    for name, labels in [*labels_by_metric(metrics).items(), *queried.items()]:
        assert labels <= documented[name] | {"namespace", "service", "pod", "le"}, name
