"""A plan is made for all VMs together: what is planned for one VM takes its place before the next is evaluated."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.support.builders import (
    HOSTNAME,
    REQUIRED,
    Object,
    catalog,
    node,
    pod,
    pod_anti_affinity,
    pod_term,
    settings,
    storage,
)
from tests.support.fleet import admits, inventory, vm, vm_pod
from tests.support.migrations import migratable
from webhook.catalog.inventory import Inventory
from webhook.fleet.machine import State
from webhook.fleet.relocation.rules import Move, Surroundings
from webhook.fleet.simulation.plan import Proposal, make_plan, together_after_restart
from webhook.fleet.simulation.state import Phase, Site
from webhook.fleet.simulation.state import State as Simulated
from webhook.fleet.simulation.steps import Action, Step, apply
from webhook.fleet.states import assess
from webhook.placement.settings import Settings

GIBIBYTE = 1024**3
CAPACITY_FOR_ONE = [
    node("node-a", allocatable={"memory": "3Gi", "pods": "110"}, labels={"kubevirt.io/schedulable": "true"}),
    node("node-b", labels={"kubevirt.io/schedulable": "true"}),
]
FIXED: Object = {"conditions": [{"type": "LiveMigratable", "status": "False", "message": "a device"}]}


def disk(name: str, target: str, size: int) -> list[Object]:
    claim, *rest = storage(name, target)
    claim["spec"]["resources"] = {"requests": {"storage": f"{size}Gi"}}
    return [claim, *rest]


def plan(*manifests: Object, **overrides: Any) -> dict[str, Proposal]:
    found, chosen = inventory(*manifests), settings(**overrides)
    return {each.status.machine.name: each for each in plan_of(found, chosen)}


def plan_of(found: Inventory, chosen: Settings) -> list[Proposal]:
    statuses = [assess(each, found.store, chosen) for each in found.machines(chosen)]
    apart = [each for each in statuses if each.state is State.APART]
    return make_plan(apart, found.store, Surroundings(chosen))


def apart_vm(name: str, size: int, vmi: Object | None = None, **rest: Any) -> list[Object]:
    """Build a VM on node-b that requests 2 GiB, whose disk node-a serves."""
    own = vm_pod(name, "node-b", claims=[name], requests={"memory": "2Gi"}, **rest)
    return [*disk(name, "node-a", size), vm(name), migratable(name, **(vmi or {})), own]


def actions(found: dict[str, Proposal]) -> dict[str, str]:
    return {name: each.action for name, each in found.items()}


def test_capacity_for_one_goes_to_the_vm_that_gains_most() -> None:
    found = plan(*CAPACITY_FOR_ONE, *apart_vm("small", 1), *apart_vm("large", 9), *apart_vm("medium", 5))
    assert list(found) == ["large", "medium", "small"]
    assert actions(found) == {"large": "migrate", "medium": "restart", "small": "restart"}
    assert [each.result.word for each in found.values() if not isinstance(each.result, Move)] == ["NodeFull"] * 2


def test_a_planned_move_takes_no_place_on_another_node() -> None:
    other = node("node-c", labels={"kubevirt.io/schedulable": "true"}, allocatable={"memory": "3Gi", "pods": "110"})
    elsewhere = [*disk("two", "node-c", 1), *apart_vm("two", 1)[-3:]]
    assert actions(plan(*CAPACITY_FOR_ONE, other, *apart_vm("one", 2), *elsewhere)) == {
        "one": "migrate",
        "two": "migrate",
    }


def test_a_planned_restart_takes_its_place_too() -> None:
    fleet = [each for name, size in (("one", 3), ("two", 2)) for each in apart_vm(name, size, FIXED)]
    shared = [pod(f"backup-{name}", claims=[name], node="node-b") for name in ("one", "two")]
    assert actions(plan(*CAPACITY_FOR_ONE, *fleet, *shared)) == {"one": "restart", "two": "none"}
    assert actions(plan(*CAPACITY_FOR_ONE, *fleet)) == {"one": "restart", "two": "restart"}  # cold starts, on any node
    unguarded = plan(*CAPACITY_FOR_ONE, *fleet, *shared, node_guard=False)
    assert actions(unguarded) == {"one": "restart", "two": "restart"}


def test_of_two_restarts_with_one_place_only_one_brings_a_vm_to_its_storage() -> None:
    fleet = [each for name, size in (("one", 3), ("two", 2)) for each in apart_vm(name, size, FIXED)]
    shared = [pod(f"backup-{name}", claims=[name], node="node-b") for name in ("one", "two")]
    helped = {}
    for name, manifests in (("pinned", [*fleet, *shared]), ("cold", fleet)):
        found, chosen = inventory(*CAPACITY_FOR_ONE, *manifests), settings()
        statuses = [assess(each, found.store, chosen) for each in found.machines(chosen)]
        assert all(each.start and each.start.helps for each in statuses)
        together = together_after_restart(statuses, found.store, Surroundings(chosen))
        helped[name] = [each.machine.name for each in together]
    assert helped == {"pinned": ["one"], "cold": ["one", "two"]}


def test_vms_that_repel_each_other_are_not_planned_onto_one_node() -> None:
    spread = {"labels": {"app": "db"}, "affinity": pod_anti_affinity(pod_term({"app": "db"}))}
    nodes = [node("node-a"), node("node-b"), node("node-c")]
    one, two = apart_vm("one", 2, **spread), apart_vm("two", 1, **deepcopy(spread))
    two[-1]["spec"]["nodeName"] = two[-2]["status"]["nodeName"] = "node-c"
    found = plan(*nodes, *one, *two)
    assert [each.action for each in found.values()] == ["migrate", "restart"]
    assert isinstance(found["one"].result, Move)
    assert [found["two"].result.word] == ["PodAffinity"]  # type: ignore[union-attr]


@pytest.mark.parametrize(("shared", "action"), [(2, "none"), (1, "restart")])
def test_no_restart_is_planned_by_which_more_becomes_remote_than_local(shared: int, action: str) -> None:
    """The VM's own disk decides, and the image beside it is larger. Other VMs mount both, so neither server moves."""
    fleet = [*apart_vm("one", 1, FIXED), *disk("image", "node-b", shared)]
    fleet[-4]["spec"]["volumes"].append({"name": "image", "persistentVolumeClaim": {"claimName": "image"}})
    others = [pod("backup", claims=["one"], node="node-c"), vm_pod("other", "node-b", claims=["image"])]
    assert actions(plan(*CAPACITY_FOR_ONE, node("node-c"), *fleet, *others)) == {"one": action}


