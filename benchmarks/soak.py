"""Whether the server stays as it is under load: memory and file descriptors, for minutes at half of its top rate.

Ours alone, the whole product, following a cluster of 10,000 claims. It takes its time, so `make bench` is only told how
to run it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression

import click
from peer.build import BuildError
from rich.console import Console
from rich.progress import Progress
from rounds import command, load
from sides import OURS, REVIEW, Arena, Side, arena, write_snapshot

CONNECTIONS = 8
EVERY = 5.0  # seconds
SETTLED = 60.0  # seconds; until then caches and the allocator's arenas fill


@dataclass(frozen=True, slots=True)
class Sample:
    """One look: seconds since the start, MB that it has written itself, and open file descriptors."""

    at: float
    mb: float
    files: int


def soak(place: Arena, side: Side, rate: float, seconds: float) -> tuple[list[Sample], dict[str, float]]:
    """Load a side, and look at it every few seconds."""
    options = [f"-connections={CONNECTIONS}", f"-rate={rate:.1f}", "-warm-up=0s", f"-for={seconds:.0f}s"]
    samples, begin = [], time.monotonic()
    with (
        Progress(transient=True) as bar,
        subprocess.Popen(command(place, side, REVIEW, *options), stdout=subprocess.PIPE, text=True) as calling,
    ):
        task = bar.add_task(f"{rate:.0f} requests/s", total=seconds)
        try:
            while calling.poll() is None:
                at = time.monotonic() - begin
                samples.append(Sample(at, side.own_memory(), side.files()))
                bar.update(task, completed=at)
                os.truncate(side.log, 0)  # a line for each request: it would fill the disk
                time.sleep(max(0.0, begin + EVERY * len(samples) - time.monotonic()))
        finally:
            calling.terminate()
        assert calling.stdout
        return samples, dict(json.loads(calling.stdout.read()))


def verdict(samples: list[Sample]) -> dict[str, float]:
    """Return the slope of memory in MB an hour, and what changed, both since the server had settled."""
    # The last look may fall into the time when the load hangs up.
    kept = [each for each in samples[:-1] if each.at >= SETTLED]
    if len(kept) < 3:
        sys.exit(f"too short: {SETTLED:.0f} s pass before anything counts")
    slope = linear_regression([each.at for each in kept], [each.mb for each in kept]).slope
    return {
        "slope": slope * 3600,
        "first": kept[0].mb,
        "last": kept[-1].mb,
        "highest": max(each.mb for each in kept),
        "files_first": kept[0].files,
        "files_last": kept[-1].files,
        "files_highest": max(each.files for each in kept),
    }


@click.command()
@click.option("--minutes", type=click.FloatRange(1.5), help="How long; 10 are usual.")
@click.option("--live/--snapshot", default=True, show_default=True, help="Whether it follows a cluster.")
@click.option("--json", "file", type=click.Path(path_type=Path, dir_okay=False), help="Where to write all samples.")
def main(minutes: float | None, live: bool, file: Path | None) -> None:
    """Load the server for minutes, and say whether it grew."""
    if minutes is None:
        print("not run: it takes minutes. Run it with: .venv/bin/python benchmarks/soak.py --minutes 10")
        return
    try:
        with (
            arena(live=live) as place,
            place.serving(OURS, write_snapshot(place.folder / "cluster.json")) as side,
        ):
            top = load(place, side, REVIEW, f"-connections={CONNECTIONS}", "-for=10s")["per_second"]
            samples, found = soak(place, side, top / 2, minutes * 60)
    except BuildError as error:
        sys.exit(str(error))
    told = verdict(samples)
    if file:
        kept = [{"at": each.at, "mb": each.mb, "files": each.files} for each in samples]
        file.write_text(json.dumps({"top": top, "load": found, "verdict": told, "samples": kept}, indent=1))
    say = Console(soft_wrap=True).print
    say(f"{minutes:g} minutes, {found['requests']:,} requests at {top / 2:.0f}/s, half of {top:.0f}/s")
    say(f"failed {found['failed']}, over 100 ms {found['late']}; p50 {found['p50']:.2f} ms, p99 {found['p99']:.2f} ms")
    say(f"of the server's core others took {found['others']:.0%}")
    say(f"memory after the first minute: {told['first']:.1f} to {told['last']:.1f} MB, at most {told['highest']:.1f}")
    say(f"its slope: {told['slope']:+.2f} MB an hour")
    say(f"file descriptors: {told['files_first']} to {told['files_last']}, at most {told['files_highest']}")


if __name__ == "__main__":
    main()
