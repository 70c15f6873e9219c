"""A run creates each migration once, checks each VM again, and survives an API server that doesn't answer."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.builders import node, settings, storage
from tests.support.fake_api_server import ApiServer, error_response, forbidden, status
from tests.support.fleet import vm, vm_pod
from tests.support.migrations import migratable, migration
from webhook.cluster.client import ClusterClient
from webhook.commands.interrupts import Presses
from webhook.commands.recolocate.run import PATIENCE, MigrationRun, Reporter
from webhook.fleet.relocation.rules import Move
from webhook.fleet.relocation.run import Limits, Relocation, Run, Stage

MIGRATIONS = "virtualmachineinstancemigrations"
NODES = [node("node-a"), node("node-b"), node("node-c")]
PAUSED = {"type": "Paused", "status": "True"}
Step = Callable[[], float | None]


class Steps(Presses):
    """The events between two looks at the cluster, one step for each sleep. After the last, the run is interrupted."""

    def __init__(self, *steps: Step) -> None:
        super().__init__()
        self._steps = iter(steps)
        self.slept = 0.0

    def sleep(self, seconds: float) -> None:
        """Take a step. It may return how many seconds have passed meanwhile."""
        self.slept += next(self._steps, lambda: self.add(0, None))() or seconds

    def clock(self) -> float:
        return self.slept


class Log(Reporter):
    """Remembers what is reported."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, str, str]] = []
        self.notes: list[str] = []
        self.run = Run(())

    def changed(self, relocation: Relocation) -> None:
        self.changes.append((relocation.move.name, relocation.stage.value, relocation.detail))

    def note(self, words: str) -> None:
        self.notes.append(words)

    def end(self, run: Run) -> None:
        self.run = run


class Cluster:
    """VMs on node-b whose storage is on node-a, and the migrations that the run has created."""

    def __init__(self, server: ApiServer, client: ClusterClient) -> None:
        self.server, self.client, self.log = server, client, Log()
        self.plans: list[list[Relocation]] = []  # the results of the next plans; after the last, nothing more to move

    def add(self, name: str, target: str = "node-a", namespace: str = "default") -> Relocation:
        claim, volume, server = storage(name, target)
        own = [claim, vm(name), migratable(name), vm_pod(name, "node-b", claims=[name])]
        for each in own:
            each["metadata"]["namespace"] = namespace
        volume["spec"]["claimRef"]["namespace"] = namespace
        self.server.put(*own, volume, server)
        return Relocation(Move(namespace, name, "node-b", target, target), frozenset({"fast"}))

    def run(self, relocations: list[Relocation], *steps: Step, limits: Limits | None = None) -> bool:
        presses, limits = Steps(*steps), limits or Limits(settle=0.0)
        run = Run(tuple(relocations), frozenset({"fast"}))

        def plan() -> list[Relocation]:
            return self.plans.pop(0) if self.plans else []

        return MigrationRun(self.client, run, plan, limits, settings(), self.log, presses, presses.clock).run()

    @property
    def created(self) -> list[str]:
        """The names in the requests that create migrations."""
        requests = [each for each in self.server.requests if (each.verb, each.plural) == ("post", MIGRATIONS)]
        return [each.body["metadata"]["name"] for each in requests]

    @property
    def stages(self) -> dict[str, Stage]:
        return {each.move.name: each.stage for each in self.log.run.relocations}

    def set_phase(self, vm_name: str, phase: str, **state: str) -> Step:
        """Return a step that changes the phase of a VM's migration, and moves the VM if it has Succeeded."""

        def step() -> None:
            name = next(each for each in reversed(self.created) if each.startswith(f"recolocate-{vm_name}-"))
            self.server.put(migration(name, vm_name, phase, **state))
            if phase == "Succeeded":
                self.server.put(migratable(vm_name, "node-a"))

        return step


@pytest.fixture
def cluster(server: ApiServer, tmp_path: Path) -> Cluster:
    server.put(*NODES)
    return Cluster(server, ClusterClient.connect(server.kubeconfig(tmp_path)))


def nothing() -> None:
    """Wait."""