VOLUMES_CHANGE: Object = {"conditions": [{"type": "VolumesChange", "status": "True"}]}


@pytest.mark.parametrize(
    ("strategy", "status", "action"),
    [("Halted", {}, "none"), ("", {}, "none"), ("Once", {}, "restart"), ("Always", VOLUMES_CHANGE, "none")],
    ids=["being stopped", "unknown", "Once", "its volume migration needs an operator"],
)
def test_a_vm_is_restarted_only_if_it_would_start_again(strategy: str, status: Object, action: str) -> None:
    fleet = apart_vm("one", 1, FIXED)
    fleet[-3]["spec"]["runStrategy"], fleet[-3]["status"] = strategy, status
    assert actions(plan(*CAPACITY_FOR_ONE, *fleet)) == {"one": action}


@st.composite
def fleets(draw: st.DrawFn) -> list[Object]:
    """Draw nodes of different sizes, and VMs of which some have a second disk elsewhere or repel each other."""
    names = ["node-a", "node-b", "node-c"]
    allocatable = draw(st.tuples(*[st.integers(2, 12)] * 3))
    fleet: list[Object] = [
        node(name, allocatable={"memory": f"{memory}Gi", "pods": "110"}, labels={HOSTNAME: name})
        for name, memory in zip(names, allocatable, strict=True)
    ]
    for number in range(draw(st.integers(1, 6))):
        name = f"vm{number}"
        where, target, other = (draw(st.sampled_from(names)) for _ in range(3))
        fleet += [
            *disk(f"{name}-a", target, draw(st.integers(1, 9))),
            *disk(f"{name}-b", other, draw(st.integers(1, 9))),
        ]
        claims = [f"{name}-a", f"{name}-b"] if draw(st.booleans()) else [f"{name}-a"]
        labels = {"app": draw(st.sampled_from(["db", "web"]))}
        affinity = pod_anti_affinity(pod_term({"app": "db"})) if draw(st.booleans()) else {}
        requests = {"memory": f"{draw(st.integers(1, 3))}Gi"}
        launcher = vm_pod(name, where, claims=claims, labels=labels, requests=requests, affinity=affinity)
        fleet += [vm(name), migratable(name, where), launcher | {"status": {"phase": "Running"}}]
    return fleet


