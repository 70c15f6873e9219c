"""Eligibility rules: the first rule that a pod fails is the reason, and the pod gets no patch."""

from copy import deepcopy
from typing import Any

import pytest

from tests.support.accounts import KUBEVIRT, LONGHORN
from tests.support.builders import (
    OPT_IN,
    REQUIRED,
    Object,
    apply_injection,
    catalog,
    decide_request,
    decision_for,
    inject_request,
    injection_for,
    name_requirement,
    node_terms,
    pinned_fields,
    request,
    settings,
    share_manager_pod,
    storage,
    typed,
    virt_launcher,
)
from webhook.placement.eligibility import (
    RULES,
    ineligible_reason,
    is_share_manager_pod,
    mode_of,
)
from webhook.placement.objects.pod import Manifest
from webhook.placement.opt_in import opted_in_by
from webhook.placement.reasons import Mode, Outcome, Reason

SECOND_OPT_IN = "scheduler.kubevirt-scheduler.io/co-schedule"
MODE_ANNOTATION = "kubevirt-scheduler/co-schedule-mode"
MIGRATION_LABEL = "kubevirt.io/migrationJobUID"
PROVISIONING_ANNOTATION = "kubevirt.io/ephemeral-provisioning"


def reason_of(vm_pod: Object, user: str = KUBEVIRT, **overrides: Any) -> Reason | None:
    chosen = settings(**overrides)
    made = Manifest(typed(vm_pod).pod, "default", user)
    return ineligible_reason(made, opted_in_by(made, None, chosen), chosen)


METRICS = {"group": "metrics.k8s.io", "version": "v1", "kind": "Pod"}


@pytest.mark.parametrize(
    "fields",
    [{"operation": "UPDATE"}, {"subResource": "binding"}, {"kind": METRICS}, {"object": None}],
    ids=str,
)
def test_a_request_that_does_not_create_a_pod_is_ignored(fields: Object) -> None:
    admission_request = request({"metadata": {}, "spec": {}}) | fields
    injection = inject_request(admission_request, catalog(*storage()), settings())
    assert (injection.decision.reason, injection.patch) == (Reason.NOT_A_POD_CREATION, None)
    assert injection.decision.outcome is Outcome.UNCHANGED


INELIGIBLE = [
    pytest.param({"labels": {"kubevirt.io": "virt-handler"}}, Reason.NOT_VIRT_LAUNCHER, id="another KubeVirt pod"),
    pytest.param({"labels": {"kubevirt.io": "hotplug-disk"}}, Reason.NOT_VIRT_LAUNCHER, id="a hotplug pod"),
    *(
        pytest.param({"user": user}, Reason.NOT_FROM_KUBEVIRT, id=f"created by {user!r}")
        for user in ("alice", "", LONGHORN, "system:serviceaccount:alice:kubevirt-controller", None)
    ),
    *(
        pytest.param({"opt_in": value}, Reason.NOT_OPTED_IN, id=f"opt-in {value!r}")
        for value in (None, "True", "TRUE", "yes", "1", "", " true", "true ", "false", True, 1, ["true"])
    ),
    pytest.param({"labels": {MIGRATION_LABEL: "uid"}}, Reason.MIGRATION_TARGET, id="a migration target"),
    pytest.param(
        {"annotations": {PROVISIONING_ANNOTATION: "true"}},
        Reason.EPHEMERAL_PROVISIONING,
        id="an ephemeral provisioning pod",
    ),
    pytest.param({"nodeName": "node-b"}, Reason.ALREADY_BOUND, id="already bound"),
    pytest.param({"claims": []}, Reason.NO_CLAIMS, id="no claims"),
    pytest.param(pinned_fields("node-b"), Reason.ALREADY_INJECTED, id="already injected"),
]


