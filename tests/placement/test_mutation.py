"""A pod becomes what was decided: annotations, affinity and scheduler name, and nothing else."""

from copy import deepcopy
from typing import Any

import pytest

from tests.support.builders import (
    OPT_IN,
    PREFERRED,
    REQUIRED,
    Object,
    claim,
    injected,
    node,
    node_named,
    patched,
    pinned,
    pod,
    share_manager_pod,
    storage,
    virt_launcher,
    volume,
)
from webhook.placement.decision import Decision, Mode, Outcome, Reason
from webhook.placement.mutation import ANNOTATIONS_SIZE, patch_for
from webhook.placement.settings import Action, Settings
from webhook.placement.shape import Malformed

NODE = "kubevirt-scheduler/co-scheduled-node"
DECISION = "kubevirt-scheduler/decision"
CO_SCHEDULED = "CoScheduled: pinned to node-a, which serves claim disk1"
MIGRATION = {"labels": {"kubevirt.io/migrationJobUID": "uid"}}


def add(path: str, value: Any) -> Object:
    return {"op": "add", "path": path, "value": value}


def test_a_pinned_pod_gets_two_annotations_and_two_terms() -> None:
    made = virt_launcher(schedulerName="my-scheduler")
    injection = injected(made, *storage(), node())
    field = {"matchFields": [node_named("node-a")]}
    preferred = [{"weight": 100, "preference": field}]
    assert injection.patch == [
        add("/metadata/annotations/kubevirt-scheduler~1decision", CO_SCHEDULED),
        add("/metadata/annotations/kubevirt-scheduler~1co-scheduled-node", "node-a"),
        add("/spec/affinity", {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [field]}, PREFERRED: preferred}}),
    ]


@pytest.mark.parametrize(
    ("annotations", "after"),
    [
        pytest.param({}, {}, id="opted in"),
        pytest.param({"a": "b", "c": ""}, {"a": "b", "c": ""}, id="the user's stay"),
        pytest.param({NODE: "node-z", DECISION: "old"}, {}, id="stale ones of ours are replaced"),
        pytest.param({"a": None}, {"a": None}, id="a null"),
    ],
)
def test_annotations_are_added_to_what_is_there(annotations: Object, after: Object) -> None:
    made = virt_launcher(annotations=annotations)
    before = deepcopy(made)
    result = patched(made, injected(made, *storage()))
    assert result["metadata"]["annotations"] == {OPT_IN: "true", NODE: "node-a", DECISION: CO_SCHEDULED} | after
    assert result | {"metadata": before["metadata"], "spec": before["spec"]} == before
    assert made == before


def test_a_pod_that_is_not_pinned_is_told_why_and_loses_a_stale_node() -> None:
    made = virt_launcher(annotations={NODE: "node-z"}, affinity={"nodeAffinity": {}})
    result = patched(made, injected(made))
    told = "NoShareManager: no claim has a node: disk1 (ClaimNotFound)"
    assert result["metadata"]["annotations"] == {OPT_IN: "true", DECISION: told}
    assert result["spec"] == made["spec"]


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(virt_launcher(), id="pinned"),
        pytest.param(virt_launcher(affinity=pinned("node-a")["affinity"]), id="the user's own pin"),
        pytest.param(virt_launcher(affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": []}}}), id="softened"),
        pytest.param(virt_launcher(claims=["gone"]), id="without a node"),
        pytest.param(virt_launcher(annotations={"x": "y" * (ANNOTATIONS_SIZE - 100)}), id="no room for annotations"),
    ],
)
@pytest.mark.parametrize("chosen", [{}, {"scheduler_names": {"default-scheduler": "b", "a": "b"}}], ids=["", "renamed"])
def test_the_second_application_gives_no_patch(made: Object, chosen: Object) -> None:
    first = injected(made, *storage(), node(), **chosen)
    second = injected(patched(made, first), *storage(), node(), **chosen)
    assert first.patch
    assert second.patch is None
    assert second.decision.reason in (Reason.ALREADY_INJECTED, first.decision.reason)


def test_what_the_user_pinned_alike_is_not_added_twice() -> None:
    injection = injected(virt_launcher(affinity=pinned("node-a")["affinity"]), *storage())
    assert [operation["path"] for operation in injection.patch] == [
        "/metadata/annotations/kubevirt-scheduler~1decision",
        "/metadata/annotations/kubevirt-scheduler~1co-scheduled-node",
    ]


NAMES = {"kubevirt-scheduler": "default-scheduler", "a": "a"}
TO_SECOND = {"default-scheduler": "second"}


