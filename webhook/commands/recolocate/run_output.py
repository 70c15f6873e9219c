"""The output of a run of migrations: one line per change, and a progress bar on a terminal."""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from webhook.commands.progress import Progress, progress_bar
from webhook.fleet.run import IN_FLIGHT, Relocation, Run, Stage
from webhook.placement.objects.fields import printable

WORDS = {
    Stage.WAITING: "waiting to be recreated",
    Stage.MIGRATING: "migrating",
    Stage.SETTLING: "migrated, watching the first VM of its StorageClass",
    Stage.MOVED: "moved",
    Stage.FAILED: "failed",
    Stage.SKIPPED: "skipped",
}
ENDED = (Stage.MOVED, Stage.FAILED, Stage.SKIPPED)


class Reporter:
    """Reports a run on standard output. Notes go to standard error."""

    def __init__(self, total: int, progress: Progress, *, as_json: bool) -> None:
        self._total, self._progress, self._as_json = total, progress, as_json
        self._ended = 0
        self._last_note = ""
        self._began: dict[tuple[str, str], float] = {}

    def changed(self, relocation: Relocation, now: float) -> None:
        """Report that a VM has reached another stage. `now` are monotonic seconds."""
        move, stage = relocation.move, relocation.stage
        if stage is Stage.MIGRATING:
            self._began[move.key] = now
        seconds = round(now - self._began[move.key], 1) if move.key in self._began else None
        self._ended += stage in ENDED
        self._progress(f"{WORDS[stage]} {'/'.join(move.key)}", self._ended, self._total)
        if self._as_json:
            names = {"namespace": move.namespace, "name": move.name, "source": move.source, "target": move.target}
            rest = {"migration": relocation.migration or None, "canary": relocation.canary, "seconds": seconds}
            _write(
                sys.stdout, json.dumps(names | {"stage": stage.value} | rest | {"detail": relocation.detail or None})
            )
            return
        took = f" after {seconds:.0f} s" if seconds is not None and stage in ENDED else ""
        detail = f": {relocation.detail}" if relocation.detail else ""
        line = f"{'/'.join(move.key)}  {move.source} -> {move.target}  {WORDS[stage]}{took}{detail}"
        _write(sys.stdout, line)

    def note(self, words: str) -> None:
        """Print a message about the whole run, unless it repeats the previous message."""
        if words != self._last_note:
            _write(sys.stderr, words)
        self._last_note = words

    def end(self, run: Run) -> None:
        """Report the result of a run, and the migrations that it leaves running."""
        counts = Counter(each.stage for each in run.relocations)
        left = [each for each in run.relocations if each.stage in IN_FLIGHT]
        if self._as_json:
            names = [f"{each.move.namespace}/{each.migration}" for each in left]
            summary = {stage.value.lower(): counts[stage] for stage in Stage}
            _write(sys.stdout, json.dumps({"summary": summary, "stopped": run.stopped or None, "left": names}))
            return
        numbers = [f"{counts[stage]} {stage.lower()}" for stage in Stage if counts[stage]]
        _write(sys.stdout, f"{len(run.relocations)} VMs: {', '.join(numbers)}" if numbers else "No VM to migrate.")
        if run.stopped:
            _write(sys.stderr, f"Stopped: {run.stopped}")
        for each in left:
            _write(sys.stderr, f"Still running: migration {each.migration} in namespace {each.move.namespace}")


@contextmanager
def reporter(total: int, *, as_json: bool) -> Iterator[Reporter]:
    """Open the progress bar, if standard error is a terminal, and yield the reporter of the run."""
    with progress_bar(redirected=sys.stdout.isatty()) as progress:
        progress("migrating", 0, total)
        yield Reporter(total, progress, as_json=as_json)


def _write(stream: TextIO, line: str) -> None:
    # Not click.echo: it writes past rich, which prints the lines above its bar.
    stream.write(f"{printable(line)}\n")
    stream.flush()