@pytest.mark.parametrize(("fields", "reason"), INELIGIBLE)
def test_an_ineligible_pod_is_unchanged_with_the_rules_reason(fields: Object, reason: Reason) -> None:
    vm_pod = virt_launcher(**{key: value for key, value in fields.items() if key != "user"})
    before = deepcopy(vm_pod)
    admission_request = request(vm_pod, userInfo={"username": fields.get("user", KUBEVIRT)})
    injection = inject_request(admission_request, catalog(*storage()), settings())
    assert (injection.decision.reason, injection.decision.outcome) == (reason, Outcome.UNCHANGED)
    assert (injection.patch, injection.warnings, injection.decision.node, injection.decision.claims) == (
        None,
        (),
        None,
        (),
    )
    assert vm_pod == before


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"opt_in": None, "annotations": {SECOND_OPT_IN: "true"}},
        {"labels": {MIGRATION_LABEL: ""}},
        {"nodeName": ""},
        {"annotations": {"kubevirt-scheduler/co-scheduled-node": "node-b"}},  # stale: without our terms
    ],
    ids=str,
)
def test_a_pod_that_passes_every_rule_is_eligible(fields: Object) -> None:
    assert reason_of(virt_launcher(**fields)) is None
    assert decision_for(virt_launcher(**fields), *storage()).reason is Reason.CO_SCHEDULED


PIN = {"matchFields": [name_requirement("node-a")]}
DISK = {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}


@pytest.mark.parametrize("changed", [[PIN, DISK], [DISK], []])
def test_reinvocation_restores_a_pin_that_another_webhook_voided(changed: list[Object]) -> None:
    """With `reinvocationPolicy: IfNeeded` the API server calls a webhook again if a later one changes the pod."""
    vm_pod = virt_launcher(**pinned_fields("node-a"))
    node_affinity = vm_pod["spec"]["affinity"]["nodeAffinity"]
    del node_affinity[REQUIRED]
    node_affinity |= node_terms(*changed)["nodeAffinity"] if changed else {}
    after = apply_injection(vm_pod, injection_for(vm_pod, *storage()))
    assert after["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"] == [
        each | PIN for each in changed or [PIN]
    ]


def test_rules_run_in_design_order() -> None:
    order = [row.values[1] for row in INELIGIBLE]
    assert [rule.reason for rule in RULES] == list(dict.fromkeys(order))


def test_only_the_configured_annotations_opt_in_and_only_the_configured_accounts_create_vms() -> None:
    for key in OPT_IN, SECOND_OPT_IN:
        vm_pod = virt_launcher(opt_in=None, annotations={key: "true"})
        assert reason_of(vm_pod, opt_in_annotations=("example.com/co-schedule",)) is Reason.NOT_OPTED_IN
        assert reason_of(vm_pod, opt_in_annotations=(key,)) is None
    own = "system:serviceaccount:vms:kubevirt-controller"
    assert reason_of(virt_launcher(), own, kubevirt_accounts=(own,)) is None
    assert reason_of(virt_launcher(), KUBEVIRT, kubevirt_accounts=(own,)) is Reason.NOT_FROM_KUBEVIRT


SHARE_MANAGER = {"longhorn.io/component": "share-manager", "longhorn.io/share-manager": "vol-disk1"}


def test_a_share_manager_pod_is_recognized_by_labels_and_namespace() -> None:
    for changed, namespace, expected in (
        ({}, "longhorn-system", True),
        ({}, "default", False),
        ({"longhorn.io/component": "backing-image"}, "longhorn-system", False),
        ({"longhorn.io/share-manager": ""}, "longhorn-system", False),
    ):
        assert is_share_manager_pod(namespace, SHARE_MANAGER | changed, settings()) is expected


def test_the_mode_annotation_overrides_the_default() -> None:
    assert mode_of({}, settings()) == (Mode.REQUIRED, None)
    assert mode_of({MODE_ANNOTATION: "required"}, settings(affinity_mode=Mode.PREFERRED)) == (Mode.REQUIRED, None)
    assert mode_of({MODE_ANNOTATION: ["required"]}, settings()) == (Mode.REQUIRED, "['required']")


@pytest.mark.parametrize(
    ("pod", "user", "reason"),
    [
        (virt_launcher(), "alice", Reason.NOT_FROM_KUBEVIRT),
        (share_manager_pod(), "alice", Reason.NOT_FROM_LONGHORN),
        (share_manager_pod(), KUBEVIRT, Reason.NOT_FROM_LONGHORN),
        (share_manager_pod(), LONGHORN.replace("longhorn-system", "alice"), Reason.NOT_FROM_LONGHORN),
    ],
)
def test_a_pod_of_another_creator_needs_no_look_into_the_caches(pod: Object, user: str, reason: Reason) -> None:
    no_catalog: Any = object()
    created = request(pod, pod["metadata"]["namespace"], userInfo={"username": user})
    assert decide_request(created, no_catalog, settings()).reason is reason
