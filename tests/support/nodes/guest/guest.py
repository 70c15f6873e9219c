"""The guest of a VM, in its pod's container: it uses the disk as QEMU would for a guest.

guest.py wait                                   wait for SIGTERM
guest.py answer                                 measure for each line of the standard input, DISK SIZE KIND SECONDS
                                                COUNT, with COUNT operations in flight, and print the result
guest.py work DISK LOG [SIGNAL]                 write and read back records, and write a line to the log each second;
                                                begin when the file SIGNAL exists, as the target of a migration
"""

import json
import mmap
import os
import random
import shlex
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
    """Print how many operations were done, how many bytes they are, and percentiles of their milliseconds."""
    file, direct = probe.open_disk(disk)
    probe.fill(file)
    found: list[float] = []
    length, end = probe.SIZES[size], time.monotonic() + float(seconds)

    def run(number: int) -> None:
        buffer, offsets = mmap.mmap(-1, length), random.Random(number)
        buffer.write(os.urandom(length))
        while True:
            offset, start = length * offsets.randrange(probe.FILE_SIZE // length), time.monotonic()
            done = os.pwrite(file, buffer, offset) if kind == "write" else os.preadv(file, [buffer], offset)
            found.append(time.monotonic() - start)
            if done != length:
                sys.exit(f"{done} of {length} bytes at {offset}")
            if time.monotonic() > end:
                return

    began = time.monotonic()
    threads = [threading.Thread(target=run, args=(number,)) for number in range(int(count))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.monotonic() - began
    os.close(file)
    found.sort()
    early, median, late = (round(1000 * found[int(share * (len(found) - 1))], 3) for share in (0.1, 0.5, 0.99))
    result = {"direct": direct, "operations": len(found), "seconds": elapsed, "data": length * len(found)}
    print(json.dumps(result | {"early": early, "median": median, "late": late}), flush=True)


def answer() -> None:
    """Measure what each line of the standard input asks for: the arguments of `measure`."""
    for line in sys.stdin:
        measure(*shlex.split(line))


def work(disk: str, log: str, signal_file: str = "") -> None:
    """Write records in turn and read each one back. Log the operations and the longest one of each second.

    A guest that starts continues with the number after the last logged one, whose record must be on the disk.
    """
    while signal_file and not Path(signal_file).exists():
        time.sleep(0.05)
    file, _ = probe.open_disk(disk)
    # Synchronous: a node's kernel writes to the folders that it shares with the host after half a minute only.
    lines = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_SYNC, 0o644)
    buffer = mmap.mmap(-1, BLOCK)
    number = last_logged(Path(log))
    if number:
        os.preadv(file, [buffer], number % RECORDS * BLOCK)
        if int.from_bytes(buffer[:8], "big") < number:
            sys.exit(f"record {number} is lost: the disk has {bytes(buffer[:8])!r}")
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


def last_logged(log: Path) -> int:
    """Return the last number in a log, 0 if there is none."""
    lines = log.read_text().splitlines() if log.exists() else []
    return int(json.loads(lines[-1])["last"]) if lines else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # the first process of a container has no default action
    if sys.argv[1] == "wait":
        signal.pause()
    {"answer": answer, "work": work}[sys.argv[1]](*sys.argv[2:])
