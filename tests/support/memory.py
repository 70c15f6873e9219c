"""How much memory a test's own calls hold: other threads of the session allocate as well."""

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

FRAMES = 12  # deep enough that the caller's file is among them


@contextmanager
def traced(file: str) -> Iterator[Callable[[], int]]:
    """Trace until the end of the block; what is given tells how many bytes are held of what this file's code led to."""
    ours = tracemalloc.Filter(True, file, all_frames=True)
    tracemalloc.start(FRAMES)
    try:
        yield lambda: sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([ours]).traces)
    finally:
        tracemalloc.stop()
