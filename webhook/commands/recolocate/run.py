"""Run the migrations of `recolocate`: read the cluster twice a second, create the permitted ones, print each change."""

import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence

import click
from msgspec.structs import replace

from webhook.catalog.kinds import VMIS
from webhook.cluster.client import ClusterClient
from webhook.cluster.credentials import ClusterError
from webhook.commands.interrupts import Presses
from webhook.commands.recolocate import migrations
from webhook.fleet.relocation import run as runs
from webhook.fleet.relocation.rules import Hindrance, Move, Refusal, Surroundings
from webhook.fleet.relocation.run import IN_FLIGHT, Limits, Migration, Relocation, Run, Stage, View
from webhook.fleet.simulation.plan import plan_move
from webhook.fleet.states import assess
from webhook.placement.objects.facts import Key
from webhook.placement.objects.fields import printable, text
from webhook.placement.settings import Settings
from webhook.reading.api import REQUEST_TIMEOUT
from webhook.reading.documents import BadInput
from webhook.reading.live import read_inventory

POLL = 0.5  # seconds between two reads of the cluster
LIST_INTERVAL = 5.0  # seconds between two lists of all migrations, while none may be created
# Seconds to wait for an API server that doesn't answer: it may restart, for example in an upgrade. One that has just
# started also refuses requests (401, 403), until it has read its roles.
PATIENCE = 300.0
LONGEST_NAME = 200  # characters; a name of Kubernetes has at most 253
SERVER_ERRORS = (0, 429)  # and 5xx: the request may have been executed, or can be repeated
# A quota or another webhook also refuses a request with 403, but for this VM only.
MISSING_RIGHT = 'is forbidden: User "'
INTERRUPTED = "interrupted"

Plan = Callable[[], Sequence[Relocation]]  # reads the cluster, and plans the moves again


