"""A real kube-scheduler that reports the nodes that a pod fits, and binds no pod.

A scheduler asks its extender after its own filters. This extender records the nodes that the filters admit, and then
rejects all of them. So a pod never occupies a node, and pods can be compared one after another.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from tests.support.controlplane.api import LOOPBACK, Object
from tests.support.controlplane.plane import ControlPlane

NAME = "reports-feasible-nodes"


class _Extender(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__((LOOPBACK, 0), _Handler)
        self.feasible: dict[str, frozenset[str]] = {}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Extender

    def do_POST(self) -> None:
        arguments = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        names = arguments["NodeNames"] or []
        self.server.feasible[arguments["Pod"]["metadata"]["uid"]] = frozenset(names)
        answer = json.dumps(
            {"NodeNames": [], "FailedNodes": dict.fromkeys(names, "this scheduler binds no pod")}
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - as the base class calls it
        """Log nothing."""


class FeasibleNodes:
    """Asks the scheduler about pods with `schedulerName: NAME`."""

    def __init__(self, plane: ControlPlane, extender: _Extender) -> None:
        self._plane = plane
        self._extender = extender

    def of(self, path: str) -> frozenset[str]:
        """Wait for the verdict on an existing pod, and return the nodes that the filters admit."""

        def evaluated() -> Object | None:
            pod = self._plane.request("GET", path)
            conditions = pod["status"].get("conditions", [])
            return pod if any(each["type"] == "PodScheduled" for each in conditions) else None

        pod = self._plane.wait(evaluated, 20, f"a PodScheduled condition of {path}")
        # The scheduler does not ask the extender about a pod that fits no node.
        return self._extender.feasible.get(pod["metadata"]["uid"], frozenset())


@contextmanager
def feasible_nodes(plane: ControlPlane) -> Iterator[FeasibleNodes]:
    """Run the scheduler and its extender."""
    with _Extender() as extender:
        Thread(target=extender.serve_forever, daemon=True).start()
        filters = {
            "urlPrefix": f"http://{LOOPBACK}:{extender.server_address[1]}",
            "filterVerb": "filter",
            "weight": 1,
            "nodeCacheCapable": True,
            "httpTimeout": "20s",
        }
        process = plane.start_scheduler(
            NAME, leader_elect=False, profile={"percentageOfNodesToScore": 100}, extender=filters
        )
        try:
            yield FeasibleNodes(plane, extender)
        finally:
            process.kill()
            extender.shutdown()
