"""One step of a simulation: what it changes, and that a step which can't happen changes nothing."""

import pytest

from tests.fleet.test_drain import BIG, FULL, KEEPS, NODES, NOT_MIGRATABLE, SERVED, on, site
from tests.support.builders import Object, hotplug_pod, share_manager_pod, storage
from webhook.fleet.simulation.state import Phase, State
from webhook.fleet.simulation.steps import Action, Step, apply

KEY = ("default", "vm1")


def before(*manifests: Object, nodes: tuple[str, ...] = ("node-a", "node-b", "node-c")) -> State:
    return State.before(site(*manifests), nodes)


def after(state: State, *steps: Step) -> State:
    for step in steps:
        state = apply(state, step)
    return state


@pytest.mark.parametrize("action", [Action.MIGRATE, Action.RECOLOCATE, Action.START])
def test_a_step_that_cannot_happen_leaves_a_vm_where_it_is(action: Action) -> None:
    state = before(NODES[0], FULL, *SERVED, *on("node-a", "disk1", pod=BIG))
    found = after(state, Step(action, vms=(KEY,))).vms[KEY]
    assert (found.nodes, found.phase, found.starts) == (("node-a",), Phase.RUNS, 0)


def test_a_vm_without_a_node_is_not_concerned() -> None:
    assert not before(*NODES, *SERVED, *on("", "disk1")).vms


def test_a_state_shows_where_everything_is() -> None:
    state = before(*NODES, *SERVED, *on("node-a", "disk1"))
    moved = after(state, Step(Action.CORDON, ("node-a", "node-b")), Step(Action.MIGRATE, vms=(KEY,)))
    catalog = moved.catalog
    assert [each.name for each in catalog.all_nodes() if each.unschedulable] == ["node-a", "node-b"]
    assert [pod.node for pod in catalog.mounting_pods("default", "disk1")] == ["node-c"]
    assert [each.requested("node-a", ("", ""))["pods"] for each in (state.catalog, catalog)] == [2, 1]
    assert moved.is_together(moved.vms[KEY]) is False
    drained = after(moved, Step(Action.DRAIN, ("node-a",)))
    server = drained.catalog.share_manager_pod("longhorn-system", "vol-disk1")
    assert server is not None
    assert (server.node, drained.is_together(drained.vms[KEY])) == ("node-c", True)
    assert state.catalog is state.site.catalog
    assert moved.catalog.share_manager("longhorn-system", "vol-disk1") == state.catalog.share_manager(
        "longhorn-system", "vol-disk1"
    )


def test_a_share_manager_that_no_node_can_run_is_being_replaced() -> None:
    here = share_manager_pod(node="node-a", nodeSelector={"kubernetes.io/hostname": "node-a"})
    state = before(*NODES, *SERVED[:2], here, *on("node-b", "disk1"))
    hangs = after(state, Step(Action.CORDON, ("node-a",)), Step(Action.DRAIN, ("node-a",)))
    manager = hangs.catalog.share_manager("longhorn-system", "vol-disk1")
    assert manager is not None
    assert manager.state == "error"
    assert hangs.catalog.share_manager_pod("longhorn-system", "vol-disk1") is None
    stopped = after(hangs, Step(Action.STOP, vms=(KEY,)))
    assert (stopped.servers["vol-disk1"].needed, stopped.vms[KEY].halted) == (False, True)


def test_a_vm_with_an_unknown_next_pod_runs_somewhere() -> None:
    created = on("node-a", "disk1", **NOT_MIGRATABLE)
    created[0] |= {"status": {"conditions": [{"type": "RestartRequired", "status": "True"}]}}
    created[0]["spec"] |= {"instancetype": {"name": "gone"}, "template": {}}
    state = before(*NODES, *SERVED, *created)
    found = after(state, Step(Action.RESTART, vms=(KEY,))).vms[KEY]
    assert (found.nodes, found.phase, found.why) == ((), Phase.RUNS, "where it can run is unknown")


def test_a_vm_whose_only_disk_is_hotplugged_follows_its_share_manager_only_if_it_is_stopped_first() -> None:
    plugged = on("node-b")
    state = before(*NODES, *SERVED, *plugged, hotplug_pod(plugged[2], node="node-b"))
    restarted = after(state, Step(Action.RESTART, vms=(KEY,)))
    started = after(state, Step(Action.STOP, vms=(KEY,)), Step(Action.START, vms=(KEY,)))
    assert [each.is_together(each.vms[KEY]) for each in (state, restarted, started)] == [False, None, True]


def test_a_vm_that_may_run_elsewhere_may_be_evicted() -> None:
    state = before(*NODES, *SERVED, *on("node-a", "disk1", strategy="None", run="Once"))
    restarted = after(state, Step(Action.CORDON, ("node-a",)), Step(Action.RESTART, vms=(KEY,)))
    drained = after(restarted, Step(Action.DRAIN, ("node-b",)))
    assert (restarted.vms[KEY].nodes, drained.vms[KEY].nodes) == (("node-b", "node-c"), ("node-c",))
    assert (drained.vms[KEY].phase, drained.vms[KEY].may_stop) == (Phase.RUNS, True)
    assert drained.elsewhere == {KEY}


def test_a_vm_moves_to_where_its_share_manager_may_be() -> None:
    state = before(*NODES, *SERVED, *storage("disk2", "node-b"), *on("node-a", "disk1", opt_in=False))
    steps = [Step(Action.CORDON, ("node-a",)), Step(Action.MIGRATE, vms=(KEY,)), Step(Action.DRAIN, ("node-a",))]
    drained = after(state, *steps)
    assert drained.is_together(drained.vms[KEY]) is None
    moved = after(drained, Step(Action.RECOLOCATE, vms=(KEY,)))
    assert (moved.is_together(moved.vms[KEY]), moved.vms[KEY].nodes) == (True, ("node-b", "node-c"))
    assert KEEPS["current-longhorn-version"] == state.site.longhorn("current-longhorn-version")
