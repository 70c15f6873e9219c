"""The soak of benchmarks/faults.py: memory and turns of the loop while clients abandon large requests.

This module measures nothing: run as a script, it prints nothing.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from typing import Any

from attacks import attacking
from probes import metric
from sides import Side

ATTACK = "abandoned bodies of 4 MiB"
INTERVAL = 5.0  # seconds between two samples


def soak(side: Side, seconds: float) -> dict[str, Any]:
    """Abandon bodies for so many seconds. Return the memory in MB and the longest turn in seconds."""
    idle, memory, turn = side.own_memory(), [], 0.0
    metric(side, "kubevirt_scheduler_loop_longest_turn_seconds")  # what came before does not count
    with ExitStack() as stack:
        begun, begin = stack.enter_context(attacking(side, ATTACK)), time.monotonic()
        while (left := begin + seconds - time.monotonic()) > 0:
            time.sleep(min(INTERVAL, left))
            memory.append(side.own_memory())
            turn = max(turn, metric(side, "kubevirt_scheduler_loop_longest_turn_seconds"))
            os.truncate(side.log, 0)  # the log has a line for each request and would fill the disk
    return {
        "abandoned": begun(),
        "idle": idle,
        "highest": max(memory),
        "last": memory[-1],
        "turn": turn,
    }
