"""The chart's policies refuse what RBAC alone would allow to a stolen token of the webhook's account, or to a tenant.

The chart is installed by a real Helm. No replica runs: the tests use the account's token themselves. A tenant here has
all rights, so only a policy can refuse a request.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from certs.secret import ANNOTATION, SELF_MANAGED
from tests.support.accounts import KUBEVIRT, LONGHORN
from tests.support.controlplane import build
from tests.support.controlplane.plane import ControlPlane
from tests.support.helm_chart import Object
from tests.support.helm_release import Release
from webhook.cluster.events import Vmi, build_event
from webhook.placement.affinity import CO_SCHEDULED_NODE, DECISION
from webhook.placement.reasons import Decision, Outcome, Reason
from webhook.placement.settings import Mode

pytestmark = [pytest.mark.controlplane, pytest.mark.usefixtures("thief")]

NAMESPACE = "stolen-token"  # of the VMs
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
NODE = "stolen-token-node"


class Thief:
    """A client with the token of the webhook's ServiceAccount."""

    def __init__(self, release: Release) -> None:
        self.plane, self.release = release.plane, release
        self.user = f"system:serviceaccount:{release.namespace}:{release.fullname}"
        self.pods_policy = f"{release.fullname}-pods"
        self.configuration_policy = f"{release.fullname}-webhook-configuration"
        self.objects_policy = f"{release.fullname}-own-objects"
        self.events_policy = f"{release.fullname}-events"
        self.policies = self.pods_policy, self.configuration_policy, self.objects_policy, self.events_policy
        self._token = release.plane.service_account_token(release.namespace, release.fullname)

    def request(self, method: str, path: str, body: object = None) -> Object:
        return self.plane.request(method, path, body, token=self._token)

    def refusal(self, method: str, path: str, body: object = None) -> str:
        """Send a request that must fail, and return the API server's message."""
        error = self.error(method, path, body)
        assert error.startswith("403 Forbidden: ")
        return error

    def error(self, method: str, path: str, body: object = None) -> str:
        return self.plane.error(method, path, body, token=self._token)


def denial(policy: str, message: str) -> str:
    """Return the API server's words for a refusal by a policy. A refusal by RBAC names the verb and the resource."""
    return f"ValidatingAdmissionPolicy '{policy}' with binding '{policy}' denied request: {message}"


@pytest.fixture(scope="module")
def thief(plane: ControlPlane) -> Iterator[Thief]:
    plane.create_namespace(NAMESPACE)
    release = Release(plane, "chart-stolen").install(f"--set=settings.kubevirtAccounts={{{OWN_CONTROLLER}}}")
    thief = Thief(release)
    plane.request("POST", "/api/v1/nodes", {"metadata": {"name": NODE}})
    probe = create_pod(plane, labels={})

    def are_enforced() -> bool:
        labeled = {path: plane.request("GET", path) for path in (release.configuration, release.secret)}
        for each in labeled.values():
            each["metadata"]["labels"]["probe"] = "true"
        return (
            thief.pods_policy in thief.error("DELETE", f"{probe}?dryRun=All")
            and thief.configuration_policy
            in thief.error("PUT", f"{release.configuration}?dryRun=All", labeled[release.configuration])
            and thief.objects_policy in thief.error("PUT", f"{release.secret}?dryRun=All", labeled[release.secret])
            and refusal(plane, "POST", PODS, pod("probe", PINNED))
            and thief.events_policy in thief.error("POST", f"{EVENTS}?dryRun=All", event(reportingComponent="kubelet"))
        )

    # The API server learns of the policies through a watch.
    plane.wait(are_enforced, 20, "refusals by all policies")
    yield thief
    release.uninstall()
    plane.request("DELETE", f"/api/v1/nodes/{NODE}")
    plane.request("DELETE", f"/api/v1/namespaces/{NAMESPACE}")


