"""The annotation of a VM, the label of its namespace and the StorageClasses of its claims opt it in, in this order."""

from itertools import product
from typing import Any

import pytest

from tests.support.builders import (
    OPT_IN,
    Object,
    claim,
    decide_request,
    decision_for,
    labeled_namespace,
    node,
    request,
    settings,
    share_manager_pod,
    storage,
    storage_class,
    virt_launcher,
    volume,
)
from tests.support.fleet import inventory, vm, vm_pod, without_manifests
from webhook.fleet.states import assess
from webhook.placement.objects.kubevirt import is_copied
from webhook.placement.objects.selectors import Requirement
from webhook.placement.opt_in import IN_TEMPLATE, opt_in_mistake, opted_in_by
from webhook.placement.reasons import Mode, OptedInBy, Reason
from webhook.placement.settings import OPT_IN_KEY, Action, OptIn
from webhook.placement.wording import unchanged

OLD_KEY = "scheduler.kubevirt-scheduler.io/co-schedule"
BY_NAMESPACE: Object = {"opt_in": OptIn.NAMESPACE}
OBSERVE: Object = {"action": Action.OBSERVE}
IN, OUT, UNSET = "true", "false", None

# What the annotation, the namespace's label and the StorageClass's annotation say. The first that is set decides.
TABLE = list(product((IN, OUT, UNSET), repeat=3))
IDS = [f"annotation {row[0]}, namespace {row[1]}, StorageClass {row[2]}" for row in TABLE]


def decider(*sayings: str | None) -> OptedInBy:
    """Return what opts a VM in; a StorageClass can't opt out."""
    kinds = OptedInBy.ANNOTATION, OptedInBy.NAMESPACE, OptedInBy.STORAGE_CLASS
    first = next(((saying, kind) for saying, kind in zip(sayings, kinds, strict=True) if saying), None)
    return first[1] if first and first[0] == IN else OptedInBy.NOTHING


def cluster(label: str | None = UNSET, annotation: str | None = UNSET) -> list[Object]:
    """Build a cluster whose claim `disk1` is served by node-a and was made from a StorageClass."""
    _, *served = storage()
    made_from = claim(storageClassName="longhorn-rwx")
    return [made_from, *served, labeled_namespace(opt_in=label), storage_class(opt_in=annotation), node()]


@pytest.mark.parametrize(("annotation", "label", "of_class"), TABLE, ids=IDS)
def test_the_first_that_is_set_decides_on_a_new_a_stored_and_a_stopped_vm(
    annotation: str | None, label: str | None, of_class: str | None
) -> None:
    by = decider(annotation, label, of_class)
    decision = decision_for(virt_launcher(opt_in=annotation), *cluster(label, of_class), **BY_NAMESPACE)
    assert decision.opted_in_by is by
    assert decision.reason is (Reason.NOT_OPTED_IN if by is OptedInBy.NOTHING else Reason.CO_SCHEDULED)

    running, chosen = vm_pod(opt_in=annotation), settings(**BY_NAMESPACE)
    own = {} if annotation is None else {OPT_IN: annotation}
    owner = vm(opt_in=False, annotations=own, volumes=[{"dataVolume": {"name": "disk1"}}])
    found = inventory(*cluster(label, of_class), running, owner)
    (pod,) = found.store.pods.of_app("virt-launcher")
    assert opted_in_by(pod, found.store, chosen) is by
    (cached,) = without_manifests(found.machines(chosen))
    (complete,) = found.machines(chosen)
    for machine in (cached, complete):
        assessed = assess(machine, found.store, chosen)
        assert assessed.opted_in_by is by
        assert assessed.opted_out is (by is OptedInBy.NOTHING and OUT in (annotation, label))


