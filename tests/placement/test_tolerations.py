"""A toleration is for a taint as the scheduler has it: k8s.io/api/core/v1/toleration.go ToleratesTaint."""

from typing import Any

import pytest

from tests.support.builders import Object, virt_launcher
from webhook.placement.feasibility import tolerates


@pytest.mark.parametrize(
    ("toleration", "taint", "answer"),
    [
        pytest.param({"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}, {}, True, id="all equal"),
        pytest.param({"key": "k", "value": "v"}, {}, True, id="no operator is Equal, no effect is every effect"),
        pytest.param({"key": "k", "value": "v", "operator": "", "effect": ""}, {}, True, id="empty ones, too"),
        pytest.param({"key": "k", "value": "w"}, {}, False, id="another value"),
        pytest.param({"key": "k"}, {}, False, id="no value for a value"),
        pytest.param({"key": "k"}, {"value": None}, True, id="no value for none"),
        pytest.param({"key": "l", "value": "v"}, {}, False, id="another key"),
        pytest.param({"key": "k", "value": "v", "effect": "NoExecute"}, {}, False, id="another effect"),
        pytest.param({"key": "k", "operator": "Exists"}, {}, True, id="the key"),
        pytest.param({"key": "l", "operator": "Exists"}, {}, False, id="another key exists"),
        pytest.param({"operator": "Exists"}, {}, True, id="everything"),
        pytest.param({"operator": "Exists", "effect": "NoSchedule"}, {}, True, id="everything of the effect"),
        pytest.param({"operator": "Exists", "effect": "NoExecute"}, {}, False, id="everything of another effect"),
        pytest.param(
            {"key": "k", "operator": "Exists", "tolerationSeconds": 0}, {"effect": "NoExecute"}, True, id="for a while"
        ),
        pytest.param(
            {"key": "k", "operator": "Gt", "value": "1"}, {"value": "2"}, False, id="an operator behind a feature gate"
        ),
        pytest.param({}, {}, False, id="nothing"),
    ],
)
def test_a_toleration_is_for_a_taint(toleration: Object, taint: Object, answer: bool) -> None:
    found = {"key": "k", "value": "v", "effect": "NoSchedule"} | taint
    assert tolerates(virt_launcher(tolerations=[{"key": "other", "operator": "Exists"}, toleration]), found) is answer


@pytest.mark.parametrize("tolerations", [None, [], [None], {}, "all"], ids=repr)
def test_a_pod_without_tolerations_tolerates_nothing(tolerations: Any) -> None:
    assert not tolerates(virt_launcher(tolerations=tolerations), {"key": "k", "effect": "NoSchedule"})