def create_pod(plane: ControlPlane, **changes: Any) -> str:
    """Create a virt-launcher pod that carries a pin and is not bound, with changed metadata, and return its path."""
    metadata = {
        "generateName": "virt-launcher-vm1-",
        "labels": {"kubevirt.io": "virt-launcher"},
        "annotations": {CO_SCHEDULED_NODE: NODE},
    }
    spec = {"schedulerName": "none", "containers": [{"name": "compute", "image": "none"}]}
    # Another policy allows the annotation only to KubeVirt's controller.
    created = plane.request("POST", PODS, {"metadata": metadata | changes, "spec": spec}, user=KUBEVIRT)
    return f"{PODS}/{created['metadata']['name']}"


# --- pods ---

OTHER_PODS: list[tuple[Object, str]] = [
    ({"labels": {"kubevirt.io": "hotplug-disk"}}, "virt-launcher pods."),
    ({"labels": None}, "virt-launcher pods."),
    ({"annotations": {"kubevirt.io/domain": "vm1"}}, "pods that it pinned"),
    ({"annotations": None}, "pods that it pinned"),
]


def test_the_account_may_delete_only_an_unbound_virt_launcher_pod_that_carries_a_pin(
    plane: ControlPlane, thief: Thief
) -> None:
    for changes, what in OTHER_PODS:
        pod = create_pod(plane, **changes)
        assert denial(thief.pods_policy, f"The webhook may delete only {what}") in thief.refusal("DELETE", pod)
        plane.request("DELETE", pod)  # the policy doesn't concern other accounts
    pod = create_pod(plane)
    assert 'cannot create resource "pods/eviction"' in thief.refusal("POST", f"{pod}/eviction", {})
    assert 'cannot deletecollection resource "pods"' in thief.refusal("DELETE", PODS)
    thief.request("DELETE", f"{pod}?dryRun=All")
    binding = {"metadata": {"name": pod.rpartition("/")[2]}, "target": {"kind": "Node", "name": NODE}}
    plane.request("POST", f"{pod}/binding", binding)
    message = "The webhook may delete only pods that are not bound to a node."
    for options in {}, {"gracePeriodSeconds": 0}, {"propagationPolicy": "Orphan"}:
        assert denial(thief.pods_policy, message) in thief.refusal("DELETE", pod, options)
    plane.request("DELETE", f"{pod}?gracePeriodSeconds=0")


# --- webhook configuration ---

Change = Callable[[Object], Any]
METADATA = "The webhook may not change the metadata of its configuration."
WEBHOOKS = "The webhook may not add, remove, rename or reorder the webhooks of its configuration."
FIELDS = "The webhook may change only clientConfig.caBundle in its configuration."
CLIENT = "The webhook may change only caBundle in clientConfig"
OWNER = {"apiVersion": "v1", "kind": "Namespace", "name": "default", "uid": "8a409563-c3a8-4ea4-b258-c559ed8a11d5"}


def vms(field: str, value: Any) -> Change:
    """Return a change of one field of the first webhook; `None` removes the field."""
    return lambda configuration: configuration["webhooks"][0].update({field: value})


def client(**fields: Any) -> Change:
    """Return a change of fields of the first webhook's `clientConfig`."""
    return lambda configuration: configuration["webhooks"][0]["clientConfig"].update(fields)


def service(field: str, value: Any) -> Change:
    return lambda configuration: configuration["webhooks"][0]["clientConfig"]["service"].update({field: value})


def metadata(field: str, value: Any) -> Change:
    return lambda configuration: configuration["metadata"].update({field: value})


def claim(**fields: Any) -> Change:
    """Return a change that adds an entry to `managedFields`, as if another client had set these fields."""

    def change(subject: Object) -> None:
        entry = {"manager": "thief", "operation": "Update", "apiVersion": subject["apiVersion"]}
        owned = entry | {"fieldsType": "FieldsV1", "fieldsV1": fields, "time": "2026-01-01T00:00:00Z"}
        subject["metadata"]["managedFields"].append(owned)

    return change


