"""Measures the memory allocated by a test's own calls, and limits that of a process, as a container's limit does."""

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from os import getpid
from pathlib import Path

FRAMES = 12  # deep enough to contain the frame of the test


@contextmanager
def traced_memory(file: str) -> Iterator[Callable[[], int]]:
    """Trace allocations in the block. Yield a function that returns the bytes still allocated by calls from `file`."""
    calls_from_file = tracemalloc.Filter(True, file, all_frames=True)
    tracemalloc.start(FRAMES)
    try:
        yield lambda: sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([calls_from_file]).traces)
    finally:
        tracemalloc.stop()


CGROUPS = Path("/sys/fs/cgroup")
NUMBERS = count(1)
# The files of a limit, and of the highest use, in cgroup v2 and v1.
FILES = ("memory.max", "memory.peak"), ("memory.limit_in_bytes", "memory.max_usage_in_bytes")


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """A child cgroup with a limit. Without `folder`, none could be made, and nothing is limited."""

    folder: Path | None
    peak_file: str = ""

    @property
    def launcher(self) -> tuple[str, ...]:
        """The prefix of a command that runs in the group."""
        return ("sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', str(self.folder)) if self.folder else ()

    def peak(self) -> str:
        """Describe the highest use so far."""
        if not self.folder:
            return "no cgroup"
        return f"cgroup {int((self.folder / self.peak_file).read_text()) / 1e6:.0f} MB"


def _make_group(limit: int) -> tuple[Path | None, str]:
    groups = dict(line.split(":")[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    parents = CGROUPS / groups.get("", "/")[1:], CGROUPS / "memory" / groups.get("memory", "/")[1:]
    for parent, (limit_file, peak_file) in zip(parents, FILES, strict=True):
        folder = parent / f"kubevirt-scheduler-test-{getpid()}-{next(NUMBERS)}"
        with suppress(OSError):
            (parent / "cgroup.procs").read_text()  # otherwise no cgroups are mounted there
            folder.mkdir()
            try:
                (folder / limit_file).write_text(str(limit))
            except OSError:  # the controller isn't enabled for the children of this group
                folder.rmdir()
                raise
            return folder, peak_file
    return None, ""


@contextmanager
def limited_memory(limit: int) -> Iterator[MemoryGroup]:
    """Make a cgroup of so many bytes, if this machine lets us. It must be empty at the end of the block."""
    folder, peak_file = _make_group(limit)
    if not folder:
        yield MemoryGroup(None)
        return
    try:
        yield MemoryGroup(folder, peak_file)
    finally:
        folder.rmdir()
