"""Helm refuses invalid values before it installs anything, and the message states what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.helm_chart import (
    HelmError,
    default_value,
    default_values,
    find_one,
    leaf_paths,
    render,
)

pytestmark = pytest.mark.controlplane  # Helm is built together with the control plane

# Values, and parts of the error message.
INVALID = yaml.safe_load(Path(__file__).with_name("invalid_values.yaml").read_text())


@pytest.mark.parametrize("case", INVALID.values(), ids=INVALID)
def test_an_invalid_value_is_refused_with_a_helpful_message(case: dict[str, Any]) -> None:
    with pytest.raises(HelmError) as error:
        render(case["values"])
    for part in case["message"]:
        assert part in str(error.value)


# If a values file comments out everything below a key, the key is null, and Helm drops it.
ENABLED = {name: {"enabled": True} for name in ("serviceMonitor", "prometheusRule", "dashboard")}
ENABLED |= {"certificates": {"source": "cert-manager"}}
SECTIONS = [key for key, value in default_values().items() if isinstance(value, dict) and value]
EMPTY_DEFAULTS = [path for path in leaf_paths(default_values()) if default_value(path) in ({}, [])]


def test_an_empty_section_is_refused_by_name() -> None:
    with pytest.raises(HelmError, match="missing properties") as error:
        render(dict.fromkeys(SECTIONS))
    assert [section for section in SECTIONS if f"'{section}'" not in str(error.value)] == []


def test_null_lists_and_maps_render_like_empty_ones() -> None:
    empty: dict[str, Any] = {}
    for section, *keys in EMPTY_DEFAULTS:
        inner = empty
        for key in [section, *keys][:-1]:
            inner = inner.setdefault(key, dict(ENABLED.get(key, {})) if inner is empty else {})
        inner[[section, *keys][-1]] = None
    assert render(ENABLED | empty) == render(ENABLED)


def test_an_unsupported_kubernetes_version_is_refused() -> None:
    with pytest.raises(
        HelmError, match=r"chart requires kubeVersion: >=1.30.0-0 which is incompatible with Kubernetes v1.29"
    ):
        render({}, "--kube-version=1.29.14")


def test_a_parent_chart_can_include_this_chart() -> None:
    render({"global": {"anything": 1}, "enabled": True})


@pytest.mark.parametrize(("replicas", "least"), [(2, 1), (2, "50%"), (3, 2), (3, "51%"), (10, "90%"), (1, "")])
def test_a_drain_that_can_end_is_accepted(replicas: int, least: int | str) -> None:
    budget = find_one(
        render({"replicas": replicas, "podDisruptionBudget": {"minAvailable": least}}), "PodDisruptionBudget"
    )
    assert budget["spec"].items() >= ({"minAvailable": least} if least else {"maxUnavailable": 1}).items()
    assert len({"minAvailable", "maxUnavailable"} & set(budget["spec"])) == 1