def add_a_webhook(configuration: Object) -> None:
    configuration["webhooks"].append(configuration["webhooks"][0] | {"name": "added.kubevirt-scheduler.io"})


# The policy compares all fields of an object alike, so one changed, one added and one removed field stand for all.
CHANGES: dict[str, tuple[Change, str]] = {
    "URL": (client(service=None, url="https://thief.example.com/mutate"), CLIENT),
    "service": (service("namespace", "default"), CLIENT),
    "changed field": (vms("failurePolicy", "Fail"), FIELDS),
    "removed field": (vms("matchConditions", None), FIELDS),
    "added webhook": (add_a_webhook, WEBHOOKS),
    "no webhooks": (lambda configuration: configuration.update(webhooks=None), WEBHOOKS),
    "renamed webhook": (vms("name", "renamed.kubevirt-scheduler.io"), WEBHOOKS),
    "reordered webhooks": (lambda configuration: configuration["webhooks"].reverse(), WEBHOOKS),
    "labels": (metadata("labels", {}), METADATA),
    "annotations": (metadata("annotations", {"cert-manager.io/inject-ca-from": "default/thief"}), METADATA),
    "owner references": (metadata("ownerReferences", [OWNER]), METADATA),
    "no managers": (metadata("managedFields", [{}]), METADATA),
}


def with_other_ca_bundle(thief: Thief, text: bytes) -> Object:
    configuration = thief.request("GET", thief.release.configuration)
    for webhook in configuration["webhooks"]:
        webhook["clientConfig"]["caBundle"] = base64.b64encode(text).decode()
    return configuration


def test_the_account_may_set_change_and_remove_the_ca_bundle(plane: ControlPlane, thief: Thief) -> None:
    bundle = plane.ca.read_bytes()
    for text in bundle, bundle * 2, b"":
        thief.request("PUT", thief.release.configuration, with_other_ca_bundle(thief, text))
        assert thief.release.ca_bundles() == {base64.b64encode(text).decode()}


@pytest.mark.parametrize(("change", "message"), CHANGES.values(), ids=CHANGES)
def test_the_account_may_not_change_anything_else(
    plane: ControlPlane, thief: Thief, change: Change, message: str
) -> None:
    path = f"{thief.release.configuration}?dryRun=All"
    thief.request("PUT", thief.release.configuration, with_other_ca_bundle(thief, plane.ca.read_bytes()))
    configuration = thief.request("GET", thief.release.configuration)
    change(configuration)
    assert denial(thief.configuration_policy, message) in thief.refusal("PUT", path, configuration)
    plane.request("PUT", path, configuration)  # the policy doesn't concern other accounts


def test_made_up_managers_stop_an_upgrade_that_does_not_force(thief: Thief) -> None:
    configuration = thief.request("GET", thief.release.configuration)
    claim(**{"f:webhooks": {'k:{"name":"vms.kubevirt-scheduler.io"}': {"f:timeoutSeconds": {}}}})(configuration)
    thief.request("PUT", thief.release.configuration, configuration)
    upgrade = "--reuse-values", "--set=webhook.timeoutSeconds=4"
    with pytest.raises(RuntimeError, match='conflict with "thief"'):
        thief.release.upgrade(*upgrade)
    thief.release.upgrade(*upgrade, "--force-conflicts")
    assert {each["timeoutSeconds"] for each in thief.release.webhooks()} == {4}


# --- Secret and Lease ---

