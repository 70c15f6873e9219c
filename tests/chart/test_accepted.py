"""The API server accepts the objects that the chart renders, with strict field validation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import crds
from tests.support.controlplane.plane import ControlPlane
from tests.support.helm_chart import CI_VALUES, NAME, NAMESPACE, SECONDARY, Object, render, render_secondary, template
from tests.support.paths import SECONDARY_CHART

pytestmark = pytest.mark.controlplane

ACCOUNTS = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
# Kinds of other projects that the chart uses. Their CRDs accept any field here.
FOREIGN = {
    "monitoring.coreos.com": ["ServiceMonitor", "PrometheusRule"],
    "cert-manager.io": ["Certificate", "Issuer"],
}
GRID: dict[str, Object] = {
    "without optional objects": {
        "replicas": 1,
        "podDisruptionBudget": {"enabled": False},
        "rbac": {"create": False},
        "serviceAccount": {"create": False, "name": "default"},
        "release": {"enabled": False},
        "service": {"sessionAffinity": {"enabled": False}},
        "hostNetwork": True,
        "settings": {"schedulerNames": {"old": None}, "optIn": "namespace"},
    },
    "cert-manager with the chart's issuer, on OpenShift": {
        "certificates": {"source": "cert-manager"},
        "openshift": True,
        "networkPolicy": {"enabled": True, "apiServers": ["192.0.2.0/24"], "prometheus": None},
        "settings": {"action": "observe", "optIn": "namespace", "migrationTargets": "prefer"},
    },
    "volumes besides the certificate's": {
        "certificates": {"source": "provided", "secretName": "webhook-certificate"},
        "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
        "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca"}],
        "global": {"imageRegistry": "mirror.example.com"},
        "networkPolicy": {"enabled": True, "apiServers": ["192.0.2.0/24"], "egress": {"enabled": True, "dns": None}},
        "settings": {"action": "observe", "steering": False},
    },
}


@pytest.fixture(scope="module")
def plane_with_crds(plane: ControlPlane) -> Iterator[ControlPlane]:
    """The control plane with the CRDs of the Prometheus operator and of cert-manager."""
    for name in NAME, "co-scheduler":  # admission rejects a pod without its account, even in a dry run
        account = {"metadata": {"name": f"{name}-test"}}
        plane.request("POST", ACCOUNTS, account)
    crds.install(plane, *(crds.crd(kind, group, status=False) for group in FOREIGN for kind in FOREIGN[group]))
    yield plane
    for name in NAME, "co-scheduler":
        plane.request("DELETE", f"{ACCOUNTS}/{name}-test")


@pytest.mark.parametrize("values", [*CI_VALUES, *GRID.values()], ids=[*(file.stem for file in CI_VALUES), *GRID])
def test_the_api_server_accepts_the_rendered_objects(plane_with_crds: ControlPlane, values: Object | Path) -> None:
    rendered = template(values)
    # With strict validation, an unknown field is an error instead of a warning.
    applied = plane_with_crds.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", input=rendered)
    assert len(applied.splitlines()) == len(render(values))


@pytest.mark.parametrize("file", sorted(SECONDARY_CHART.glob("*values.yaml")), ids=lambda file: file.stem)
def test_the_api_server_accepts_the_secondary_scheduler(plane_with_crds: ControlPlane, file: Path) -> None:
    rendered = template(file, release=SECONDARY, chart=SECONDARY_CHART)
    applied = plane_with_crds.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", input=rendered)
    assert len(applied.splitlines()) == len(render_secondary(file))
