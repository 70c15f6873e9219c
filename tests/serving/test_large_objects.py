"""Pods of any size, which each user who may create pods can write, neither fill the memory nor stop reviews."""

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.support.builders import HOSTNAME, REQUIRED, Object
from tests.support.fake_api_server import ApiServer, Connection, body
from tests.support.measured import Measured
from tests.support.server_process import resident_memory, run_server, until, write_cluster

TERM = json.dumps({"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {"a": "b"}}}, separators=(",", ":"))
LARGE_POD, SMALL_POD = 38_000, 270  # terms; 2.8 MB, which the API server accepts, and 20 KB
LARGE, SMALL = 20, 1500  # pods
LIMIT = 250  # MB: half of the chart's limit


def encoded_pod(name: str, terms: int, version: int = 1) -> bytes:
    """A gated pod with this many required anti-affinity terms."""
    metadata = {
        "name": name,
        "namespace": "tenant",
        "uid": name,
        "resourceVersion": str(version),
        "labels": {"a": name},
    }
    spec: Object = {"containers": [{"name": "c", "image": "i"}], "schedulingGates": [{"name": "never"}]}
    spec["affinity"] = {"podAntiAffinity": {REQUIRED: ["TERMS"]}}
    item = json.dumps({"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}})
    return item.replace('"TERMS"', ",".join([TERM] * terms)).encode()


def pods() -> list[bytes]:
    """The pods in an order in which large ones follow many small ones."""
    small = [encoded_pod(f"small-{number}", SMALL_POD) for number in range(SMALL)]
    large = [encoded_pod(f"large-{number}", LARGE_POD) for number in range(LARGE)]
    return [*small[: SMALL // 2], *large, *small[SMALL // 2 :]]


def serve_pods(api: ApiServer, first: list[bytes], events: "Events") -> None:
    """Serve the pods in pages, and then a watch with the events."""

    def page(connection: Connection) -> None:
        query = api.last("list", "pods").query
        start, limit = int(query.get("continue") or 0), int(query["limit"])
        more = str(start + limit) if start + limit < len(first) else ""
        metadata = json.dumps({"resourceVersion": "1", "continue": more}).encode()
        body(b'{"metadata":%s,"items":[%s]}' % (metadata, b",".join(first[start : start + limit])))(connection)

    def watch(connection: Connection) -> None:
        connection.begin()
        for line in events:
            connection.chunk(line + b"\n")
        connection.end(cut=True)

    api.script("list", "pods", *[page] * 10_000)
    api.script("watch", "pods", watch)


class Events:
    """The large pods, patched one after the other, as soon as `begin` is called."""

    def __init__(self) -> None:
        self.begin, self.sent = threading.Event(), threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        self.begin.wait()
        for number in range(LARGE):
            yield b'{"type":"MODIFIED","object":%s}' % encoded_pod(f"large-{number}", LARGE_POD, number + 2)
        self.sent.set()


def test_large_pods_of_a_tenant_neither_fill_the_memory_nor_stop_reviews(tmp_path: Path, measured: Measured) -> None:
    """25 pods of 2.8 MB took 770 MB, so that each replica was killed, again after each restart."""
    events = Events()
    items: list[Any] = json.loads(write_cluster(tmp_path).read_text())["items"]
    own = [json.dumps(item).encode() for item in items if item["kind"] == "Pod"]
    with ExitStack() as stack:
        api = stack.enter_context(ApiServer())
        stack.callback(events.begin.set)  # also after a failure, for the server joins the thread of the watch
        api.put(*(item for item in items if item["kind"] != "Pod"))
        serve_pods(api, [*own, *pods()], events)
        with run_server(tmp_path, "--kubeconfig", api.kubeconfig(tmp_path)) as server:
            until(lambda: server.probe("/readyz")[0] == 200)
            assert server.review()["auditAnnotations"]["reason"] == "CoScheduled"
            listed = resident_memory(server.worker_pid(), "VmHWM:")
            with server.timed_reviews() as took:
                events.begin.set()
                assert events.sent.wait(300)
                seen = len(took)
                until(lambda: len(took) > seen + 20)
            patched = resident_memory(server.worker_pid(), "VmHWM:")
            assert server.review()["auditAnnotations"]["reason"] == "CoScheduled"
    longest = f"the longest of {len(took)} reviews {max(took) * 1000:.0f} ms"
    measured(f"large pods: {listed:.0f} MB after the list, {patched:.0f} MB after the patches, {longest}")
    assert max(listed, patched) < LIMIT
