"""The simulation of Longhorn does in each trail what Longhorn's real controllers did, in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise, product

import pytest

from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.longhorn import VOLUMES, Longhorn
from tests.support.scenario import Scenario
from tests.support.trails import ATTACHMENTS, CLAIMS, PODS, Player, Recorder, load, mismatch

TRAILS = load()
EVIDENCE = {"recorded", "seen", "source"}


@pytest.fixture(scope="module")
def player(plane: ControlPlane, longhorn: Longhorn) -> Iterator[Player]:
    before = longhorn.deletes_consumers, longhorn.fast_failover
    with (
        closing(Scenario(plane, longhorn, None)) as scenario,
        Recorder(plane, longhorn.managers, PODS, ATTACHMENTS, CLAIMS, VOLUMES) as recorder,
    ):
        yield Player(scenario, recorder)
    longhorn.pod_annotations = {}
    longhorn.deletes_consumers, longhorn.fast_failover = before


@pytest.mark.controlplane
@pytest.mark.parametrize("name", TRAILS)
def test_the_simulation_shows_what_the_real_controllers_showed(player: Player, name: str) -> None:
    trail = TRAILS[name]
    assert trail["evidence"] in EVIDENCE
    try:
        seen, pods = player.play(name, trail)
    finally:
        player.clean_up()
    assert mismatch(trail["trail"], seen) == ""
    for pod in pods:
        assert contains(pod, trail.get("pod", {}))
    assert not trail.get("last_pod") or contains(pods[-1], trail["last_pod"])


def contains(pod: Object, expected: Object) -> bool:
    """Return whether the pod has the labels and the fields of the spec."""
    labels = expected.get("metadata", {}).get("labels", {})
    return pod["metadata"]["labels"].items() >= labels.items() and all(
        pod["spec"].get(key) == value for key, value in expected.get("spec", {}).items()
    )


@pytest.mark.parametrize("name", TRAILS)
def test_two_swapped_observations_do_not_match_the_trail(name: str) -> None:
    trail = [[each] if isinstance(each, str) else each for each in TRAILS[name]["trail"] if not isinstance(each, dict)]
    seen = [name.removeprefix("?") for group in trail for name in group]
    assert mismatch(trail, seen) == ""
    place, swapped = 0, 0
    for group, following in pairwise(trail):
        place += len(group)
        for first, second in product(range(place - len(group), place), range(place, place + len(following))):
            if seen[first] != seen[second]:
                other = list(seen)
                other[first], other[second] = seen[second], seen[first]
                assert mismatch(trail, other), other
                swapped += 1
    assert swapped
    assert mismatch(trail, seen[:-1]) or trail[-1][-1].startswith("?")
    assert mismatch(trail, [*seen, "pod created"])