def test_by_default_only_the_annotation_opts_in_and_otherwise_one_true_annotation_or_class_suffices() -> None:
    for annotation, by in (IN, OptedInBy.ANNOTATION), (OUT, OptedInBy.NOTHING), (UNSET, OptedInBy.NOTHING):
        assert decision_for(virt_launcher(opt_in=annotation), *cluster(IN, IN)).opted_in_by is by
    both = virt_launcher(opt_in=OUT, annotations={OLD_KEY: IN})
    assert decision_for(both, *cluster(OUT), **BY_NAMESPACE).opted_in_by is OptedInBy.ANNOTATION
    two = virt_launcher(opt_in=None, claims=["disk0", "disk1"])
    other = [claim("disk0", storageClassName="other"), volume("disk0")]
    assert decision_for(two, *other, *cluster(UNSET, IN), **BY_NAMESPACE).opted_in_by is OptedInBy.STORAGE_CLASS


@pytest.mark.parametrize("value", ["True", "yes", "", "1"])
def test_another_value_counts_as_unset(value: str) -> None:
    unquoted: Any = True
    assert decision_for(virt_launcher(opt_in=unquoted), *cluster(IN), **BY_NAMESPACE).opted_in_by is OptedInBy.NAMESPACE
    vm_pod_ = virt_launcher(opt_in=value)
    assert decision_for(vm_pod_, *cluster(IN), **BY_NAMESPACE).opted_in_by is OptedInBy.NAMESPACE
    assert decision_for(vm_pod_, *cluster(value, IN), **BY_NAMESPACE).opted_in_by is OptedInBy.STORAGE_CLASS
    assert decision_for(vm_pod_, *cluster(value, value), **BY_NAMESPACE).opted_in_by is OptedInBy.NOTHING


@pytest.mark.parametrize(
    "objects",
    [
        pytest.param([storage_class()], id="an unknown claim"),
        pytest.param([claim(), storage_class()], id="a claim without a StorageClass"),
        pytest.param([claim(storageClassName="gone")], id="an unknown StorageClass"),
    ],
)
def test_an_unknown_namespace_or_storage_class_opts_nothing_in(objects: list[Object]) -> None:
    decision = decision_for(virt_launcher(opt_in=None), *objects, **BY_NAMESPACE)
    assert (decision.reason, decision.opted_in_by) == (Reason.NOT_OPTED_IN, OptedInBy.NOTHING)


def test_in_a_namespace_that_is_not_selected_every_vm_is_opted_out_and_no_share_manager_follows_one() -> None:
    excluded: Object = BY_NAMESPACE | {"namespace_selector": (Requirement(OPT_IN_KEY, "DoesNotExist"),)}
    objects = cluster(IN, IN)
    assert decision_for(virt_launcher(), *objects, **excluded).reason is Reason.NOT_OPTED_IN
    pv, running = volume(), vm_pod(node="node-b")
    for chosen, reason in (BY_NAMESPACE, Reason.CO_SCHEDULED), (excluded, Reason.NO_CONSUMER):
        manager = decision_for(share_manager_pod(), labeled_namespace(), claim(), pv, running, node("node-b"), **chosen)
        assert manager.reason is reason
    found = inventory(*objects, running, vm())
    (machine,) = found.machines(settings(**excluded))
    assessed = assess(machine, found.store, settings(**excluded))
    assert (assessed.opted_in_by, assessed.opted_out) == (OptedInBy.NOTHING, True)


def test_before_the_cache_is_synced_the_opt_in_is_unknown_unless_an_annotation_decides() -> None:
    def decided(annotation: str | None, **overrides: Any) -> tuple[Reason, OptedInBy]:
        decision = decide_request(request(virt_launcher(opt_in=annotation)), None, settings(**overrides))
        return decision.reason, decision.opted_in_by

    assert decided(None, **BY_NAMESPACE) == (Reason.CACHE_NOT_SYNCED, OptedInBy.UNKNOWN)
    assert decided(IN, **BY_NAMESPACE) == (Reason.CACHE_NOT_SYNCED, OptedInBy.ANNOTATION)
    assert decided(OUT, **BY_NAMESPACE) == (Reason.NOT_OPTED_IN, OptedInBy.NOTHING)
    assert decided(None) == (Reason.NOT_OPTED_IN, OptedInBy.NOTHING)