OBJECT_METADATA = "The webhook may not change the metadata of its Secret and Lease."
OBJECT_CHANGES: dict[str, tuple[Change, str]] = {
    "owner references": (metadata("ownerReferences", [OWNER]), OBJECT_METADATA),
    "finalizers": (metadata("finalizers", ["example.com/keep"]), OBJECT_METADATA),
    "labels": (metadata("labels", None), OBJECT_METADATA),
    "annotations": (
        metadata("annotations", {"helm.sh/resource-policy": "keep"}),
        "The webhook may not change the annotations of its Secret and Lease.",
    ),
    "no managers": (metadata("managedFields", [{}]), OBJECT_METADATA),
}


def secret_with(thief: Thief, value: bytes) -> Object:
    """Return the Secret with this content, as a replica writes it."""
    secret = thief.request("GET", thief.release.secret)
    annotations = secret["metadata"].setdefault("annotations", {})
    annotations[ANNOTATION] = SELF_MANAGED
    return secret | {"data": {"tls.crt": base64.b64encode(value).decode()}}


def test_the_account_may_write_its_secret_and_lease_but_not_make_them_immutable(
    plane: ControlPlane, thief: Thief
) -> None:
    for value in b"1", b"2":
        thief.request("PUT", thief.release.secret, secret_with(thief, value))
        lease = thief.request("GET", thief.release.lease)
        thief.request("PUT", thief.release.lease, lease | {"spec": {"holderIdentity": value.decode()}})
    # A backup that restored the Secret owns its data and labels.
    restored = secret_with(thief, b"3")
    restored["metadata"]["labels"]["restored"] = "true"
    plane.request("PUT", f"{thief.release.secret}?fieldManager=backup", restored)
    thief.request("PUT", thief.release.secret, secret_with(thief, b"4"))
    immutable = secret_with(thief, b"5") | {"immutable": True}
    message = denial(thief.objects_policy, "The webhook may change only data and spec in its Secret and Lease.")
    assert message in thief.refusal("PUT", f"{thief.release.secret}?dryRun=All", immutable)


@pytest.mark.parametrize(("change", "message"), OBJECT_CHANGES.values(), ids=OBJECT_CHANGES)
def test_the_account_may_not_change_the_metadata_of_its_secret_and_lease(
    plane: ControlPlane, thief: Thief, change: Change, message: str
) -> None:
    for path in thief.release.secret, thief.release.lease:
        found = plane.request("GET", path)
        change(found)
        assert denial(thief.objects_policy, message) in thief.refusal("PUT", f"{path}?dryRun=All", found)
        plane.request("PUT", f"{path}?dryRun=All", found)


# --- Events ---

EVENTS = f"/api/v1/namespaces/{NAMESPACE}/events"
OWN_EVENTS = "The webhook may write only its own Events about VMIs"


def event(**changes: Any) -> Object:
    """Return an Event that the webhook writes, with changed fields."""
    decision = Decision(Outcome.PINNED, Reason.CO_SCHEDULED, "node-a serves the claim.", Mode.REQUIRED)
    return build_event(Vmi(NAMESPACE, "vm1", "uid-1"), decision, "replica-1", 0) | changes


def test_the_account_may_only_create_its_own_events(thief: Thief) -> None:
    path = f"{EVENTS}/{thief.request('POST', EVENTS, event())['metadata']['name']}"
    assert 'cannot patch resource "events"' in thief.refusal("PATCH", path, {"message": "x"})
    for field in {"finalizers": ["example.com/keep"]}, {"ownerReferences": [OWNER]}, {"labels": {"a": "b"}}:
        body = event()
        body["metadata"] |= field
        assert "The webhook may not set the labels" in thief.refusal("POST", EVENTS, body)
    about_a_pod = {"involvedObject": {"kind": "Pod", "name": "p", "namespace": NAMESPACE}}
    other_source = {"source": {"component": "kubelet"}}
    for changes in {"reportingComponent": "kubelet"}, {"reportingComponent": ""}, other_source, about_a_pod:
        assert denial(thief.events_policy, OWN_EVENTS) in thief.refusal("POST", EVENTS, event(**changes))
    elsewhere = event(involvedObject=event()["involvedObject"] | {"namespace": "kube-system"})
    elsewhere["metadata"]["namespace"] = "kube-system"
    assert OWN_EVENTS in thief.refusal("POST", "/api/v1/namespaces/kube-system/events", elsewhere)