def test_a_plan_that_has_moved_a_vm_is_followed_by_another_one(cluster: Cluster) -> None:
    one, two, three = (cluster.add(f"vm{number}") for number in (1, 2, 3))
    cluster.server.put(*(migratable(name, "node-b", PAUSED) for name in ("vm1", "vm2")))

    def resume() -> None:
        cluster.server.put(migratable("vm1"))
        cluster.set_phase("vm3", "Succeeded")()

    four = cluster.add("vm4")
    cluster.plans = [[one], [one, four], []]
    assert cluster.run([one, two, three], resume, *(cluster.set_phase(name, "Succeeded") for name in ("vm1", "vm4")))
    assert [name for name, stage, _ in cluster.log.changes if stage == "Moved"] == ["vm3", "vm1", "vm4"]
    assert cluster.stages["vm2"] is Stage.SKIPPED
    assert cluster.plans == []
    cluster.plans = [[two]]
    assert cluster.run([cluster.add("vm5")], cluster.set_phase("vm5", "Succeeded"), limits=Limits(settle=0.0, most=1))
    assert cluster.plans == [[two]]  # --max is reached


def test_a_failed_migration_stops_the_run_and_its_event_says_why(cluster: Cluster) -> None:
    vms = [cluster.add("vm1"), cluster.add("vm2")]

    def fail() -> None:
        about = {"kind": "VirtualMachineInstanceMigration", "name": cluster.created[-1]}
        event = {"kind": "Event", "metadata": {"name": "e", "namespace": "default"}, "involvedObject": about}
        cluster.server.put(event | {"message": "target pod is unschedulable"})
        cluster.set_phase("vm1", "Failed")()

    assert not cluster.run(vms, fail)
    assert cluster.log.run.stopped == "default/vm1: target pod is unschedulable"
    assert cluster.stages == {"vm1": Stage.FAILED, "vm2": Stage.WAITING}


class ClosedOutput(Log):
    def changed(self, relocation: Relocation) -> None:  # noqa: ARG002 (as above)
        raise BrokenPipeError(32, "Broken pipe")


def test_a_closed_standard_output_stops_the_run(cluster: Cluster) -> None:
    cluster.log = ClosedOutput()
    assert not cluster.run([cluster.add("vm1"), cluster.add("vm2")])
    assert cluster.log.run.stopped == "cannot write to standard output: Broken pipe"
    assert cluster.stages == {"vm1": Stage.MIGRATING, "vm2": Stage.WAITING}


def test_a_vm_that_a_rule_hinders_by_now_is_skipped(cluster: Cluster) -> None:
    gone = Relocation(Move("default", "gone", "node-b", "node-a", "node-a"))
    paused = cluster.add("paused")
    cluster.server.put(migratable("paused", "node-b", PAUSED))
    assert cluster.run([paused, gone])
    assert cluster.log.changes == [
        ("paused", "Skipped", "Paused: the VM is paused"),
        ("gone", "Skipped", "NotRunning: the VM was deleted"),
    ]
    assert cluster.created == []


def test_a_vm_follows_a_share_manager_that_has_moved(cluster: Cluster) -> None:
    # A tenant's migration with the label of recolocate takes no slot of the run, and is left alone.
    cluster.server.put(migration("held", "of-a-tenant", "Pending", labeled=True))
    relocation = cluster.add("vm1", "node-c")
    planned = replace(relocation, move=replace(relocation.move, target="node-a", hostname="node-a"))
    cluster.run([planned], nothing, nothing)
    created = cluster.server.last("post", MIGRATIONS).body
    assert created["spec"]["addedNodeSelector"] == {"kubernetes.io/hostname": "node-c"}
    assert cluster.server.count("delete", MIGRATIONS) == 0


def test_a_migration_of_someone_else_takes_a_slot(cluster: Cluster) -> None:
    vms = [cluster.add("vm1")]
    others = [migration(f"other-{number}", f"other-{number}") for number in range(3)]
    cluster.server.put(*others)
    free = [lambda: cluster.server.delete(*others), *[nothing] * 10]
    cluster.run(vms, *free, cluster.set_phase("vm1", "Succeeded"))
    assert cluster.stages == {"vm1": Stage.MOVED}
    assert cluster.server.count("list", MIGRATIONS) == 2  # KubeVirt keeps many finished migrations
    assert "Waiting for other migrations" in cluster.log.notes[0]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (400, "in-flight migration detected"),
        (403, 'm "m" is forbidden: exceeded quota: few, requested: count/m=1, used: count/m=5, limited: count/m=5'),
        (403, 'admission webhook "policy.example" denied the request: no migrations on Sundays'),
    ],
)
def test_a_rejected_creation_skips_the_vm(cluster: Cluster, code: int, message: str) -> None:
    vms = [cluster.add("vm1")]
    cluster.server.script("post", MIGRATIONS, error_response(status(code, message)))
    assert cluster.run(vms)
    assert cluster.log.changes == [("vm1", "Skipped", message)]


