"""Measure the latency of a disk, one operation at a time: `probe FILE RESULT SECONDS`.

`benchmark` runs this module in pods, so it imports only the standard library. A termination message holds the result.
"""

import errno
import json
import mmap
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

FILE_SIZE = 128 * 1024 * 1024
SIZES = {"4 KiB": 4096, "1 MiB": 1024 * 1024}
WARM_UP = 0.1  # of the seconds of an operation, before these


def open_disk(path: str) -> tuple[int, bool]:
    """Open a file for synchronous writes. Return it, and whether it bypasses the page cache, as KubeVirt's disks do."""
    flags = os.O_RDWR | os.O_CREAT | os.O_SYNC
    try:
        return os.open(path, flags | os.O_DIRECT, 0o600), True
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, flags, 0o600), False  # the file system has no O_DIRECT


def fill(file: int) -> None:
    """Write the whole file once. The first write to a block takes longer: Longhorn allocates it on each replica."""
    if os.fstat(file).st_size < FILE_SIZE:
        buffer = _buffer(SIZES["1 MiB"])
        for offset in range(0, FILE_SIZE, len(buffer)):
            os.pwrite(file, buffer, offset)


def measure(file: int, size: int, seconds: float, *, writes: bool) -> list[float]:
    """Return the seconds that each operation took: at least one, at random offsets that are the same in each run."""
    buffer = _buffer(size)
    offsets = random.Random(size)  # noqa: S311 (no secret)
    latencies = list[float]()
    begin = time.perf_counter() + WARM_UP * seconds
    while not latencies or time.perf_counter() < begin + seconds:
        offset = size * offsets.randrange(FILE_SIZE // size)
        start = time.perf_counter()
        done = os.pwrite(file, buffer, offset) if writes else os.preadv(file, [buffer], offset)
        if done != size:
            raise OSError(errno.EIO, f"{done} of {size} bytes at {offset}")
        if start >= begin:
            latencies.append(time.perf_counter() - start)
    return latencies


def summarize(latencies: list[float]) -> dict[str, Any]:
    """Return the number of operations, their seconds, and 100 percentiles in microseconds, each for 1 % of them."""
    found = sorted(latencies)
    percentiles = [round(1e6 * found[(2 * number + 1) * len(found) // 200]) for number in range(100)]
    return {"operations": len(found), "seconds": round(sum(found), 6), "microseconds": percentiles}


def run(path: str, seconds: float) -> str:
    """Measure each operation on a file, and return the result as JSON."""
    file, direct = open_disk(path)
    fill(file)
    found = {
        f"{name} {kind}": summarize(measure(file, size, seconds, writes=kind == "write"))
        for name, size in SIZES.items()
        for kind in ("write", "read")
    }
    os.close(file)
    return json.dumps({"direct": direct, "figures": found}, separators=(",", ":"))


def _buffer(size: int) -> mmap.mmap:
    buffer = mmap.mmap(-1, size)  # aligned to a page, as O_DIRECT requires
    buffer.write(os.urandom(size))
    return buffer


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(run(sys.argv[1], float(sys.argv[3])))
