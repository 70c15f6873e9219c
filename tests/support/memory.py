"""Measures the memory that a test's own calls allocate."""

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