def test_the_account_may_not_fill_etcd_with_events(thief: Thief) -> None:
    """30 Events of 1.4 MB in 10 s took 42 MB, for an hour."""
    about = event()["involvedObject"]
    thief.request("POST", EVENTS, event(message="x" * 1024))
    for changes in (
        {"message": "x" * 1025},
        {"message": "é" * 600},
        {"related": {"kind": "Node", "name": NODE}},
        {"action": "Evict"},
        {"series": {"count": 2}},
        {"source": {"component": "kubevirt-scheduler", "host": "x" * 1000}},
        {"involvedObject": about | {"fieldPath": "spec"}},
        {"involvedObject": about | {"name": "x" * 254}},
        {"reason": "x" * 129},
        {"reportingInstance": "x" * 129},
    ):
        message = "The webhook may write only Events with the fields that it needs"
        assert denial(thief.events_policy, message) in thief.refusal("POST", EVENTS, event(**changes)), changes


def test_the_account_may_not_raise_the_transitions_of_its_lease_by_more_than_one(thief: Thief) -> None:
    lease = thief.request("GET", thief.release.lease)
    for transitions, is_allowed in ((2, False), (1, True), (3, False), (2, True)):
        body = lease | {"spec": {"holderIdentity": "a", "leaseTransitions": transitions}}
        if is_allowed:
            lease = thief.request("PUT", thief.release.lease, body)
        else:
            message = denial(thief.objects_policy, "The webhook may raise leaseTransitions only by one.")
            assert message in thief.refusal("PUT", thief.release.lease, body)


# --- annotations ---
TENANT = "alice"
OWN_CONTROLLER = f"system:serviceaccount:{NAMESPACE}:virt-controller-of-a-fork"
PINNED: Object = {CO_SCHEDULED_NODE: NODE, DECISION: "CoScheduled: the node serves the claim."}
ANNOTATIONS = "Only the controllers of KubeVirt and Longhorn may create pods with them."


def pod(name: str, annotations: Object | None) -> Object:
    metadata = {"name": name, "labels": {"kubevirt.io": "virt-launcher"}, "annotations": annotations}
    return {"metadata": metadata, "spec": {"schedulerName": "none", "containers": [{"name": "compute", "image": "x"}]}}


def create(plane: ControlPlane, name: str, annotations: Object | None, user: str = KUBEVIRT) -> str:
    """Create a pod and return its path."""
    plane.request("POST", PODS, pod(name, annotations), user=user)
    return f"{PODS}/{name}"


def refusal(plane: ControlPlane, method: str, path: str, body: object, user: str = TENANT) -> str:
    """Return the API server's message if it refuses a dry run, otherwise an empty string."""
    return plane.error(method, f"{path}?dryRun=All", body, user=user)


def binding(name: str, annotations: Any) -> Object:
    return {"metadata": {"name": name, "annotations": annotations}, "target": {"kind": "Node", "name": NODE}}


def test_a_tenant_may_not_create_change_or_remove_the_annotations_by_any_resource(plane: ControlPlane) -> None:
    pinned, plain = create(plane, "pinned", PINNED), create(plane, "plain", None)
    for key in PINNED:
        for user in TENANT, "", "system:serviceaccount:kube-system:replicaset-controller":
            assert ANNOTATIONS in refusal(plane, "POST", PODS, pod("created", {key: "node-b"}), user)
        for path in pinned, f"{pinned}/status":
            for value in "node-b", "", None:
                assert ANNOTATIONS in refusal(plane, "PATCH", path, {"metadata": {"annotations": {key: value}}})
            assert ANNOTATIONS in refusal(plane, "PATCH", path, {"metadata": {"annotations": None}})
        for path in plain, f"{plain}/status":
            assert ANNOTATIONS in refusal(plane, "PATCH", path, {"metadata": {"annotations": {key: "node-b"}}})
        # The API server copies a Binding's annotations to the pod.
        assert ANNOTATIONS in refusal(plane, "POST", f"{plain}/binding", binding("plain", {key: "node-b"}))
        collection = f"/api/v1/namespaces/{NAMESPACE}/bindings"
        assert ANNOTATIONS in refusal(plane, "POST", collection, binding("plain", {key: "node-b"}))


