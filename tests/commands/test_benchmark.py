"""`benchmark`: the probe on a real file, what its figures mean, and a run that leaves nothing, whatever fails."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.builders import Object, labeled_namespace, pod, share_manager_pod, storage_class, volume
from tests.support.command_line import run_cli
from tests.support.fake_api_server import ApiServer, error_response, status
from webhook.cluster.client import ClusterClient
from webhook.commands.benchmark import probe
from webhook.commands.benchmark.comparison import Figures, Visit, compare, render, sentence
from webhook.commands.benchmark.plan import LABEL, Plan
from webhook.commands.benchmark.run import BenchmarkRun
from webhook.commands.interrupts import Presses
from webhook.reading.documents import BadInput

MADE = ("pods", "persistentvolumeclaims", "persistentvolumes", "namespaces")
FORBIDDEN = 'pods "bench-0" is forbidden: violates PodSecurity "restricted:latest"'


def visit(seconds: float, operations: int = 1000) -> Visit:
    figures = probe.summarize([seconds] * operations)
    return Visit(direct=True, figures={"4 KiB write": msgspec.convert(figures, Figures)})


# --- the probe ---


def test_the_probe_measures_each_operation_on_a_disk_and_its_result_fits_a_termination_message(tmp_path: Path) -> None:
    file, result = tmp_path / "disk", tmp_path / "result"
    command = [sys.executable, "-I", "-m", probe.__name__, str(file), str(result), "0.3"]
    subprocess.run(command, check=True, timeout=60)
    found = msgspec.json.decode(result.read_bytes(), type=Visit)
    assert found.direct
    assert list(found.figures) == ["4 KiB write", "4 KiB read", "1 MiB write", "1 MiB read"]
    for figures in found.figures.values():
        low, high = figures.microseconds[0], figures.microseconds[-1]
        assert 0 < low <= high == max(figures.microseconds)
        assert low < 1e6 * figures.seconds / figures.operations
        assert figures.seconds < 0.3 + high / 1e6 + 0.1
    assert found.figures["4 KiB write"].operations > 3
    assert file.stat().st_size == probe.FILE_SIZE
    slow = dict.fromkeys(found.figures, probe.summarize([9.999999] * 100))
    assert len(msgspec.json.encode({"direct": False, "figures": slow})) < 4096


def test_only_writes_change_the_file(tmp_path: Path) -> None:
    file, _ = probe.open_disk(str(tmp_path / "disk"))
    os.ftruncate(file, probe.FILE_SIZE)
    blocks = []
    for writes in False, True:
        probe.measure(file, 4096, 0.02, writes=writes)
        blocks.append(os.fstat(file).st_blocks)
    assert blocks[0] == 0 < blocks[1]
    assert len(probe.measure(file, 4096, 0, writes=False)) == 1  # a result never lacks an operation
    os.close(file)


def test_a_file_that_refuses_o_direct_is_opened_without_it(tmp_path: Path) -> None:
    file, direct = probe.open_disk("/proc/self/comm")  # procfs refuses it
    os.close(file)
    assert not direct
    with pytest.raises(FileNotFoundError) as raised:
        probe.open_disk(str(tmp_path / "missing/disk"))
    assert raised.value.__context__ is None, "another error is no refusal, so it is not tried again without O_DIRECT"


# --- the comparison ---


@pytest.mark.parametrize(
    ("beside", "elsewhere", "words", "cells"),
    [
        (
            [0.0005, 0.0005],
            [0.00075, 0.00075],
            "keeps 67% of its writes per second, because a write takes 0.25 ms longer",
            "2,000/s   0.50 ms",
        ),
        ([0.0005, 0.0010], [0.00075, 0.00075], "No difference is measurable", "1,333/s   0.50 ms   1.00 ms"),
        ([0.0010, 0.0010], [0.00050, 0.00050], "is faster on another node (200%)", "200%"),
    ],
)
def test_the_sentence_says_what_a_vm_elsewhere_keeps(
    beside: list[float], elsewhere: list[float], words: str, cells: str
) -> None:
    rows = compare([visit(each) for each in beside], [visit(each) for each in elsewhere])
    assert words in sentence(rows)
    assert cells in render(rows, 0)


def test_percentiles_are_those_of_both_probes() -> None:
    slow = msgspec.convert(probe.summarize([0.001] * 96 + [0.050] * 4), Figures)
    (row,) = compare([visit(0.001, 100), Visit(direct=True, figures={"4 KiB write": slow})], [visit(0.002)])
    assert (row.beside.p50, row.beside.p99, row.elsewhere.p99) == (1.0, 50.0, 2.0)


# --- a run ---


class Cluster(Presses):
    """Binds the claim between two looks of the run, and plays the kubelets. `statuses` are of pods by their number."""

    def __init__(self, server: ApiServer, statuses: dict[int, Object] | None = None) -> None:
        super().__init__()
        self.server, self.statuses, self.now = server, statuses or {}, 0.0
        self.before = dict[int, Callable[[], Any]]()  # events, by the number of the pod that ends next
        self.presses_in_sleep = 0
        self.bound_after = 0.0  # when the scheduler binds the share-manager, if it is not bound yet
        server.put(share_manager_pod("vol-bench", node="node-a"))

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.count += self.presses_in_sleep
        if 0 < self.bound_after < self.now:
            self.server.put(share_manager_pod("vol-bench", node="node-a"))
            self.bound_after = 0.0
        pods, claims = (self.server._objects[each] for each in MADE[:2])
        for claim in claims.values():
            claim["spec"]["volumeName"] = "pvc-bench"
            self.server.put(volume("bench"))
        if not claims and self.made("persistentvolumes"):
            self.server.delete(volume("bench"))
        for key, created in list(pods.items()):
            if "status" not in created and LABEL in created["metadata"]["labels"]:
                number = int(key[1].rpartition("-")[2])
                self.before.get(number, lambda: None)()
                created |= {"status": self.statuses.get(number) or self._status(number, created)}

    def _status(self, number: int, created: Object) -> Object:
        if number == 0:
            return {"phase": "Running"}
        field = required_node(created)
        created["spec"]["nodeName"] = node = field["values"][0] if field["operator"] == "In" else "node-b"
        return ended("Succeeded", msgspec.json.encode(visit(0.0005 if node == "node-a" else 0.00075)).decode())

    def made(self, plural: str) -> list[str]:
        found = self.server._objects[plural].values()
        return [each["metadata"]["name"] for each in found if each["metadata"].get("namespace") != "longhorn-system"]


def required_node(created: Object) -> Object:
    term = created["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (field,) = term["nodeSelectorTerms"][0]["matchFields"]
    return dict(field)


def ended(phase: str, message: str) -> Object:
    return {"phase": phase, "containerStatuses": [{"state": {"terminated": {"message": message}}}]}


def waiting(reason: str, message: str) -> Object:
    return {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": reason, "message": message}}}]}


def unschedulable(message: str) -> Object:
    condition = {"type": "PodScheduled", "status": "False", "message": message}
    return {"phase": "Pending", "conditions": [condition]}


@pytest.fixture
def start(server: ApiServer, tmp_path: Path) -> Callable[..., BenchmarkRun]:
    def start(cluster: Cluster, namespace: str = "", *, retains: bool = False) -> BenchmarkRun:
        plan = Plan("longhorn", "image:1", "longhorn-system", retains, namespace, "bench")
        return BenchmarkRun(ClusterClient.connect(server.kubeconfig(tmp_path)), plan, cluster, lambda: cluster.now)

    return start


Start = Callable[..., BenchmarkRun]


@pytest.mark.parametrize("namespace", ["", "lab"])
def test_probes_run_one_after_the_other_and_everything_is_deleted(
    server: ApiServer, start: Start, namespace: str
) -> None:
    cluster = Cluster(server)
    run = start(cluster, namespace, retains=bool(namespace))
    visits, nodes = run.run()
    assert nodes == {"beside": "node-a", "elsewhere": "node-b"}
    assert {side: [each.figures["4 KiB write"].seconds for each in found] for side, found in visits.items()} == {
        "beside": [0.5, 0.5],
        "elsewhere": [0.75, 0.75],
    }
    created = [each.body for each in server.requests if each.verb == "post"]
    names = [each["metadata"]["name"] for each in created]
    assert names == ["bench"] * (1 if namespace else 2) + [f"bench-{each}" for each in range(5)]
    places = [(field["operator"], *field["values"]) for field in map(required_node, created[-4:])]
    assert places == [("In", "node-a"), ("NotIn", "node-a"), ("In", "node-b"), ("In", "node-a")]
    assert run.delete() == {}
    assert [cluster.made(plural) for plural in MADE] == [[]] * 4
    assert server.count("patch", "persistentvolumes") == bool(namespace)  # its StorageClass retains volumes
    assert [server.count(verb, "namespaces") > 0 for verb in ("get", "delete")] == [not namespace] * 2


def test_the_run_waits_until_the_share_manager_has_a_node(server: ApiServer, start: Start) -> None:
    cluster = Cluster(server)
    server.put(UNBOUND)
    cluster.bound_after = 5.0
    _, nodes = start(cluster).run()
    assert nodes == {"beside": "node-a", "elsewhere": "node-b"}


@pytest.mark.parametrize(
    ("number", "played", "problem"),
    [
        (
            0,
            waiting("ImagePullBackOff", "not found"),
            "no pod can run: ImagePullBackOff: not found .last warning: warning 2",
        ),
        (0, unschedulable("warning 2"), "no pod can run: warning 2 .last warning: warning 1"),
        (0, ended("Succeeded", "done"), "the pod failed: done"),
        (0, {"phase": "Pending"}, "no pod can run: it takes more than five minutes"),
        (1, unschedulable("0/1 nodes"), "no pod can run on node-a: 0/1 nodes"),
        (2, unschedulable("0/1 nodes"), "no pod can run on another node than node-a: 0/1 nodes"),
        (1, ended("Failed", "Traceback\nOSError: disk full\n"), "the pod on node-a failed: OSError: disk full$"),
        (1, {"phase": "Failed", "message": "evicted"}, "the pod on node-a failed: evicted"),
        (1, ended("Succeeded", "{}"), "unexpected result of pod bench-1: Object missing required field"),
    ],
)
def test_an_error_names_the_cause_and_everything_is_deleted(
    server: ApiServer, start: Start, number: int, played: Object, problem: str
) -> None:
    cluster = Cluster(server, {number: played})
    for name, involved, second in ("a", "bench-0", 2), ("b", "bench", 1), ("c", "other", 3):
        metadata = {"name": name, "namespace": "bench", "creationTimestamp": f"2026-01-01T00:00:0{second}Z"}
        event = {"metadata": metadata, "involvedObject": {"name": involved}, "message": f"warning {second}"}
        server.put({"kind": "Event"} | event)
    run = start(cluster)
    with pytest.raises(BadInput, match=problem):
        run.run()
    assert cluster.now < (302 if "minutes" in problem else 66)
    assert run.delete() == {}
    assert [cluster.made(plural) for plural in MADE] == [[]] * 4


TERMINATING = share_manager_pod("vol-bench", node="node-a")
TERMINATING["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
UNBOUND = share_manager_pod("vol-bench", node="")
EVENTS: dict[str, tuple[int, Callable[[Cluster], Any], type[BaseException]]] = {
    "no share-manager serves volume": (0, lambda each: each.server.put(TERMINATING), BadInput),
    "has found no node for the share-manager in a minute": (0, lambda each: each.server.put(UNBOUND), BadInput),
    "has replaced the share": (2, lambda each: each.server.put(share_manager_pod("vol-bench", node="c")), BadInput),
    "^$": (1, lambda each: each.add(2, None), KeyboardInterrupt),  # Ctrl-C
}


def test_ctrl_c_ends_the_wait_for_a_node_of_the_share_manager(server: ApiServer, start: Start) -> None:
    cluster = Cluster(server)
    server.put(UNBOUND)
    cluster.before[0] = lambda: setattr(cluster, "presses_in_sleep", 1)
    with pytest.raises(KeyboardInterrupt):
        start(cluster).run()
    assert cluster.now < 5


@pytest.mark.parametrize("problem", EVENTS)
def test_an_event_ends_the_run_and_everything_is_deleted(server: ApiServer, start: Start, problem: str) -> None:
    (number, event, error), cluster = EVENTS[problem], Cluster(server)
    cluster.before[number] = lambda: event(cluster)
    run = start(cluster)
    with pytest.raises(error, match=problem):
        run.run()
    assert run.delete() == {}
    assert [cluster.made(plural) for plural in MADE] == [[]] * 4


def test_what_cannot_be_deleted_is_reported_and_foreign_objects_stay(server: ApiServer, start: Start) -> None:
    cluster = Cluster(server)
    server.put(pod("bench-1", "lab"), labeled_namespace("lab"))
    server.script("post", "pods", error_response(status(403, FORBIDDEN)))
    run = start(cluster, "lab")
    with pytest.raises(BadInput, match="violates PodSecurity"):
        run.run()
    server.forbidden = {("delete", "persistentvolumeclaims")}
    left = {path.rpartition("/api/v1/")[2]: problem for path, problem in run.delete().items()}
    assert left.keys() == {"namespaces/lab/persistentvolumeclaims/bench", "persistentvolumes/pvc-bench"}
    assert "cannot delete" in left["namespaces/lab/persistentvolumeclaims/bench"]
    assert (cluster.made("pods"), cluster.made("namespaces")) == (["bench-1"], ["lab"])
    cluster.presses_in_sleep, before = 1, cluster.now
    assert run.delete().keys() == run.delete().keys()  # Ctrl-C ends the waiting
    assert cluster.now == before + 2


# --- the command ---


@pytest.mark.parametrize(
    ("fields", "arguments", "printed"),
    [
        ({}, ["--image=image:1"], "In the temporary namespace kubevirt-scheduler-benchmark-"),
        ({}, ["--image=image:1", "-n", "lab"], "In the existing namespace lab, "),
        ({}, [], "Error: the webhook is not installed, so its image is unknown; specify --image"),
        ({"provisioner": "other"}, [], "Error: StorageClass longhorn: its volumes have no share-manager"),
        ({"parameters": {"migratable": "true"}}, [], "Error: StorageClass longhorn: its volumes have no share-manager"),
        ({}, ["--storage-class=fast"], 'Error: StorageClass "fast" not found'),
    ],
)
def test_without_yes_the_command_says_what_it_would_create_or_what_is_missing(
    server: ApiServer, tmp_path: Path, fields: Object, arguments: list[str], printed: str
) -> None:
    server.put(storage_class("longhorn") | {"provisioner": "driver.longhorn.io"} | fields)
    command = ["benchmark", "--storage-class=longhorn", *arguments, "--kubeconfig", server.kubeconfig(tmp_path)]
    result = run_cli(*command)
    assert printed in result.stderr
    assert (result.stdout, result.exit_code) == ("", 2 if "Error" in printed else 0)
    assert ("Dry run: nothing changed" in result.stderr) == (result.exit_code == 0)
    assert {each.verb for each in server.requests} <= {"get", "list"}
