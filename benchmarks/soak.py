"""Soak test of the server: the growth of memory and file descriptors during minutes at half of its top rate.

It measures the complete webhook, which follows a cluster of 10,000 claims. The run takes minutes, so `make bench` only
prints how to start it.
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
from sides import OURS, REVIEW, Setup, Side, start_setup, write_snapshot

CONNECTIONS = 8
INTERVAL = 5.0  # seconds
WARM_UP = 60.0  # seconds in which caches and the allocator's arenas fill


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample: seconds since the start, anonymous memory in MB, and open file descriptors."""

    at: float
    mb: float
    files: int


def soak(setup: Setup, side: Side, rate: float, seconds: float) -> tuple[list[Sample], dict[str, float]]:
    """Put load on a side, and sample it every few seconds."""
    options = [f"-connections={CONNECTIONS}", f"-rate={rate:.1f}", "-warm-up=0s", f"-for={seconds:.0f}s"]
    samples, begin = [], time.monotonic()
    with (
        Progress(transient=True) as bar,
        subprocess.Popen(command(setup, side, REVIEW, *options), stdout=subprocess.PIPE, text=True) as load_process,
    ):
        task = bar.add_task(f"{rate:.0f} requests/s", total=seconds)
        try:
            while load_process.poll() is None:
                at = time.monotonic() - begin
                samples.append(Sample(at, side.own_memory(), side.files()))
                bar.update(task, completed=at)
                os.truncate(side.log, 0)  # the log has a line for each request and would fill the disk
                time.sleep(max(0.0, begin + INTERVAL * len(samples) - time.monotonic()))
        finally:
            load_process.terminate()
        assert load_process.stdout
        return samples, dict(json.loads(load_process.stdout.read()))


def verdict(samples: list[Sample]) -> dict[str, float]:
    """Return the slope of memory in MB per hour, and the first, last and highest values, after the warm-up."""
    # The load may already close its connections during the last sample.
    kept = [each for each in samples[:-1] if each.at >= WARM_UP]
    if len(kept) < 3:
        sys.exit(f"too short: the first {WARM_UP:.0f} s do not count")
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
@click.option("--minutes", type=click.FloatRange(1.5), help="Duration, usually 10.")
@click.option("--live/--snapshot", default=True, show_default=True, help="Follow a cluster, or read a snapshot.")
@click.option("--json", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write all samples to this file.")
def main(minutes: float | None, live: bool, file: Path | None) -> None:
    """Put load on the server for minutes, and print its growth."""
    if minutes is None:
        print("not run: it takes minutes. Run it with: .venv/bin/python benchmarks/soak.py --minutes 10")
        return
    try:
        with (
            start_setup(live=live, needed=("load", "cluster")) as setup,
            setup.serving(OURS, write_snapshot(setup.folder / "cluster.json")) as side,
        ):
            top = load(setup, side, REVIEW, f"-connections={CONNECTIONS}", "-for=10s")["per_second"]
            samples, total = soak(setup, side, top / 2, minutes * 60)
    except BuildError as error:
        sys.exit(str(error))
    result = verdict(samples)
    if file:
        kept = [{"at": each.at, "mb": each.mb, "files": each.files} for each in samples]
        file.write_text(json.dumps({"top": top, "load": total, "verdict": result, "samples": kept}, indent=1))
    echo = Console(soft_wrap=True).print
    echo(f"{minutes:g} minutes, {total['requests']:,} requests at {top / 2:.0f}/s, half of {top:.0f}/s")
    echo(f"failed {total['failed']}, over 100 ms {total['late']}; p50 {total['p50']:.2f} ms, p99 {total['p99']:.2f} ms")
    echo(f"other processes used {total['others']:.0%} of the server's core")
    echo(f"memory after one minute: {result['first']:.1f} to {result['last']:.1f} MB, at most {result['highest']:.1f}")
    echo(f"slope of the memory: {result['slope']:+.2f} MB per hour")
    echo(f"file descriptors: {result['files_first']} to {result['files_last']}, at most {result['files_highest']}")


if __name__ == "__main__":
    main()
