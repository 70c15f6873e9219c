"""The patch of a decision changes a pod's annotations, affinity and scheduler name, and nothing else."""

from copy import deepcopy
from typing import Any

import pytest

from tests.support.builders import (
    OPT_IN,
    PREFERRED,
    Object,
    apply_injection,
    catalog,
    claim,
    inject_request,
    injection_for,
    pinned_fields,
    pod,
    request,
    settings,
    share_manager_pod,
    storage,
    virt_launcher,
    volume,
)
from webhook.placement.patch import MAX_ANNOTATIONS_SIZE, PatchMismatch, apply_patch, patch_between
from webhook.placement.reasons import Outcome, Reason

NODE = "kubevirt-scheduler/co-scheduled-node"
DECISION = "kubevirt-scheduler/decision"
CO_SCHEDULED = "CoScheduled: pinned to node-a, which serves claim disk1"


def test_an_unpinned_pod_gets_the_reason_and_loses_a_stale_node_annotation() -> None:
    original = virt_launcher(annotations={NODE: "node-z"}, affinity={"nodeAffinity": {}})
    result = apply_injection(original, injection_for(original))
    explanation = "NoShareManager: no node serves claim disk1 (ClaimNotFound)"
    assert result["metadata"]["annotations"] == {OPT_IN: "true", DECISION: explanation}
    assert result["spec"] == original["spec"]


SCHEDULER_NAMES = {"kubevirt-scheduler": "default-scheduler", "a": "a"}
DEFAULT_TO_SECOND = {"default-scheduler": "second"}


OURS = {"schedulerName": "kubevirt-scheduler"}


@pytest.mark.parametrize(
    ("fields", "scheduler_names", "scheduler"),
    [
        ({}, DEFAULT_TO_SECOND, "second"),
        (OURS | {"claims": ["x"]}, SCHEDULER_NAMES, "default-scheduler"),
        (OURS | {"opt_in": None}, SCHEDULER_NAMES, "kubevirt-scheduler"),
        (OURS | {"node": "b"}, SCHEDULER_NAMES, "kubevirt-scheduler"),
    ],
    ids=["no name means the default", "a claim without a node", "not opted in", "bound"],
)
def test_the_scheduler_name_of_an_opted_in_vm_is_mapped(
    fields: Object, scheduler_names: dict[str, str], scheduler: str
) -> None:
    original = virt_launcher(**fields)
    result = apply_injection(original, injection_for(original, *storage(), scheduler_names=scheduler_names))
    assert result["spec"].get("schedulerName", "") == scheduler


def test_the_scheduler_name_of_other_pods_is_not_mapped() -> None:
    opted_in = OURS | {"annotations": {OPT_IN: "true"}}
    assert injection_for(pod(**opted_in), scheduler_names=SCHEDULER_NAMES).patch is None
    assert injection_for(share_manager_pod(**opted_in), scheduler_names=SCHEDULER_NAMES).patch is None
    copied = request(virt_launcher(**opted_in), userInfo={"username": "alice"})
    assert inject_request(copied, catalog(), settings(scheduler_names=SCHEDULER_NAMES)).patch is None


