"""The API server's own traces: when each step of a traced request began and ended.

The API server traces only requests whose `traceparent` header asks for it, so other requests are not slower. This
module measures nothing: run as a script, it prints nothing.
"""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from peer.build import programs

# The package does not install the tests' support modules. They are imported from the repository.
sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.support.controlplane.api import LOOPBACK
from tests.support.controlplane.process import Process, free_ports, running

EXPORT_TIMEOUT = 30  # seconds; the API server sends spans every 5 s


@dataclass(frozen=True, slots=True)
class Span:
    """A step of a request. All times are in milliseconds since the epoch."""

    start: float
    end: float
    events: dict[str, float]

    @property
    def duration(self) -> float:
        """The milliseconds of the step."""
        return self.end - self.start


Trace = dict[str, Span]  # the spans of a request, by name


def new_trace() -> str:
    """Return the id of a new trace."""
    return secrets.token_hex(16)


def traceparent(trace: str) -> str:
    """Return the value of the header `traceparent` that has the API server trace a request."""
    return f"00-{trace}-{secrets.token_hex(8)}-01"


@dataclass(frozen=True, slots=True)
class Collector:
    """Receives traces. `options` are the arguments with which the API server sends them."""

    options: tuple[str, ...]
    log: Path

    def wait_for(self, traces: Iterable[str]) -> dict[str, Trace]:
        """Return these traces, by id, when all of them have arrived."""
        deadline, wanted = time.monotonic() + EXPORT_TIMEOUT, set(traces)
        while True:
            found = read_spans(self.log)
            # The API server sends a span after its end, and the span of the request ends last.
            complete = {trace for trace, spans in found.items() if any(name.startswith("POST /") for name in spans)}
            if wanted <= complete:
                return {trace: found[trace] for trace in wanted}
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(wanted - complete)} traces have not arrived within {EXPORT_TIMEOUT} s")
            time.sleep(0.5)


def read_spans(log: Path) -> dict[str, Trace]:
    """Return all traces that were received so far. A later span of the same name replaces an earlier one."""
    found: dict[str, Trace] = defaultdict(dict)
    for line in log.read_text().splitlines():
        if line.startswith("{") and line.endswith("}"):
            span = json.loads(line)
            events = {name: at / 1e6 for name, at in span["events"].items()}
            found[span["trace"]][span["name"]] = Span(span["start"] / 1e6, span["end"] / 1e6, events)
    return found


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a receiver of traces during the block."""
    (port,), program = free_ports(1), programs(("traces",))["traces"]
    address = f"{LOOPBACK}:{port}"
    config = {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "TracingConfiguration", "endpoint": address}
    with TemporaryDirectory(prefix="traces-") as name:
        file = Path(name) / "tracing.json"
        file.write_text(json.dumps(config))
        process = Process("traces", [str(program), f"-listen={address}"], f"http://{address}/healthz", Path(name))
        with running(process):
            yield Collector((f"--tracing-config-file={file}",), process.log)
