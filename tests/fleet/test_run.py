"""A run of migrations keeps within its limits, stops at the first failure, and ends."""

import pytest
from msgspec.structs import replace

from tests.support.builders import Object
from tests.support.migrations import migratable
from webhook.fleet.relocation.rules import Move
from webhook.fleet.relocation.run import (
    Limits,
    Migration,
    Relocation,
    Run,
    Stage,
    View,
    advance,
    begun,
    next_move,
    ordered,
    replanned,
    stopped,
    updated,
    withdrawals,
    withdrawn,
)

FAST = frozenset({"fast"})


def at(node: str, *conditions: Object, **status: object) -> Object:
    """Build the VMI of the first VM."""
    return migratable("vm1", node, *conditions, **status)


def terminating(vmi: Object) -> Object:
    return vmi | {"metadata": vmi["metadata"] | {"deletionTimestamp": "2026-08-01T12:00:00Z"}}


EVACUATED = {"evacuationNodeName": "a"}
QUOTA = "a ResourceQuota of the namespace rejects the target pod"


def relocation(name: str = "vm1", source: str = "a", target: str = "b", classes: frozenset[str] = FAST) -> Relocation:
    return Relocation(Move("shop", name, source, target, target), classes)


def run_of(*relocations: Relocation, proven: frozenset[str] = FAST) -> Run:
    return Run(relocations, proven)


def migrating(run: Run, uid: str = "uid-of-m1") -> Run:
    """Begin the migration of the first VM."""
    return begun(run, run.relocations[0], "m1", uid, 0.0)


def view(phase: str = "Running", now: float = 1.0, sight: Object | None = None, **fields: object) -> View:
    """Build a view of the migration of the first VM."""
    own = Migration("shop", "m1", "vm1", phase, "a", uid="uid-of-m1")
    return View(now, (replace(own, **fields),), {("shop", "vm1"): sight or at("a")})  # type: ignore[arg-type]


def stages(run: Run) -> list[str]:
    return [each.stage.value for each in run.relocations]


def name_of(found: Relocation | None) -> str:
    return found.move.name if found else ""


# --- which move is next ---


OTHER = Migration("shop", "x", "other", "Running", "c")


@pytest.mark.parametrize(
    ("limits", "others", "expected"),
    [
        (Limits(), [], "vm1"),
        (Limits(), [OTHER], "vm1"),
        (Limits(), [OTHER, OTHER], "vm1"),
        (Limits(), [OTHER, OTHER, OTHER], ""),
        (Limits(), [replace(OTHER, phase="Succeeded")] * 3, "vm1"),
        (Limits(cluster=2), [], "vm1"),
        (Limits(cluster=2), [OTHER], ""),
        (Limits(), [replace(OTHER, blocked=QUOTA)] * 3, "vm1"),
        (Limits(), [replace(OTHER, source="a")], "vm1"),
        (Limits(), [replace(OTHER, source="a")] * 2, "vm2"),
        (Limits(per_node=1), [replace(OTHER, source="a")], "vm2"),
        (Limits(per_node=0), [], "vm1"),
        (Limits(most=1), [], "vm1"),
    ],
)
def test_a_move_needs_a_free_slot(limits: Limits, others: list[Migration], expected: str) -> None:
    run = run_of(relocation("vm1", "a"), relocation("vm2", "b", "c"))
    assert name_of(next_move(run, View(0.0, tuple(others)), limits)) == expected


def test_only_a_migration_that_the_run_created_takes_its_only_slot() -> None:
    """A tenant's migration with the label of `recolocate` held it, and no other VM moved."""
    run = migrating(run_of(relocation("vm1"), relocation("vm2", "c", "d")))
    assert not run.finished(Limits(most=1))
    assert next_move(run, view("Running"), Limits()) is None
    assert name_of(next_move(run, view("Running"), Limits(parallel=2))) == "vm2"
    replaced = view("Pending", uid="uid-of-another-m1")
    assert next_move(run, replaced, Limits()) is None
    run = advance(run, replaced, Limits())
    assert [each.detail for each in run.relocations] == ["the migration was deleted before it succeeded", ""]
    elsewhere = replace(relocation("vm3", "c", "d"), move=replace(relocation("vm3", "c", "d").move, namespace="other"))
    run = replace(run, relocations=(*run.relocations, elsewhere))
    assert (name_of(next_move(run, replaced, Limits())), list(withdrawals(run, replaced))) == ("vm3", [])


