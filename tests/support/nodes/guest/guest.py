"""The guest of a VM, in its pod's container: it uses the disk as QEMU would for a guest.

guest.py wait                                   wait for SIGTERM
guest.py work DISK LOG                          write and read back records, and write a line to the log each second
guest.py measure DISK SIZE KIND SECONDS COUNT   measure with COUNT operations in flight, and print the result
guest.py sweep DISK SECONDS                     measure all, with 1 and 8 in flight, and the bytes on the node's link
"""

import json
import mmap
import os
import signal
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, "/share/benchmark")
import probe  # type: ignore[import-not-found]  # webhook/commands/benchmark/probe.py

BLOCK = probe.SIZES["4 KiB"]
RECORDS = 1024


def measure(disk: str, size: str, kind: str, seconds: str, count: str) -> None:
    """Print how many operations were done, the median and the 99th percentile of their milliseconds."""
    file, direct = probe.open_disk(disk)
    probe.fill(file)
    found: list[float] = []

    def run() -> None:
        found.extend(probe.measure(file, probe.SIZES[size], float(seconds), writes=kind == "write"))

    began = time.monotonic()
    threads = [threading.Thread(target=run) for _ in range(int(count))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.monotonic() - began
    found.sort()
    median, late = (round(1000 * found[int(share * (len(found) - 1))], 3) for share in (0.5, 0.99))
    result = {"direct": direct, "operations": len(found), "seconds": elapsed, "median": median, "late": late}
    print(json.dumps(result), flush=True)


def sweep(disk: str, seconds: str) -> None:
    """Print a result for each size, kind and number of operations in flight."""
    measure(disk, "4 KiB", "write", "0", "1")  # fills the disk
    for size in probe.SIZES:
        for kind in "write", "read":
            for count in "1", "8":
                before = link_bytes()
                measure(disk, size, kind, seconds, count)
                crossed = link_bytes() - before
                print(json.dumps({"size": size, "kind": kind, "in_flight": int(count), "link": crossed}), flush=True)


def link_bytes() -> int:
    """Return how many bytes have passed the node's link so far."""
    return sum(int(Path(f"/sys/class/net/vec0/statistics/{name}_bytes").read_text()) for name in ("rx", "tx"))


def work(disk: str, log: str) -> None:
    """Write records in turn and read each one back. Log the operations and the longest one of each second."""
    file, _ = probe.open_disk(disk)
    lines = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    buffer = mmap.mmap(-1, BLOCK)
    number = 0
    while True:
        began, operations, longest = time.monotonic(), 0, 0.0
        while time.monotonic() < began + 1:
            number += 1
            buffer[:8] = number.to_bytes(8, "big")
            start = time.monotonic()
            os.pwrite(file, buffer, number % RECORDS * BLOCK)
            os.preadv(file, [buffer], number % RECORDS * BLOCK)
            longest = max(longest, time.monotonic() - start)
            operations += 1
            if buffer[:8] != number.to_bytes(8, "big"):
                sys.exit(f"record {number} was read back as {bytes(buffer[:8])!r}")
        line = {"last": number, "operations": operations, "longest": round(longest, 3)}
        os.write(lines, f"{json.dumps(line)}\n".encode())


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # the first process of a container has no default action
    if sys.argv[1] == "wait":
        signal.pause()
    {"measure": measure, "sweep": sweep, "work": work}[sys.argv[1]](*sys.argv[2:])
