"""An earlier injection is recognized from the pod alone and can be removed."""

from copy import deepcopy

import pytest

from tests.support.builders import (
    PREFERRED,
    REQUIRED,
    Object,
    name_requirement,
    node_terms,
    pinned_fields,
    pod,
    virt_launcher,
)
from webhook.placement.affinity import matches_no_node, pinned_node, with_node, without_injection

PIN = name_requirement("node-a")
PINNED_TERM = {"matchFields": [PIN]}
SSD = {"key": "disk", "operator": "In", "values": ["ssd"]}
NOT_B = name_requirement("node-b", "NotIn")
USER_PREFERENCE = {"weight": 100, "preference": {"matchFields": [name_requirement("node-b")]}}
OTHER_AFFINITY = {"podAntiAffinity": {REQUIRED: [{"topologyKey": "x"}]}, "podAffinity": None, "future": [1]}


PINNED_FIELDS = pinned_fields("node-a")


@pytest.mark.parametrize(
    ("fields", "node"),
    [
        pytest.param(PINNED_FIELDS, "node-a", id="annotation and term name the node"),
        pytest.param(
            PINNED_FIELDS | {"affinity": node_terms(None, {}, PINNED_TERM)}, "node-a", id="empty terms are ignored"
        ),
        pytest.param(
            PINNED_FIELDS | {"affinity": node_terms(PINNED_TERM, {"matchExpressions": [SSD]})},
            "",
            id="one term without the pin is not our pin",
        ),
        pytest.param(PINNED_FIELDS | {"affinity": None}, "", id="the annotation alone is not our pin"),
        pytest.param(PINNED_FIELDS | {"annotations": {}}, "", id="the term alone is the user's pin"),
    ],
)
def test_pinned_node_requires_the_annotation_and_every_term(fields: Object, node: str) -> None:
    assert pinned_node(virt_launcher("one", **fields)) == node


@pytest.mark.parametrize(
    "affinity",
    [
        pytest.param({"nodeAffinity": {}}, id="no user affinity"),
        pytest.param(node_terms({"matchExpressions": [SSD]}) | OTHER_AFFINITY, id="a user term"),
        pytest.param(
            node_terms({"matchExpressions": [SSD]}, None, {}, {"matchFields": [NOT_B]}), id="several user terms"
        ),
        pytest.param({"nodeAffinity": {PREFERRED: [USER_PREFERENCE]}}, id="a user preference"),
    ],
)
@pytest.mark.parametrize("pin", [True, False], ids=["required", "preferred"])
def test_without_injection_restores_the_users_pod(affinity: Object, pin: bool) -> None:
    annotations = {"kubevirt-scheduler/co-scheduled-node": "node-a", "kubevirt-scheduler/decision": "x", "user": "y"}
    injected_pod = pod(affinity=with_node(affinity, "node-a", pin=pin), annotations=annotations, hostname="vm1")
    before = deepcopy(injected_pod)
    assert without_injection(injected_pod) == pod(affinity=affinity, annotations={"user": "y"}, hostname="vm1")
    assert injected_pod == before


@pytest.mark.parametrize(
    "required", [{"nodeSelectorTerms": []}, {"nodeSelectorTerms": None}, {}], ids=["empty", "null", "absent"]
)
def test_without_injection_keeps_an_affinity_that_matches_nothing(required: Object) -> None:
    affinity = with_node({"nodeAffinity": {REQUIRED: required}}, "node-a", pin=False)
    restored_pod = without_injection(pod(affinity=affinity, annotations=PINNED_FIELDS["annotations"]))
    assert matches_no_node(restored_pod["spec"]["affinity"]["nodeAffinity"][REQUIRED])
