"""Is the pod ours? The first rule that does not hold ends it, with no patch."""

from copy import deepcopy
from typing import Any

import pytest

from tests.support.builders import (
    OPT_IN,
    REQUIRED,
    Object,
    catalog,
    decided,
    injected,
    node_named,
    patched,
    pinned,
    pod,
    request,
    settings,
    storage,
    virt_launcher,
)
from webhook.placement.decision import Mode, Outcome, Reason
from webhook.placement.eligibility import RULES, ineligible_reason, is_pod_creation, is_share_manager_pod, mode_of
from webhook.placement.injector import inject

GO_OPT_IN = "scheduler.kubevirt-scheduler.io/co-schedule"
MODE = "kubevirt-scheduler/co-schedule-mode"
MIGRATION = "kubevirt.io/migrationJobUID"
DUMMY = "kubevirt.io/ephemeral-provisioning"


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param({"operation": "UPDATE"}, id="an update"),
        pytest.param({"operation": "DELETE", "object": None}, id="a deletion"),
        pytest.param({"operation": "create"}, id="not the word"),
        pytest.param({"operation": None}, id="no operation"),
        pytest.param({"subResource": "binding"}, id="a binding"),
        pytest.param({"subResource": "eviction"}, id="an eviction"),
        pytest.param({"kind": {"group": "", "version": "v1", "kind": "Node"}}, id="a node"),
        pytest.param({"kind": {"group": "metrics.k8s.io", "version": "v1", "kind": "Pod"}}, id="another group's pod"),
        pytest.param({"kind": "Pod"}, id="a kind that is a string, and an object without one"),
        pytest.param({"object": None}, id="no object"),
        pytest.param({"object": "pod"}, id="an object that is a string"),
        pytest.param({"object": [virt_launcher()]}, id="an object that is a list"),
    ],
)
def test_what_does_not_create_a_pod_is_left_alone(broken: Object) -> None:
    asked = request({"metadata": {}, "spec": {}}) | broken
    injection = inject(asked, catalog(*storage()), settings())
    assert not is_pod_creation(asked)
    assert (injection.decision.reason, injection.patch) == (Reason.NOT_A_POD_CREATION, None)
    assert injection.decision.outcome is Outcome.UNCHANGED


@pytest.mark.parametrize(
    "fields", [{}, {"subResource": ""}, {"kind": None}], ids=["usual", "empty subresource", "kind"]
)
def test_a_pod_being_created_is_looked_at(fields: Object) -> None:
    assert is_pod_creation(request(pod()) | fields)


ENDS = [
    pytest.param({"labels": {"kubevirt.io": "virt-handler"}}, Reason.NOT_VIRT_LAUNCHER, id="another KubeVirt pod"),
    pytest.param({"labels": {"kubevirt.io": "hotplug-disk"}}, Reason.NOT_VIRT_LAUNCHER, id="a hotplug pod"),
    pytest.param({"labels": {"kubevirt.io": "Virt-Launcher"}}, Reason.NOT_VIRT_LAUNCHER, id="not the word"),
    pytest.param({"labels": {"kubevirt.io": None}}, Reason.NOT_VIRT_LAUNCHER, id="no KubeVirt pod"),
    *(
        pytest.param({"opt_in": value}, Reason.NOT_OPTED_IN, id=f"opted in by {value!r}")
        for value in (None, "True", "TRUE", "yes", "1", "", " true", "true ", "false", True, 1, ["true"])
    ),
    pytest.param({"opt_in": "false", "annotations": {GO_OPT_IN: "no"}}, Reason.NOT_OPTED_IN, id="both keys say no"),
    pytest.param({"labels": {MIGRATION: "uid"}}, Reason.MIGRATION_TARGET, id="a migration target"),
    pytest.param({"annotations": {DUMMY: "true"}}, Reason.EPHEMERAL_PROVISIONING, id="a provisioning dummy"),
    pytest.param({"annotations": {DUMMY: ""}}, Reason.EPHEMERAL_PROVISIONING, id="a dummy, whatever the value"),
    pytest.param({"nodeName": "node-b"}, Reason.ALREADY_BOUND, id="bound"),
    pytest.param({"claims": []}, Reason.NO_CLAIMS, id="no claims"),
    pytest.param({"volumes": [{"name": "x", "emptyDir": {}}]}, Reason.NO_CLAIMS, id="volumes without a claim"),
    pytest.param(pinned("node-b"), Reason.ALREADY_INJECTED, id="our annotation and our terms"),
]


@pytest.mark.parametrize(("fields", "reason"), ENDS)
def test_the_first_rule_that_does_not_hold_ends_it_without_a_patch(fields: Object, reason: Reason) -> None:
    made = virt_launcher(**fields)
    before = deepcopy(made)
    injection = injected(made, *storage())
    assert (injection.decision.reason, injection.decision.outcome) == (reason, Outcome.UNCHANGED)
    assert (injection.patch, injection.warnings, injection.decision.node, injection.decision.claims) == (
        None,
        (),
        None,
        (),
    )
    assert made == before


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({}, id="the key of our annotations"),
        pytest.param({"opt_in": None, "annotations": {GO_OPT_IN: "true"}}, id="the later key"),
        pytest.param({"opt_in": "false", "annotations": {GO_OPT_IN: "true"}}, id="the later key against the first"),
        pytest.param({"annotations": {GO_OPT_IN: "false"}}, id="the first key against the later"),
        pytest.param({"labels": {MIGRATION: ""}}, id="an empty migration label"),
        pytest.param({"nodeName": ""}, id="an empty nodeName"),
        pytest.param(
            {"annotations": {"kubevirt-scheduler/co-scheduled-node": "node-b"}}, id="a stale annotation alone"
        ),
    ],
)
def test_a_pod_that_passes_every_rule_is_ours(fields: Object) -> None:
    assert ineligible_reason(virt_launcher(**fields), settings()) is None
    assert decided(virt_launcher(**fields), *storage()).reason is Reason.CO_SCHEDULED


