"""A toleration matches a taint as in the scheduler: k8s.io/api/core/v1/toleration.go ToleratesTaint."""

from typing import Any

import pytest

from tests.support.builders import Object, virt_launcher
from webhook.placement.guard.feasibility import tolerates


@pytest.mark.parametrize(
    ("toleration", "taint", "expected"),
    [
        pytest.param(
            {"key": "k", "value": "v"}, {}, True, id="no operator means Equal and no effect means every effect"
        ),
        pytest.param({"key": "k", "value": "w"}, {}, False, id="another value does not match"),
        pytest.param({"key": "k"}, {"value": None}, True, id="an absent value matches a null value"),
        pytest.param({"key": "l", "value": "v"}, {}, False, id="another key does not match"),
        pytest.param({"key": "k", "value": "v", "effect": "NoExecute"}, {}, False, id="another effect does not match"),
        pytest.param({"key": "k", "operator": "Exists"}, {}, True, id="Exists matches the key"),
        pytest.param({"key": "l", "operator": "Exists"}, {}, False, id="Exists does not match another key"),
        pytest.param({"operator": "Exists"}, {}, True, id="Exists without a key matches everything"),
        pytest.param(
            {"key": "k", "operator": "Gt", "value": "1"},
            {"value": "2"},
            False,
            id="an operator behind a feature gate does not match",
        ),
        pytest.param({}, {}, False, id="an empty toleration does not match"),
    ],
)
def test_a_toleration_matches_a_taint(toleration: Object, taint: Object, expected: bool) -> None:
    full_taint = {"key": "k", "value": "v", "effect": "NoSchedule"} | taint
    assert (
        tolerates(virt_launcher(tolerations=[{"key": "other", "operator": "Exists"}, toleration]), full_taint)
        is expected
    )


@pytest.mark.parametrize("tolerations", [None, [], [None], {}, "all"], ids=repr)
def test_a_pod_without_tolerations_tolerates_nothing(tolerations: Any) -> None:
    assert not tolerates(virt_launcher(tolerations=tolerations), {"key": "k", "effect": "NoSchedule"})