@pytest.mark.parametrize(
    ("spare", "annotated"), [(0, True), (-1, False)], ids=["an exact fit is annotated", "one byte too much is not"]
)
def test_annotations_never_exceed_the_api_servers_limit(spare: int, annotated: bool) -> None:
    """The API server refuses more than 256 KiB of keys and values (apimachinery, ValidateAnnotationsSize)."""
    added = {OPT_IN: "true", NODE: "node-a", DECISION: CO_SCHEDULED}
    available = MAX_ANNOTATIONS_SIZE - sum(len(key) + len(value) for key, value in added.items()) - len("user")
    value = "ä" * ((available - spare) // 2) + "x" * ((available - spare) % 2)
    original = virt_launcher(annotations={"user": value})
    result = apply_injection(original, injection_for(original, *storage()))
    assert result["metadata"]["annotations"] == (
        {"user": value} | added if annotated else {"user": value, OPT_IN: "true"}
    )
    assert result["spec"]["affinity"] == pinned_fields("node-a")["affinity"]


@pytest.mark.parametrize(
    ("spec", "outcome", "words"),
    [
        ({"affinity": "hunter2"}, Outcome.UNCHANGED, "(spec.affinity: expected object, got str)"),
        ({"affinity": {"nodeAffinity": "hunter2"}}, Outcome.UNCHANGED, "(nodeAffinity: expected a mapping)"),
        ({"affinity": {"nodeAffinity": {PREFERRED: {"hunter2": 1}}}}, Outcome.UNCHANGED, " expected a list)"),
        (
            {"requests": {"cpu": "hunter2"}},
            Outcome.UNCHANGED,
            "the pod is malformed (spec.containers[0].resources.requests.cpu: expected a quantity",
        ),
        ({"requests": {"cpu": "1" * 33}}, Outcome.PREFERRED, "or required pod (anti-)affinity of this size"),
    ],
)
def test_a_pod_that_cannot_be_evaluated_is_unjudged_and_not_quoted(spec: Object, outcome: Outcome, words: str) -> None:
    injection = injection_for(virt_launcher(**spec), *storage())
    assert (injection.decision.outcome, injection.decision.reason) == (outcome, Reason.UNJUDGED)
    assert (injection.patch is None, injection.error) == (outcome is Outcome.UNCHANGED, None)
    (warning,) = injection.warnings
    assert warning.startswith("kubevirt-scheduler: the pod is malformed (") is (outcome is Outcome.UNCHANGED)
    assert words in injection.decision.message
    assert "hunter2" not in f"{injection}"


def test_an_unexpected_error_leaves_the_pod_unchanged() -> None:
    def fail(_namespace: str, _name: str) -> None:
        raise LookupError("hunter2")

    store = catalog(*storage())
    store.claim = fail
    injection = inject_request(request(virt_launcher()), store, settings())
    assert (injection.decision.outcome, injection.decision.reason) == (Outcome.UNCHANGED, Reason.INTERNAL_ERROR)
    assert (injection.patch, injection.warnings, type(injection.error)) == (None, (), LookupError)
    assert "hunter2" not in f"{injection.decision}"


CLAIM_WITH_RUNNING_VM = [claim(), volume(), virt_launcher("vm", node="node-a")]


@pytest.mark.parametrize("annotations", ["text", ["a"], 7], ids=["a string", "a list", "a number"])
def test_annotations_of_the_wrong_type_are_not_overwritten(annotations: Any) -> None:
    original = share_manager_pod()
    original["metadata"]["annotations"] = annotations
    injection = injection_for(original, *CLAIM_WITH_RUNNING_VM)
    assert (injection.decision.reason, injection.patch) == (Reason.UNJUDGED, None)


def test_a_pod_without_a_spec_gets_no_affinity() -> None:
    for original in share_manager_pod() | {"spec": None}, share_manager_pod() | {"spec": {}}:
        injection = injection_for(original, *CLAIM_WITH_RUNNING_VM)
        assert (injection.decision.outcome, injection.patch) == (Outcome.UNCHANGED, None)
        assert "spec is empty" in injection.decision.message


# The patch itself: minimal, and it applies


def add(path: str, value: Any) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}


def replace(path: str, value: Any) -> dict[str, Any]:
    return {"op": "replace", "path": path, "value": value}


@pytest.mark.parametrize(
    ("before", "after", "operations"),
    [
        ({"a": "x"}, {"a": "x"}, []),
        ({}, {"a": {"b": 1}}, [add("/a", {"b": 1})]),  # with its missing parent
        ({"a": {"b": 1}}, {"a": {}}, [{"op": "remove", "path": "/a/b"}]),
        ({"a": "x"}, {"a": "y"}, [replace("/a", "y")]),
        ({"a": [1]}, {"a": [1, 2, 3]}, [add("/a/-", 2), add("/a/-", 3)]),
        ({"a": [None, {"b": []}, {"c": 1}]}, {"a": [None, {"b": [1]}, {"c": 1}]}, [add("/a/1/b/-", 1)]),
        ({"a": [1, 2]}, {"a": [1]}, [replace("/a", [1])]),  # a shorter list
        ({"a": [1]}, {"a": {"b": 1}}, [replace("/a", {"b": 1})]),  # another type
    ],
)
def test_the_patch_is_minimal_and_applies(before: Any, after: Any, operations: list[Any]) -> None:
    originals = deepcopy((before, after))
    patch = patch_between(before, after)
    assert patch == operations
    assert apply_patch(patch, before) == after
    assert (before, after) == originals


@pytest.mark.parametrize("name", ["/", "~", "~0", "~1", "a/b", "~/~", "", " ", "ä", '"', "0", "-"])
def test_any_key_can_be_added(name: str) -> None:
    assert apply_patch(patch_between({"a": {}}, {"a": {name: 1}}), {"a": {}}) == {"a": {name: 1}}


def test_a_patch_that_does_not_produce_the_object_raises_patch_mismatch() -> None:
    class HidingDict(dict[str, Any]):
        """A dict that hides its items, which no decoded JSON does."""

        def items(self) -> Any:
            return {}.items()

    with pytest.raises(PatchMismatch):
        patch_between({"a": {"b": 1, "c": 1}}, {"a": HidingDict(b=2)})