def test_a_pin_that_another_webhook_voided_is_made_good_when_we_are_called_again() -> None:
    """With `reinvocationPolicy: IfNeeded` we are called again because another webhook changed the pod after us."""
    made = virt_launcher(**pinned("node-a"))
    made["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"].append(
        {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}
    )
    after = patched(made, injected(made, *storage()))
    terms = after["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert all(node_named("node-a") in term.get("matchFields", []) for term in terms)


def test_the_rules_are_asked_in_the_order_of_the_design() -> None:
    order = [row.values[1] for row in ENDS]
    assert [rule.reason for rule in RULES] == list(dict.fromkeys(order))


@pytest.mark.parametrize("first", range(len(RULES)))
def test_of_several_rules_that_do_not_hold_the_first_is_the_reason(first: int) -> None:
    broken = [
        row.values[0] for row in ENDS if row.id in ("another KubeVirt pod", "opted in by None", "a migration target")
    ]
    broken += [{"annotations": {DUMMY: "x"}}, {"nodeName": "n"}, {"claims": []}, pinned("node-b")]
    fields: Object = {}
    for more in broken[first:]:
        fields |= more | {key: fields.get(key, {}) | more.get(key, {}) for key in ("labels", "annotations")}
    assert ineligible_reason(virt_launcher(**fields), settings()) is RULES[first].reason


@pytest.mark.parametrize("key", [OPT_IN, GO_OPT_IN])
def test_only_the_keys_of_the_settings_opt_in(key: str) -> None:
    made = virt_launcher(opt_in=None, annotations={key: "true"})
    assert ineligible_reason(made, settings(opt_in_annotations=("example.com/co-schedule",))) is Reason.NOT_OPTED_IN
    assert ineligible_reason(made, settings(opt_in_annotations=(key,))) is None


@pytest.mark.parametrize(
    ("annotation", "default", "mode", "unknown"),
    [
        pytest.param({}, Mode.REQUIRED, Mode.REQUIRED, None, id="the default"),
        pytest.param({}, Mode.PREFERRED, Mode.PREFERRED, None, id="the other default"),
        pytest.param({MODE: "preferred"}, Mode.REQUIRED, Mode.PREFERRED, None, id="the VM's wish"),
        pytest.param({MODE: "required"}, Mode.PREFERRED, Mode.REQUIRED, None, id="the VM's other wish"),
        pytest.param({MODE: "Required"}, Mode.PREFERRED, Mode.PREFERRED, "Required", id="not the word"),
        pytest.param({MODE: ""}, Mode.REQUIRED, Mode.REQUIRED, "", id="an empty one"),
        pytest.param({MODE: None}, Mode.REQUIRED, Mode.REQUIRED, None, id="null"),
        pytest.param({MODE: ["required"]}, Mode.REQUIRED, Mode.REQUIRED, "['required']", id="a list"),
    ],
)
def test_a_vm_may_override_the_mode(annotation: Object, default: Mode, mode: Mode, unknown: str | None) -> None:
    assert mode_of(virt_launcher(annotations=annotation), settings(affinity_mode=default)) == (mode, unknown)


SHARE_MANAGER = {"longhorn.io/component": "share-manager", "longhorn.io/share-manager": "vol-disk1"}


@pytest.mark.parametrize(
    ("labels", "namespace", "answer"),
    [
        pytest.param(SHARE_MANAGER, "longhorn-system", True, id="one"),
        pytest.param(SHARE_MANAGER, "default", False, id="in another namespace"),
        pytest.param(
            SHARE_MANAGER | {"longhorn.io/component": "backing-image"}, "longhorn-system", False, id="another part"
        ),
        pytest.param({"longhorn.io/component": "share-manager"}, "longhorn-system", False, id="of no volume"),
        pytest.param(
            SHARE_MANAGER | {"longhorn.io/share-manager": ""}, "longhorn-system", False, id="of an empty name"
        ),
        pytest.param({"longhorn.io/share-manager": "vol-disk1"}, "longhorn-system", False, id="half the labels"),
        pytest.param({}, "longhorn-system", False, id="no labels"),
    ],
)
def test_a_share_manager_pod_is_known_by_labels_and_namespace(labels: Object, namespace: str, answer: Any) -> None:
    assert is_share_manager_pod(pod(labels=labels), namespace, settings()) is answer


def test_the_longhorn_namespace_is_a_setting() -> None:
    made = pod(namespace="storage", labels=SHARE_MANAGER)
    assert decided(made).reason is Reason.NOT_VIRT_LAUNCHER
    assert decided(made, longhorn_namespace="storage").reason is Reason.NO_CONSUMER