@pytest.mark.parametrize(("verb", "stage"), [("post", Stage.WAITING), ("get", Stage.MIGRATING)])
def test_a_missing_right_stops_the_run_after_a_while(cluster: Cluster, verb: str, stage: Stage) -> None:
    cluster.server.forbidden.add((verb, MIGRATIONS))
    assert not cluster.run([cluster.add("vm1"), cluster.add("vm2")], *[lambda: PATIENCE / 4] * 6)
    assert f"cannot {verb}" in cluster.log.run.stopped
    assert cluster.stages == {"vm1": stage, "vm2": Stage.WAITING}


def test_a_request_that_an_api_server_refuses_after_its_start_is_repeated(cluster: Cluster) -> None:
    vms = [cluster.add("vm1")]
    failed = error_response(status(500, "the webhook of KubeVirt failed"))
    cluster.server.script("post", MIGRATIONS, failed, error_response(forbidden("post", MIGRATIONS)))
    outage = [error_response(status(503, "the API server restarts"))] * 7
    cluster.server.script("get", MIGRATIONS, *outage, error_response(forbidden("get", MIGRATIONS)))
    assert cluster.run(vms, *[nothing] * 10, cluster.set_phase("vm1", "Succeeded"))
    assert len(set(cluster.created)) == 1 < len(cluster.created)
    assert "the webhook of KubeVirt failed" in cluster.log.notes[0]
    assert cluster.stages == {"vm1": Stage.MOVED}


def test_a_migration_that_a_quota_blocks_is_deleted_after_a_minute(cluster: Cluster) -> None:
    vms = [cluster.add("vm1"), cluster.add("vm2")]

    def block() -> None:
        item = migration(cluster.created[0], "vm1", "Pending")
        item["status"]["conditions"] = [{"type": "migrationRejectedByResourceQuota", "status": "True"}]
        cluster.server.put(item)

    steps = [block, *[nothing] * 125, cluster.set_phase("vm2", "Succeeded")]
    assert cluster.run(vms, *steps), cluster.log.run
    assert cluster.stages == {"vm1": Stage.SKIPPED, "vm2": Stage.MOVED}
    why = "KubeVirt cannot start the migration: a ResourceQuota of the namespace rejects the target pod"
    assert ("vm1", "Skipped", why) in cluster.log.changes
    assert cluster.server.count("delete", MIGRATIONS) == 1


MOVING = Relocation(Move("shop", "vm1", "node-b", "node-a", "node-a"), migration="m1", stage=Stage.MIGRATING)
DONE = replace(MOVING, stage=Stage.MOVED)


def test_a_person_reads_lines_and_a_program_json(capsys: pytest.CaptureFixture[str]) -> None:
    for as_json in (False, True):
        report = Reporter(as_json=as_json)
        report.changed(MOVING)
        report.changed(replace(MOVING, stage=Stage.SKIPPED, detail="NodeFull: full"))
        for _ in range(2):
            report.note("waiting")
        report.end(Run((MOVING, DONE), stopped="interrupted"))
    output = capsys.readouterr()
    *lines, first, second, last = output.out.splitlines()
    assert lines == [
        "shop/vm1  node-b -> node-a  migrating",
        "shop/vm1  node-b -> node-a  skipped: NodeFull: full",
        "2 VMs: 1 migrating, 1 moved",
    ]
    assert output.err.splitlines() == [
        "waiting", "Stopped: interrupted", "Still running: migration m1 in namespace shop"
    ] * 2  # fmt: skip
    names = {"namespace": "shop", "name": "vm1", "source": "node-b", "target": "node-a"}
    rest = {"migration": "m1", "canary": False}
    assert json.loads(first) == names | rest | {"stage": "Migrating", "detail": None}
    assert json.loads(second) == names | rest | {"stage": "Skipped", "detail": "NodeFull: full"}
    assert (json.loads(last)["left"], json.loads(last)["stopped"]) == (["shop/m1"], "interrupted")