def test_two_vms_do_not_move_to_one_node_until_the_first_target_pod_is_bound() -> None:
    run = migrating(run_of(relocation("vm1"), relocation("vm2")))
    assert next_move(run, view("Scheduling"), Limits(parallel=2)) is None
    assert name_of(next_move(run, view("Running"), Limits(parallel=2))) == "vm2"


def test_the_first_vm_of_a_storage_class_migrates_alone() -> None:
    both = run_of(relocation("vm1"), relocation("vm2", "b", "c"), proven=frozenset())
    first = next_move(both, View(0.0), Limits(parallel=3))
    assert first is not None
    assert first.canary
    run = begun(both, first, "m1", "uid-of-m1", 0.0)
    assert next_move(run, view(), Limits(parallel=3)) is None
    run = advance(run, view("Succeeded", now=10.0, sight=at("b")), Limits(settle=5))
    assert stages(run) == ["Settling", "Waiting"]
    assert next_move(run, View(11.0), Limits(parallel=3)) is None
    run = advance(run, view("Succeeded", now=15.0, sight=at("b")), Limits(settle=5))
    second = next_move(run, View(15.0), Limits(parallel=3))
    assert (stages(run), name_of(second), second and second.canary) == (["Moved", "Waiting"], "vm2", False)


def test_the_first_vms_of_all_storage_classes_are_in_front() -> None:
    vms = [relocation("vm1"), relocation("vm2"), relocation("vm3", classes=frozenset({"slow"}))]
    assert [each.move.name for each in ordered(vms)] == ["vm1", "vm3", "vm2"]


def test_a_stopped_run_and_a_run_that_has_begun_enough_create_nothing() -> None:
    run = run_of(relocation("vm1"), relocation("vm2"))
    assert next_move(stopped(run, "why"), View(0.0), Limits()) is None
    assert stopped(stopped(run, "why"), "later").stopped == "why"
    once = advance(migrating(run), view("Succeeded", sight=at("b")), Limits(most=1))
    assert next_move(once, View(0.0), Limits(most=1)) is None
    assert once.finished(Limits(most=1))
    assert not once.finished(Limits())


def test_a_new_plan_gives_a_skipped_vm_another_turn_unless_it_had_a_migration() -> None:
    one, two = (replace(relocation(name), stage=Stage.SKIPPED) for name in ("vm1", "vm2"))
    plan = [relocation(name) for name in ("vm1", "vm2", "vm3")]
    run = replanned(run_of(one, replace(two, migration="m2")), plan)
    assert [(each.move.name, each.stage) for each in run.relocations] == [
        ("vm2", Stage.SKIPPED), ("vm1", Stage.WAITING), ("vm3", Stage.WAITING)
    ]  # fmt: skip


# --- the outcome of a migration ---


@pytest.mark.parametrize(
    ("seen", "stage", "detail"),
    [
        (view("Running"), Stage.MIGRATING, ""),
        (view("Succeeded", sight=at("b")), Stage.MOVED, ""),
        (view("Succeeded", sight=at("c")), Stage.FAILED, "the VM runs on c, not on b"),
        (view("Succeeded", sight=at("b", phase="Failed")), Stage.MOVED, ""),
        (View(1.0, (Migration("shop", "m1", "vm1", "Succeeded", uid="uid-of-m1"),)), Stage.MOVED, ""),
        (view("Failed", failure="no bandwidth"), Stage.FAILED, "no bandwidth"),
        (view("Failed"), Stage.FAILED, "the migration failed"),
        (view("Failed", sight=at("b")), Stage.SKIPPED, "another migration has moved the VM to its storage"),
        (view("Failed", sight=at("a", **EVACUATED)), Stage.SKIPPED, "KubeVirt evacuates the VM from its node"),
        (View(1.0, (), {("shop", "vm1"): at("b")}), Stage.MOVED, ""),
        (View(1.0, (), {("shop", "vm1"): at("a")}), Stage.FAILED, "the migration was deleted before it succeeded"),
        (View(1.0), Stage.FAILED, "the migration was deleted before it succeeded"),
    ],
)
def test_the_phase_of_a_migration_decides(seen: View, stage: Stage, detail: str) -> None:
    run = advance(migrating(run_of(relocation(), relocation("vm2"))), seen, Limits())
    (first, _) = run.relocations
    assert (first.stage, first.detail) == (stage, detail)
    assert (run.begun, run.moved) == (1, int(stage is Stage.MOVED))
    contained = detail == "the migration was deleted before it succeeded"
    assert run.stopped == (f"shop/vm1: {detail}" if stage is Stage.FAILED and not contained else "")
    assert first.contained is contained


