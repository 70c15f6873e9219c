"""Several replicas with delayed watches never leave a VM Pending, in any interleaving."""

from random import Random

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.cluster.replica_model import SERVING, Model

thorough = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
SEEDS = st.integers(min_value=0, max_value=2**32)


@thorough
@given(SEEDS, st.integers(1, 3), st.integers(1, 30), st.integers(1, 12))
def test_replicas_pin_no_more_vms_than_fit_and_every_vm_runs(seed: int, replicas: int, vms: int, capacity: int) -> None:
    model = Model(Random(seed), replicas, vms, capacity)
    model.run()
    assert model.pinned() <= capacity
    event(f"stuck before the release: {len(model.pending())}")
    if replicas == 1:
        assert not model.pending()
    model.release()
    assert (model.pending(), model.needless) == ([], 0)
    assert len(model.pods) == vms
    assert model.nodes()[SERVING] <= capacity


@thorough
@given(SEEDS, st.integers(1, 3), st.integers(1, 6), st.booleans())
def test_a_vm_whose_place_another_pod_took_is_released_only_if_its_place_stays_taken(
    seed: int, replicas: int, foreign: int, departing: bool
) -> None:
    model = Model(Random(seed), replicas, 12, 6, foreign=foreign)
    model.run_with_a_slow_scheduler()
    event(f"stuck before the release: {len(model.pending())}")
    model.release(departing=departing)
    event(f"released: {model.deletions}")
    assert (model.pending(), model.needless) == ([], 0)


@thorough
@given(SEEDS, st.integers(1, 30), st.integers(1, 12))
def test_vms_that_prefer_the_node_take_no_place_of_a_pinned_vm(seed: int, vms: int, capacity: int) -> None:
    model = Model(Random(seed), 1, vms, capacity, preferring=0.4)
    model.run()
    assert not model.pending()
    assert model.nodes()[SERVING] <= capacity


@thorough
@given(SEEDS, st.integers(1, 3))
def test_vms_that_repel_each_other_all_run(seed: int, replicas: int) -> None:
    model = Model(Random(seed), replicas, 12, 100, repelling=True)
    model.run()
    event(f"stuck before the release: {len(model.pending())}")
    if replicas == 1:
        assert not model.pending()
    model.release()
    assert (model.pending(), model.needless) == ([], 0)


@thorough
@given(SEEDS, st.integers(2, 3), st.integers(1, 30), st.integers(1, 12))
def test_a_replica_that_gets_all_calls_fills_the_node(seed: int, replicas: int, vms: int, capacity: int) -> None:
    model = Model(Random(seed), replicas, vms, capacity, session_affinity=True)
    model.run()
    assert model.pinned() == min(vms, capacity)
    assert not model.pending()


@thorough
@given(SEEDS, st.integers(2, 3), st.integers(0, 10), st.integers(1, 20))
def test_every_vm_runs_when_the_calls_move_to_another_replica(
    seed: int, replicas: int, before: int, after: int
) -> None:
    model = Model(Random(seed), replicas, before, 12, session_affinity=True)
    model.run()
    model.called = 1
    model.to_create = [f"vm-{before + number}" for number in range(after)]
    model.run()
    model.release()
    assert (model.pending(), model.needless) == ([], 0)
    assert len(model.pods) == before + after


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_the_escrow_leaves_few_places_empty(replicas: int) -> None:
    used = []
    for seed in range(10):
        model = Model(Random(seed), replicas, 100, 40)
        model.run()
        used.append(min(model.pinned(), 40))
    assert min(used) == 40 if replicas == 1 else sum(used) / len(used) >= 36
