"""The real API server takes each rendering of a grid of values, down to the last field."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.controlplane.plane import ControlPlane
from tests.support.helm_chart import CI, NAME, NAMESPACE, Object, render, template

pytestmark = pytest.mark.controlplane

ACCOUNTS = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
# Others' kinds, as far as the chart needs them: there, and whatever is in them is taken.
FOREIGN = {
    "monitoring.coreos.com": ["ServiceMonitor", "PrometheusRule"],
    "cert-manager.io": ["Certificate", "Issuer"],
}
SCHEDULER = {"enabled": True, "image": {"tag": "v0.34.7"}}
PROMETHEUS = {"metricProvider": "Prometheus", "prometheus": {"address": "https://prometheus.example.com"}}
GRID: dict[str, Object] = {
    "one replica, no budget": {"replicas": 1, "podDisruptionBudget": {"enabled": False}},
    "nothing but the webhook": {"rbac": {"create": False}, "serviceAccount": {"create": False, "name": "default"}},
    "an issuer of our own": {"certificates": {"source": "cert-manager"}},
    "no Prometheus comes in": {"networkPolicy": {"enabled": True, "apiServers": ["192.0.2.0/24"], "prometheus": None}},
    "on the nodes' network": {"hostNetwork": True},
    "on OpenShift": {"openshift": True, "scheduler": {"enabled": True}},
    "a scheduler's name taken out": {"settings": {"schedulerNames": {"old": None}}},
    "observing": {"settings": {"action": "observe", "steering": False}},
    "a scheduler": {"scheduler": {"enabled": True, "name": "my-scheduler"}},
    "packing by the metrics server": {"scheduler": SCHEDULER | {"loadAware": {"enabled": True}}},
    "packing by Prometheus": {"scheduler": SCHEDULER | {"loadAware": {"enabled": True} | PROMETHEUS}},
    "little risk": {"scheduler": SCHEDULER | {"loadAware": {"enabled": True, "plugin": "LowRiskOverCommitment"}}},
    "evened out": {"scheduler": SCHEDULER | {"loadAware": {"enabled": True, "plugin": "LoadVariationRiskBalancing"}}},
}


def crd(group: str, kind: str) -> Object:
    names = {"kind": kind, "plural": f"{kind.lower()}s", "singular": kind.lower(), "listKind": f"{kind}List"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    spec = {"group": group, "scope": "Namespaced", "names": names, "versions": [version]}
    return {"metadata": {"name": f"{names['plural']}.{group}"}, "spec": spec}


@pytest.fixture(scope="module")
def foreign(plane: ControlPlane) -> Iterator[ControlPlane]:
    """The control plane with the kinds of Prometheus' operator and of cert-manager."""
    for name in NAME, "co-scheduler":  # a pod is not taken, not even as a dry run, before its account is there
        account = {"metadata": {"name": f"{name}-test"}}
        plane.request("POST", ACCOUNTS, account)
    for group, kinds in FOREIGN.items():
        for kind in kinds:
            plane.request("POST", CRDS, crd(group, kind))
    for group, kinds in FOREIGN.items():
        plane.wait(
            lambda group=group, kinds=kinds: len(plane.request("GET", f"/apis/{group}/v1")["resources"]) == len(kinds),
            20,
            f"the kinds of {group}",
        )
    yield plane
    for name in NAME, "co-scheduler":
        plane.request("DELETE", f"{ACCOUNTS}/{name}-test")


@pytest.mark.parametrize("values", [*CI, *GRID.values()], ids=[*(file.stem for file in CI), *GRID])
def test_the_api_server_takes_it(foreign: ControlPlane, values: Object | Path) -> None:
    rendered = template(values)
    # Strictly: a field that the API does not know is an error, and no warning that nobody reads.
    taken = foreign.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", input=rendered)
    assert len(taken.splitlines()) == len(render(values))


def test_what_the_api_server_would_not_take_is_noticed(foreign: ControlPlane) -> None:
    broken = template().replace("timeoutSeconds: 3", "timeoutSeconds: 33")
    with pytest.raises(RuntimeError, match="timeoutSeconds"):
        foreign.kubectl("apply", "--dry-run=server", "-f", "-", input=broken)