@hypothesis_settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(fleet=fleets())
def test_a_plan_that_is_carried_out_alone_has_no_failed_migration_and_makes_nothing_more_remote(
    fleet: list[Object],
) -> None:
    proposals = plan_of(inventory(*fleet), settings())
    nodes = [each for each in fleet if each["kind"] == "Node"]
    pods = {each["metadata"]["name"]: each for each in fleet if each["kind"] == "Pod"}
    sizes = {each["metadata"]["name"]: each for each in fleet if each["kind"] == "PersistentVolumeClaim"}
    moves = [each for each in proposals if isinstance(each.result, Move)]
    event(f"{len(moves)} moves")
    for each in moves:
        before = remote(pods, sizes)
        assert isinstance(each.result, Move)
        name, target = f"virt-launcher-{each.result.name}-abcde", each.result.target
        assert admits(catalog(*nodes, *pods.values()), target_pod(pods[name], target), target)
        pods[name] = pods[name] | {"spec": pods[name]["spec"] | {"nodeName": target}}
        assert before - remote(pods, sizes) == each.gain >= 0


@hypothesis_settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(fleet=fleets())
def test_a_plan_is_the_difference_of_two_states_in_which_no_vm_loses(fleet: list[Object]) -> None:
    found, chosen = inventory(*fleet), settings()
    statuses = [assess(each, found.store, chosen) for each in found.machines(chosen)]
    around = Surroundings(chosen)
    before = Simulated.of(statuses, Site(statuses, found.store, around))
    after = apply(before, Step(Action.RECOLOCATE, vms=tuple(before.vms)))
    proposals = make_plan(statuses, found.store, around)
    assert {each.status.machine.key: each.result for each in proposals} == after.relocated
    for each in proposals:
        old, new = (state.vms[each.status.machine.key] for state in (before, after))
        comes = before.is_together(old) is False and after.is_together(new) is True
        assert comes is isinstance(each.result, Move)
        assert before.is_together(old) is not True or after.is_together(new) is True
        assert after.local_bytes(new) >= before.local_bytes(old)


@hypothesis_settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(fleet=fleets(), shared=st.booleans())
def test_a_start_is_predicted_as_the_simulated_steps_show_it(fleet: list[Object], shared: bool) -> None:
    claims = [each["metadata"]["name"] for each in fleet if each["kind"] == "PersistentVolumeClaim" and shared]
    backups = [pod(f"backup-{claim}", node="node-c", claims=[claim]) for claim in claims]
    found, chosen = inventory(*fleet, *backups), settings()
    statuses = [assess(each, found.store, chosen) for each in found.machines(chosen)]
    before = Simulated.of(statuses, Site(statuses, found.store, Surroundings(chosen)))
    for key, running in before.vms.items():
        start = running.status.start
        restarted = apply(before, Step(Action.RESTART, vms=(key,)))
        started = apply(apply(before, Step(Action.STOP, vms=(key,))), Step(Action.START, vms=(key,)))
        assert start
        event(f"helps: {start.helps}, stopped first: {bool(start.lingering)}")
        assert (start.helps and not start.lingering) is (restarted.is_together(restarted.vms[key]) is True)
        if started.vms[key].phase is Phase.RUNS:  # the nodes of some fleets are too small for their VMs
            assert start.helps is (started.is_together(started.vms[key]) is True)


def target_pod(current: Object, hostname: str) -> Object:
    """Return the target pod of a migration as KubeVirt creates it."""
    found = deepcopy(current)
    found["metadata"]["name"] = "target"
    del found["spec"]["nodeName"]
    uid = current["metadata"]["labels"]["kubevirt.io/created-by"]
    own = {"labelSelector": {"matchLabels": {"kubevirt.io/created-by": uid}}, "topologyKey": HOSTNAME}
    anti_affinity = found["spec"].setdefault("affinity", {}).setdefault("podAntiAffinity", {})
    anti_affinity[REQUIRED] = [*anti_affinity.get(REQUIRED, []), own]
    found["spec"]["nodeSelector"] = found["spec"].get("nodeSelector", {}) | {HOSTNAME: hostname}
    return found


def remote(pods: dict[str, Object], claims: dict[str, Object]) -> int:
    """Return the bytes of the claims whose share-manager is on another node than the VM that mounts them."""
    serving = {name.removeprefix("share-manager-vol-"): each["spec"]["nodeName"] for name, each in pods.items()}
    return sum(
        int(claims[claim]["spec"]["resources"]["requests"]["storage"].removesuffix("Gi")) * GIBIBYTE
        for name, each in pods.items()
        if name.startswith("virt-launcher")
        for claim in (volume["persistentVolumeClaim"]["claimName"] for volume in each["spec"]["volumes"])
        if serving[claim] != each["spec"]["nodeName"]
    )