def test_the_controllers_of_kubevirt_and_longhorn_may_write_the_annotations_in_any_namespace(
    plane: ControlPlane,
) -> None:
    elsewhere = "system:serviceaccount:virtualization:kubevirt-controller"
    for number, user in enumerate((KUBEVIRT, LONGHORN, elsewhere, OWN_CONTROLLER)):
        path = create(plane, f"controller-{number}", PINNED, user)
        for target in path, f"{path}/status":
            plane.request("PATCH", target, {"metadata": {"annotations": {DECISION: "NodeFull"}}}, user=user)
    for user in "kubevirt-controller", "system:serviceaccount:a:b:kubevirt-controller", f"{KUBEVIRT}-2":
        assert ANNOTATIONS in refusal(plane, "POST", PODS, pod("impostor", PINNED), user)


def test_requests_that_keep_the_annotations_pass(plane: ControlPlane) -> None:
    path = create(plane, "kept", PINNED)
    own = {"metadata": {"labels": {"team": "a"}, "annotations": {"kubevirt-scheduler/co-schedule": "true"}}}
    assert not refusal(plane, "POST", PODS, pod("own", own["metadata"]["annotations"]))
    assert not refusal(plane, "POST", PODS, pod("none", None))
    plane.request("PATCH", path, own, user=TENANT)
    # Other subresources don't write annotations. Kubernetes 1.30 has no `resize`.
    for subresource in ("ephemeralcontainers", "resize")[: 1 if build.is_oldest() else 2]:
        changed = {"metadata": {"annotations": dict.fromkeys(PINNED, "node-b")}}
        plane.request("PATCH", f"{path}/{subresource}", changed, user=TENANT)
    assert PINNED.items() <= plane.request("GET", path)["metadata"]["annotations"].items()
    # A CNI plugin writes its annotation, and the kubelet the status. A scheduler binds the pod.
    plane.request("PATCH", f"{path}/status", {"metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": "[]"}}})
    conditions = [{"type": "Ready", "status": "False"}]
    read = plane.request("GET", path)
    replaced = read | {"status": read["status"] | {"conditions": conditions}}
    plane.request("PUT", f"{path}/status", replaced, user="system:node:node-a")
    plane.request("POST", f"{path}/binding", binding("kept", {"scheduler/score": "1"}), user="system:kube-scheduler")
    bound = plane.request("GET", path)
    assert bound["spec"]["nodeName"] == NODE
    assert PINNED.items() <= bound["metadata"]["annotations"].items()


# --- policies ---


def test_the_account_may_not_delete_the_policies_in_which_the_api_server_finds_no_type_error(
    plane: ControlPlane, thief: Thief
) -> None:
    for name in thief.policies:
        for kind in "validatingadmissionpolicies", "validatingadmissionpolicybindings":
            assert "cannot delete resource" in thief.refusal("DELETE", f"{ADMISSION}/{kind}/{name}")
    for name in *thief.policies, f"{thief.release.fullname}-annotations":

        def type_checking(name: str = name) -> Object | None:
            status = plane.request("GET", f"{ADMISSION}/validatingadmissionpolicies/{name}").get("status", {})
            return status if "observedGeneration" in status else None

        assert plane.wait(type_checking, 20, f"the type check of {name}").get("typeChecking", {}) == {}
