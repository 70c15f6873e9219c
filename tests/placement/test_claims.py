"""Which claims a pod mounts: in the order of its volumes, each once."""

from typing import Any

import pytest

from tests.support.builders import pod
from webhook.placement.claims import mounted_claims


def by_claim(name: Any) -> dict[str, Any]:
    return {"name": "volume", "persistentVolumeClaim": {"claimName": name}}


@pytest.mark.parametrize(
    ("volumes", "claims"),
    [
        pytest.param([by_claim("b"), by_claim("a"), by_claim("c")], ("b", "a", "c"), id="volume order"),
        pytest.param([by_claim("b"), by_claim("a"), by_claim("b")], ("b", "a"), id="the first of equals"),
        pytest.param([{"name": "x", "emptyDir": {}}, by_claim("a")], ("a",), id="beside other volumes"),
        pytest.param([], (), id="no volumes"),
        pytest.param(None, (), id="null volumes"),
        pytest.param("disk1", (), id="a string for volumes"),
        pytest.param([None, "disk1", 7, by_claim("a")], ("a",), id="a null volume and others that are none"),
        pytest.param([by_claim(None), by_claim(""), by_claim(7)], (), id="names that are none"),
        pytest.param(
            [{"persistentVolumeClaim": None}, {"persistentVolumeClaim": "disk1"}], (), id="sources that are none"
        ),
        pytest.param(
            [{"name": "x", "ephemeral": {"volumeClaimTemplate": {}}}], (), id="a claim made for the pod alone"
        ),
    ],
)
def test_the_claims_of_a_pod_come_in_volume_order_and_once(volumes: Any, claims: tuple[str, ...]) -> None:
    assert mounted_claims(pod(volumes=volumes)) == claims


@pytest.mark.parametrize("broken", [{}, {"spec": None}, {"spec": []}])
def test_a_pod_without_a_spec_mounts_nothing(broken: dict[str, Any]) -> None:
    assert mounted_claims(broken) == ()