def test_the_opt_in_is_unknown_if_the_webhook_fails() -> None:
    for reason, by in (Reason.INTERNAL_ERROR, OptedInBy.UNKNOWN), (Reason.NOT_VIRT_LAUNCHER, OptedInBy.NOTHING):
        assert unchanged(reason, Mode.REQUIRED, "a sentence").opted_in_by is by


# --- the action observe ---


def test_an_observer_counts_every_vm_as_a_consumer_of_its_volume() -> None:
    running = virt_launcher("one", opt_in=None, node="node-a")
    decision = decision_for(share_manager_pod(), claim(), volume(), node(), running, **OBSERVE)
    assert (decision.reason, decision.node) == (Reason.CO_SCHEDULED, "node-a")


KEYS = (OPT_IN, OLD_KEY)
# The annotations of a VM's metadata and of its template, and those that look like an opt-in but are none.
MISTAKES: dict[str, tuple[Object, Object, str]] = {
    "none": ({}, {OPT_IN: IN}, ""),
    "opted out": ({OPT_IN: IN}, {OPT_IN: OUT}, ""),
    "the later key": ({}, {OLD_KEY: IN}, ""),
    "on the VM itself": ({OPT_IN: IN}, {}, f"metadata.annotations has {OPT_IN}: 'true'"),
    "misspelled": ({}, {"kubevirt-scheduler/co-shedule": IN}, f"{IN_TEMPLATE} has kubevirt-scheduler/co-shedule"),
    "another prefix": ({}, {"kubevirt-scheduler.io/co-schedule": IN}, f"{IN_TEMPLATE} has kubevirt-scheduler.io/"),
    "yes": ({}, {OPT_IN: "yes"}, f"{IN_TEMPLATE} has {OPT_IN}: 'yes'"),
    "True without quotes": ({}, {OPT_IN: True}, f"{IN_TEMPLATE} has {OPT_IN}: True"),
    "other annotations": ({"kubevirt.io/latest-observed-api-version": "v1"}, {f"{OPT_IN}-mode": "preferred"}, ""),
    "those of a decision": ({}, {f"{OPT_IN}-claim": "a", "kubevirt-scheduler/co-scheduled-node": "b"}, ""),
}


@pytest.mark.parametrize(("own", "template", "expected"), MISTAKES.values(), ids=MISTAKES)
def test_an_annotation_that_looks_like_an_opt_in_but_is_none_is_found(
    own: Object, template: Object, expected: str
) -> None:
    machine = vm(opt_in=False, annotations=template)
    machine["metadata"]["annotations"] = own
    found = opt_in_mistake(machine, KEYS)
    assert found.startswith(expected)
    assert (bool(found), f'write {IN_TEMPLATE}: {OPT_IN}: "true"' in found) == (bool(expected), bool(expected))


@pytest.mark.parametrize(
    ("flag", "copied"),
    [
        (None, False),
        ("", False),
        ("a.example/b", False),
        (OPT_IN, True),
        (OPT_IN.upper(), True),  # virt-operator writes the flag in lower case
        (f"a.example/b,{OPT_IN}", True),
        (f"{OPT_IN}-", False),
        ("kubevirt-scheduler/*", True),
        ("*", False),  # KubeVirt refuses to copy all
    ],
)
def test_kubevirt_copies_the_annotations_that_a_flag_of_its_controller_names(flag: str | None, *, copied: bool) -> None:
    flags = {"customizeComponents": {"flags": {"controller": {"additional-launcher-annotations-sync": flag}}}}
    assert is_copied(OPT_IN, {"spec": flags}) is copied
    assert is_copied(OPT_IN, None) is False