WITHDRAWN: dict[str, tuple[View, str, str]] = {
    "a drain": (
        view("Scheduling", sight=at("a", **EVACUATED)),
        "KubeVirt evacuates the VM from its node",
        "",
    ),
    "a quota": (view("Pending", now=61.0, blocked=QUOTA), f"KubeVirt cannot start the migration: {QUOTA}", ""),
    "queued": (
        view("Pending", now=301.0),
        (queued := "KubeVirt has not started the migration for 300 s"),
        f"shop/vm1: {queued}",
    ),
}


@pytest.mark.parametrize("case", WITHDRAWN)
def test_a_migration_that_kubevirt_does_not_start_is_deleted_and_its_vm_skipped(case: str) -> None:
    seen, why, stops = WITHDRAWN[case]
    running = migrating(run_of(relocation(), relocation("vm2")))
    (found,) = withdrawals(running, seen)
    assert found.migration == seen.migrations[0]
    run = withdrawn(running, found)
    assert [(each.stage, each.detail) for each in run.relocations] == [(Stage.SKIPPED, why), (Stage.WAITING, "")]
    assert run.stopped == stops
    assert list(withdrawals(run_of(relocation()), seen)) == []  # of an earlier run, or of another client
    earlier = replace(found, migration=replace(found.migration, name="of an earlier run"))
    assert withdrawn(running, earlier) == running


KEPT = {
    "too late": view("Running", sight=at("a", **EVACUATED)),
    "no drain": view("Scheduling"),
    "of someone else": view("Scheduling", sight=at("a", **EVACUATED), uid="uid-of-another-m1"),
    "deleted already": view("Scheduling", sight=at("a", **EVACUATED), deleting=True),
    "no VMI": View(1.0, (Migration("shop", "m1", "vm1", "Pending", uid="uid-of-m1"),)),
    "blocked for a minute": view("Pending", now=60.0, blocked=QUOTA),
    "blocked, of someone else": view("Pending", now=1000.0, blocked=QUOTA, name="m2"),
    "Pending for 5 minutes": view("Pending", now=300.0),
    "has a target pod": view("Scheduling", now=1000.0),
}


def test_no_other_migration_is_deleted() -> None:
    running = migrating(run_of(relocation()))
    assert {case: list(withdrawals(running, seen)) for case, seen in KEPT.items()} == {case: [] for case in KEPT}


def test_a_vm_that_is_stopped_during_its_migration_does_not_stop_the_run() -> None:
    running = migrating(run_of(relocation(), relocation("vm2")))
    for vmi in at("a", phase="Succeeded"), terminating(at("a")):
        run = advance(running, view("Running", sight=vmi), Limits())
        assert (stages(run), run.stopped) == (["Skipped", "Waiting"], "")
        assert run.relocations[0].detail == "the VM was stopped during the migration"
    failed = advance(running, view("Failed", sight=terminating(at("a", phase="Failed"))), Limits())
    assert failed.stopped == "shop/vm1: the migration failed"


def test_a_vm_that_is_stopped_while_it_is_watched_does_not_prove_its_storage_class() -> None:
    canary = replace(relocation(), canary=True)
    run = advance(migrating(run_of(canary, proven=frozenset())), view("Succeeded", sight=at("b")), Limits())
    run = advance(run, View(2.0, (), {("shop", "vm1"): at("b", phase="Succeeded")}), Limits())
    assert (stages(run), run.stopped, run.proven) == (["Skipped"], "", frozenset())