@pytest.mark.parametrize(
    ("fields", "names", "scheduler"),
    [
        pytest.param({"schedulerName": "kubevirt-scheduler"}, NAMES, "default-scheduler", id="mapped"),
        pytest.param({"schedulerName": "other"}, NAMES, "other", id="not mapped"),
        pytest.param({"schedulerName": "a"}, NAMES, "a", id="mapped to itself"),
        pytest.param({"schedulerName": "kubevirt-scheduler"}, {}, "kubevirt-scheduler", id="no map"),
        pytest.param({"schedulerName": "default-scheduler"}, TO_SECOND, "second", id="the default"),
        pytest.param({}, TO_SECOND, "second", id="none is the default"),
        pytest.param({"schedulerName": ""}, TO_SECOND, "second", id="an empty one, too"),
        pytest.param(
            {"schedulerName": "kubevirt-scheduler"} | MIGRATION, NAMES, "default-scheduler", id="a migration target"
        ),
        pytest.param(
            {"schedulerName": "kubevirt-scheduler", "claims": []}, NAMES, "default-scheduler", id="without claims"
        ),
        pytest.param(
            {"schedulerName": "kubevirt-scheduler", "claims": ["x"]}, NAMES, "default-scheduler", id="without a node"
        ),
        pytest.param({"schedulerName": "kubevirt-scheduler"} | pinned("b"), NAMES, "default-scheduler", id="injected"),
        pytest.param(
            {"schedulerName": "kubevirt-scheduler", "opt_in": None}, NAMES, "kubevirt-scheduler", id="not opted in"
        ),
        pytest.param({"schedulerName": "kubevirt-scheduler", "node": "b"}, NAMES, "kubevirt-scheduler", id="bound"),
    ],
)
def test_the_scheduler_of_opted_in_vms_is_renamed(fields: Object, names: dict[str, str], scheduler: str) -> None:
    made = virt_launcher(**fields)
    result = patched(made, injected(made, *storage(), scheduler_names=names))
    assert result["spec"].get("schedulerName", "") == scheduler


def test_only_a_vm_has_its_scheduler_renamed() -> None:
    opted_in = {"annotations": {OPT_IN: "true"}, "schedulerName": "kubevirt-scheduler"}
    assert injected(pod(**opted_in), scheduler_names=NAMES).patch is None
    assert injected(share_manager_pod(**opted_in), scheduler_names=NAMES).patch is None


def test_a_migration_target_has_nothing_but_its_scheduler_renamed() -> None:
    injection = injected(
        virt_launcher(schedulerName="kubevirt-scheduler", **MIGRATION), *storage(), scheduler_names=NAMES
    )
    assert injection.patch == [{"op": "replace", "path": "/spec/schedulerName", "value": "default-scheduler"}]
    assert injection.decision.reason is Reason.MIGRATION_TARGET


def test_to_observe_is_to_decide_and_to_patch_nothing() -> None:
    chosen = {"action": Action.OBSERVE, "scheduler_names": TO_SECOND}
    injection = injected(virt_launcher(), *storage(), **chosen)
    assert (injection.decision.outcome, injection.decision.reason) == (Outcome.PINNED, Reason.CO_SCHEDULED)
    assert injection.patch is None


@pytest.mark.parametrize(("spare", "told"), [(0, True), (-1, False)], ids=["an exact fit", "a byte too much"])
def test_annotations_never_grow_beyond_what_the_api_server_takes(spare: int, told: bool) -> None:
    """Refused by the API server: more than 256 KiB of keys and values (apimachinery, ValidateAnnotationsSize)."""
    ours = {OPT_IN: "true", NODE: "node-a", DECISION: CO_SCHEDULED}
    room = ANNOTATIONS_SIZE - sum(len(key) + len(value) for key, value in ours.items()) - len("user")
    value = "ä" * ((room - spare) // 2) + "x" * ((room - spare) % 2)
    made = virt_launcher(annotations={"user": value})
    result = patched(made, injected(made, *storage()))
    assert result["metadata"]["annotations"] == ({"user": value} | ours if told else {"user": value, OPT_IN: "true"})
    assert result["spec"]["affinity"] == pinned("node-a")["affinity"]


def decision(outcome: Outcome, node: str | None = "node-a", *, recorded: bool = True) -> Decision:
    return Decision(outcome, Reason.CO_SCHEDULED, "why", Mode.REQUIRED, node, recorded=recorded)


@pytest.mark.parametrize("annotations", [{"metadata": {}}, {"metadata": {"annotations": None}}], ids=["absent", "null"])
def test_missing_annotations_are_added(annotations: Object) -> None:
    operations = patch_for(decision(Outcome.UNCHANGED, None), pod() | annotations, Settings())
    assert operations == [add("/metadata/annotations", {DECISION: "CoScheduled: why"})]


def test_what_is_not_recorded_is_not_told() -> None:
    assert patch_for(decision(Outcome.UNCHANGED, recorded=False), virt_launcher(), Settings()) == []


def test_an_affinity_that_is_none_raises() -> None:
    with pytest.raises(Malformed):
        patch_for(decision(Outcome.PREFERRED), virt_launcher(affinity="ssd"), Settings())


def test_no_patch_is_sent_where_the_affinity_is_none() -> None:
    injection = injected(virt_launcher(affinity="hunter2"), *storage())
    assert (injection.decision.outcome, injection.decision.reason) == (Outcome.UNCHANGED, Reason.INTERNAL_ERROR)
    assert (injection.patch, injection.warnings, type(injection.error)) == (None, (), Malformed)
    assert "hunter2" not in f"{injection.decision} {injection.error}"


FOLLOWED = [claim(), volume(), virt_launcher("vm", node="node-a")]


@pytest.mark.parametrize("annotations", ["text", ["a"], 7])
def test_annotations_of_another_type_are_not_overwritten(annotations: Any) -> None:
    made = share_manager_pod()
    made["metadata"]["annotations"] = annotations
    injection = injected(made, *FOLLOWED)
    assert (injection.decision.reason, injection.patch) == (Reason.INTERNAL_ERROR, None)


@pytest.mark.parametrize("spec", [None, "text", [], ...], ids=["null", "a string", "a list", "absent"])
def test_a_patch_applies_to_a_pod_without_a_spec(spec: Any) -> None:
    made = share_manager_pod()
    made["spec"] = spec
    if spec is ...:
        del made["spec"]
    patched(made, injected(made, *FOLLOWED))