class Reporter:
    """Prints each change of a run, and its result, on standard output. Notes go to standard error."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json, self._last_note = as_json, ""

    def changed(self, relocation: Relocation) -> None:
        """Report that a VM has reached another stage."""
        move, stage, detail = relocation.move, relocation.stage, relocation.detail
        if self._as_json:
            names = {"namespace": move.namespace, "name": move.name, "source": move.source, "target": move.target}
            rest = {"migration": relocation.migration or None, "canary": relocation.canary, "detail": detail or None}
            click.echo(json.dumps(names | {"stage": stage.value} | rest))
        else:
            line = f"{'/'.join(move.key)}  {move.source} -> {move.target}  {stage.lower()}"
            click.echo(printable(f"{line}: {detail}" if detail else line))

    def note(self, words: str) -> None:
        """Print a message about the whole run, unless it repeats the previous message."""
        if words != self._last_note:
            click.echo(printable(words), err=True)
        self._last_note = words

    def end(self, run: Run) -> None:
        """Report the result of a run, and the migrations that it leaves running."""
        counts = Counter(each.stage for each in run.relocations)
        left = [(each.move.namespace, each.migration) for each in run.relocations if each.stage in IN_FLIGHT]
        if run.stopped:  # first, because standard output may be closed
            self.note(f"Stopped: {run.stopped}")
        for each in run.relocations:
            if each.contained:
                self.note(f"Stopped in namespace {each.move.namespace}: {each.move.name}: {each.detail}")
        for namespace, name in left:
            self.note(f"Still running: migration {name} in namespace {namespace}")
        if self._as_json:
            summary = {stage.value.lower(): counts[stage] for stage in Stage}
            names = ["/".join(each) for each in left]
            click.echo(json.dumps({"summary": summary, "stopped": run.stopped or None, "left": names}))
            return
        numbers = ", ".join(f"{counts[stage]} {stage.lower()}" for stage in Stage if counts[stage])
        vms = "1 VM" if counts.total() == 1 else f"{counts.total()} VMs"
        click.echo(f"{vms}: {numbers}" if numbers else "No VM to migrate.")


class MigrationRun:
    """One run against one cluster. `plan` reads the cluster, and plans the moves again."""

    def __init__(  # noqa: PLR0913, PLR0917 (the run's parts)
        self,
        cluster: ClusterClient,
        run: Run,
        plan: Plan,
        limits: Limits,
        settings: Settings,
        report: Reporter,
        presses: Presses,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster, self._limits, self._settings = cluster, limits, settings
        self._run = run
        self._plan = plan
        self._report = report
        self._presses = presses
        self._clock = clock
        self._suffix = secrets.token_hex(3)
        # By the namespace and name of a migration: the source node of another client's, and when it was seen first.
        self._sources: dict[Key, str] = {}
        self._seen: dict[Key, float] = {}
        self._answered_at = self._list_at = self._clock()
        self._moved_at_plan = 0  # how many VMs the run had moved at its last plan

    def run(self) -> bool:
        """Migrate the VMs. Return whether no migration failed and the user did not interrupt the run."""
        while not self._is_over():
            try:
                self._pass()
                self._answered_at = self._clock()
            except (ClusterError, BadInput) as error:
                if self._clock() - self._answered_at > PATIENCE:
                    self._change(runs.stopped(self._run, str(error)))
                    break
                self._report.note(f"A request failed, retrying: {error}")
            except OSError as error:  # of a pipe that is closed, or a full disk
                self._run = runs.stopped(self._run, f"cannot write to standard output: {error.strerror}")
                break
            if self._presses.count and not self._run.stopped:
                self._change(runs.stopped(self._run, INTERRUPTED))
                self._report.note(
                    "Interrupted: waiting for running migrations. To leave them running, press Ctrl-C again."
                )
            if self._presses.count > 1:
                break
            if not self._is_over():
                self._presses.sleep(POLL)
        self._report.end(self._run)
        return not (self._run.stopped or any(each.stage is Stage.FAILED for each in self._run.relocations))

    def _is_over(self) -> bool:
        """Return whether nothing is left to do. After a plan that has moved a VM, others may fit: it plans again."""
        run, limits = self._run, self._limits
        may_plan = run.moved > self._moved_at_plan and not run.stopped and run.begun != limits.most
        return run.finished(limits) and not may_plan

    def _pass(self) -> None:
        keys = ((each.move.namespace, each.migration) for each in self._run.in_flight)
        view = self._look([found for key in keys if (found := migrations.read_migration(self._cluster, *key))])
        self._withdraw(view)
        self._change(runs.advance(self._run, view, self._limits))
        if self._run.finished(self._limits) and not self._is_over():
            self._change(runs.replanned(self._run, self._plan()))
            self._moved_at_plan = self._run.moved
        # KubeVirt keeps five finished migrations per VM. So all are listed only if a migration may be created.
        if runs.next_move(self._run, view, self._limits) and self._clock() >= self._list_at:
            self._create(self._look(migrations.list_migrations(self._cluster)))

    def _create(self, view: View) -> None:
        candidate = runs.next_move(self._run, view, self._limits)
        if candidate is None:
            self._list_at = self._clock() + LIST_INTERVAL
            if not self._run.in_flight:
                self._report.note("Waiting for other migrations to finish")
        while candidate and not self._presses.count and not self._start(candidate, view):
            candidate = runs.next_move(self._run, view, self._limits)

    def _withdraw(self, view: View) -> None:
        for withdrawal in runs.withdrawals(self._run, view):
            migration = withdrawal.migration
            vmi = f"{migration.namespace}/{migration.vmi}"
            self._report.note(f"{vmi}: deleting migration {migration.name}: {withdrawal.why}")
            if migrations.delete_migration(self._cluster, migration):
                self._change(runs.withdrawn(self._run, withdrawal))

    def _look(self, existing: Sequence[Migration]) -> View:
        keys = {each.move.key for each in self._run.in_flight}
        vmis = {key: vmi for key in keys if (vmi := self._cluster.get(VMIS.object_path(key), REQUEST_TIMEOUT))}
        current = {(each.move.namespace, each.migration) for each in self._run.in_flight}
        known = [self._completed(each) for each in existing if each.unfinished or each.key in current]
        return View(self._clock(), tuple(known), vmis)

    def _completed(self, migration: Migration) -> Migration:
        """Add the fields that the migration itself lacks: since when, its source node, and why it failed."""
        if migration.unfinished:
            seen = self._seen.setdefault(migration.key, self._clock())
            return replace(migration, source=migration.source or self._source(migration), seen=seen)
        if migration.phase == "Failed" and not migration.failure:
            cause = migrations.failure_message(self._cluster, migration)
            return replace(migration, failure=cause)
        return migration

    def _source(self, migration: Migration) -> str:
        """Return the node of a migration's VMI. Only a new migration of another client costs a request."""
        key = migration.key
        if key not in self._sources:
            vmi = self._cluster.get(VMIS.object_path((migration.namespace, migration.vmi)), REQUEST_TIMEOUT)
            self._sources[key] = text(vmi, "status", "nodeName")
        return self._sources[key]

    def _start(self, candidate: Relocation, view: View) -> bool:
        """Check the VM again and create its migration. Return whether the view is outdated by that."""
        result = self._checked(candidate, view)
        if isinstance(result, Refusal):
            self._change(runs.skipped(self._run, candidate, f"{result.word}: {result.detail}"))
            return False
        current = replace(candidate, move=result)
        # If the VM or its share-manager has moved, other limits apply.
        if (result.source, result.target) != (candidate.move.source, candidate.move.target):
            self._change(runs.updated(self._run, replace(current, canary=False)))
            return True
        name = f"recolocate-{candidate.move.name[:LONGEST_NAME]}-{self._suffix}"
        try:
            uid = migrations.create_migration(self._cluster, result, name)
        except ClusterError as error:
            return self._not_created(current, name, error)
        self._change(runs.begun(self._run, current, name, uid, self._clock()))
        return True

    def _checked(self, candidate: Relocation, view: View) -> Move | Refusal:
        key = candidate.move.key
        unfinished = frozenset((each.namespace, each.vmi) for each in view.migrations if each.unfinished)
        inventory = read_inventory(self._cluster, self._settings)
        machine = next((each for each in inventory.machines(self._settings) if each.key == key), None)
        if machine is None:
            return Refusal(Hindrance.NOT_RUNNING, "the VM was deleted")
        status = assess(machine, inventory.store, self._settings)
        return plan_move(status, Surroundings(self._settings, unfinished), inventory.store)

    def _not_created(self, candidate: Relocation, name: str, error: ClusterError) -> bool:
        if error.code == 401 or (error.code == 403 and MISSING_RIGHT in str(error)):
            raise error
        if error.code in SERVER_ERRORS or error.code >= 500:
            self._change(runs.begun(self._run, candidate, name, "", self._clock()))
            raise error
        self._change(runs.skipped(self._run, candidate, str(error)))
        return False

    def _change(self, run: Run) -> None:
        previous, self._run = self._run, run
        stages = {each.move.key: each.stage for each in previous.relocations}
        for each in run.relocations:
            if each.stage not in (Stage.WAITING, stages.get(each.move.key)):
                self._report.changed(each)