def test_a_creation_without_an_answer_is_repeated_unless_the_migration_exists() -> None:
    run = migrating(run_of(relocation()), uid="")
    again = advance(run, View(1.0, (), {("shop", "vm1"): at("a")}), Limits())
    assert again == run_of(relocation())
    run = advance(run, view("Pending"), Limits())
    assert [(each.stage, each.uid) for each in run.relocations] == [(Stage.MIGRATING, "uid-of-m1")]


@pytest.mark.parametrize(
    ("sight", "now", "stage", "detail"),
    [
        (at("b"), 60.0, Stage.SETTLING, ""),
        (at("b", conditions=[]), 60.0, Stage.SETTLING, ""),
        (at("b"), 61.0, Stage.MOVED, ""),
        (at("b", conditions=[]), 61.0, Stage.FAILED, "not Ready 60 seconds after the migration"),
        (
            at("b", {"type": "Paused", "status": "True", "reason": "PausedIOError"}),
            2.0,
            Stage.FAILED,
            "the VM is paused after the migration: PausedIOError",
        ),
        (at("b", phase="Failed"), 2.0, Stage.FAILED, "the VM stopped running after the migration"),
        (None, 2.0, Stage.FAILED, "the VM stopped running after the migration"),
    ],
)
def test_the_first_vm_of_a_storage_class_is_watched(
    sight: Object | None, now: float, stage: Stage, detail: str
) -> None:
    canary = replace(relocation(), canary=True)
    run = advance(migrating(run_of(canary, proven=frozenset())), view("Succeeded", sight=at("b")), Limits())
    assert stages(run) == ["Settling"]
    run = advance(run, View(now, (), {("shop", "vm1"): sight} if sight else {}), Limits())
    (first,) = run.relocations
    assert (first.stage, first.detail) == (stage, detail)
    assert run.proven == (FAST if stage is Stage.MOVED else frozenset())


@pytest.mark.parametrize(
    ("sight", "now"),
    [(at("b", {"type": "Paused", "status": "True"}), 2.0), (at("b", conditions=[]), 61.0)],
    ids=["paused", "not Ready"],
)
def test_a_vm_that_its_users_can_make_fail_stops_its_namespace_only(sight: Object, now: float) -> None:
    """A tenant paused a VM after its migration, or its readiness probe failed, and no VM of any other tenant moved."""
    other = relocation("vm3", "c", "d")
    other = replace(other, move=replace(other.move, namespace="other"))
    run = migrating(run_of(replace(relocation(), canary=True), relocation("vm2"), other, proven=frozenset()))
    run = advance(run, view("Succeeded", sight=at("b")), Limits())
    run = advance(run, View(now, (), {("shop", "vm1"): sight}), Limits())
    assert (stages(run), run.stopped) == (["Failed", "Waiting", "Waiting"], "")
    following = next_move(run, View(2.0), Limits())
    assert (name_of(following), following and following.canary) == ("vm3", True)
    assert not run.finished(Limits())
    assert updated(run, replace(other, stage=Stage.MOVED)).finished(Limits())


def test_a_vm_that_was_not_ready_before_need_not_be_ready_after() -> None:
    canary = replace(relocation(), canary=True)
    run = migrating(run_of(replace(canary, move=replace(canary.move, ready=False))))
    for now in (1.0, 100.0):
        run = advance(run, view("Succeeded", now, at("b", conditions=[])), Limits())
    assert stages(run) == ["Moved"]


def test_an_interrupted_run_does_not_watch_its_vm() -> None:
    run = stopped(migrating(run_of(replace(relocation(), canary=True), proven=frozenset())), "interrupted")
    run = advance(run, view("Succeeded", sight=at("b")), Limits())
    assert (stages(run), run.proven) == (["Moved"], frozenset())
    settling = updated(run, replace(run.relocations[0], stage=Stage.SETTLING))
    assert stages(advance(settling, view("Succeeded", sight=at("b")), Limits())) == ["Moved"]
