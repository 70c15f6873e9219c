"""`mounted_claims` lists the claims of a pod in volume order, each once."""

from typing import Any

import pytest

from tests.support.builders import pod
from webhook.placement.objects.claims import mounted_claims


def claim_volume(name: Any) -> dict[str, Any]:
    return {"name": "volume", "persistentVolumeClaim": {"claimName": name}}


@pytest.mark.parametrize(
    ("volumes", "claims"),
    [
        pytest.param(
            [claim_volume("b"), claim_volume("a"), claim_volume("c")], ("b", "a", "c"), id="claims stay in volume order"
        ),
        pytest.param(
            [claim_volume("b"), claim_volume("a"), claim_volume("b")], ("b", "a"), id="a repeated claim is listed once"
        ),
        pytest.param([{"name": "x", "emptyDir": {}}, claim_volume("a")], ("a",), id="other volumes are skipped"),
        pytest.param([], (), id="no volumes"),
        pytest.param(None, (), id="null volumes"),
        pytest.param("disk1", (), id="volumes of the wrong type"),
        pytest.param([None, "disk1", 7, claim_volume("a")], ("a",), id="malformed volumes are skipped"),
        pytest.param([claim_volume(None), claim_volume(""), claim_volume(7)], (), id="invalid claim names are skipped"),
        pytest.param(
            [{"persistentVolumeClaim": None}, {"persistentVolumeClaim": "disk1"}],
            (),
            id="malformed claim sources are skipped",
        ),
        pytest.param(
            [{"name": "x", "ephemeral": {"volumeClaimTemplate": {}}}], (), id="an ephemeral volume is skipped"
        ),
    ],
)
def test_mounted_claims_are_listed_in_volume_order_and_once(volumes: Any, claims: tuple[str, ...]) -> None:
    assert mounted_claims(pod(volumes=volumes)) == claims


@pytest.mark.parametrize("malformed_pod", [{}, {"spec": None}, {"spec": []}], ids=["absent", "null", "a list"])
def test_a_pod_without_a_spec_mounts_no_claims(malformed_pod: dict[str, Any]) -> None:
    assert mounted_claims(malformed_pod) == ()
