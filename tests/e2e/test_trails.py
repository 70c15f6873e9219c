"""The simulation of Longhorn does in each trail what Longhorn's real controllers did, in the same order.

A trail is a list of steps, `{"do": …}`, and observations. A step is played once all observations before it are seen.
The order within a nested list isn't known. An observation that starts with `?` may be missing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.controlplane.api import ApiError, Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.programs import DISREGARD_STATUS
from tests.support.longhorn import DRIVER, STORAGE, VOLUMES, Longhorn
from tests.support.object_history import Event, History
from tests.support.paths import TRAILS as FOLDER
from tests.support.remounts import Remounts, is_affected, is_due
from tests.support.scenario import HOSTNAME, Scenario

TRAILS = {file.stem: json.loads(file.read_text()) for file in sorted(FOLDER.glob("*.json"))}
EVIDENCE = {"recorded", "seen", "source"}
NODES = ("node-a", "node-b", "node-c", "node-d")
PODS = "/api/v1/pods"
ATTACHMENTS = f"{STORAGE}/volumeattachments"
CLAIMS = "/api/v1/persistentvolumeclaims"
SETTLED = 0.5  # seconds after the last expected observation in which nothing else may be seen


def mismatch(trail: list[Any], seen: list[str]) -> str:
    """Return how the observations differ from those of the trail, empty if they don't."""
    rest = list(seen)
    for group in trail:
        if isinstance(group, dict):
            continue
        names = [group] if isinstance(group, str) else list(group)
        while rest and (name := next((each for each in names if each.removeprefix("?") == rest[0]), "")):
            names.remove(name)
            del rest[0]
        if missing := [name for name in names if not name.startswith("?")]:
            return f"expected {missing} after {seen[: len(seen) - len(rest)]}, not {rest}"
    return f"did not expect {rest} after {seen[: len(seen) - len(rest)]}" if rest else ""


class Player:
    """Plays trails: each has a volume of its own. The test plays the kubelet of the share-manager pods."""

    def __init__(self, scenario: Scenario, recorder: History) -> None:
        self._scenario, self._plane, self._longhorn = scenario, scenario.plane, scenario.longhorn
        self._recorder = recorder
        self._claim = self._volume = self._class = self._server = ""
        self._since = 0  # the resource version after which the trail begins
        for name in NODES:
            scenario.add_node(name)
        scenario.wait_ready(NODES)

    def play(self, name: str, trail: Object) -> tuple[list[str], list[Object]]:
        """Return what was seen, and the share-manager pods that were created."""
        longhorn, self._since = self._longhorn, 0
        longhorn.pod_annotations = {DISREGARD_STATUS: "true"}
        longhorn.deletes_consumers = trail.get("deletes_consumers", False)
        longhorn.fast_failover = trail.get("fast_failover", False)
        longhorn.remounts.races[f"trail-{name}"] = lambda: trail.get("error_lasts", False)
        self._claim, self._volume, self._class = name, f"trail-{name}", f"trail-{name}"
        self._server = f"{longhorn.pods}/share-manager-{self._volume}"
        self._allow(trail.get("servers", ["node-a"]), trail.get("storage_class", {}))
        self._prepare(trail.get("before", ""), trail.get("volume", {}))
        reached: list[Any] = []
        for each in trail["trail"]:
            if isinstance(each, dict):
                self._reach(reached)
                getattr(self, "_" + each["do"].replace(" ", "_"))(**{k: v for k, v in each.items() if k != "do"})
            else:
                reached.append(each)
        self._reach(reached)
        time.sleep(SETTLED)
        created = [item for _, kind, name, item in self._events() if (kind, name) == ("ADDED", "pod")]
        return self._seen(), created

    def clean_up(self) -> None:
        for node in NODES:
            self._uncordon(node)
        self._plane.delete_pods(self._scenario.pods)
        self._longhorn.remove_volume(self._volume)
        with suppress(ApiError):  # no kubelet would end it
            self._delete_the_pod_at_once()

    def _prepare(self, before: str, volume: Object) -> None:
        """Bring the volume into the state in which the trail begins."""
        if before:
            self._provision(**volume)
            self._scenario.wait_bound(self._claim)
            # Nothing serves it yet, so any node may be the owner. No trail has a share-manager there at first.
            with self._longhorn.paused():
                path = f"{self._longhorn.managers}/{self._volume}/status"
                self._plane.request("PATCH", path, {"status": {"ownerID": "node-c"}})
        if before == "served":
            self._start_a_consumer("node-b")
            self._until(lambda: any("bound" in each for each in self._seen()), "a bound pod")
            self._run_the_pod()
            self._until(lambda: "VolumeAttachment attached" in self._seen(), "the attachment")
        if before:
            self._until(lambda: self._longhorn.share_manager(self._volume) == self._newest(), "the recorder")
            self._since = max(version for version, *_ in self._events())

    def _newest(self) -> Object | None:
        return next((item for _, _, name, item in reversed(list(self._events())) if name == "ShareManager"), None)

    def _reach(self, trail: list[Any]) -> None:
        self._until(lambda: not mismatch(trail, self._seen()), f"the trail up to {trail[-1:]}")

    def _until(self, predicate: Callable[[], object], what: str) -> None:
        try:
            self._plane.wait(predicate, 5, what)
        except AssertionError as error:
            error.add_note(f"seen: {self._seen()}")
            raise

    # --- steps ---

    def _provision(self, attributes: Object | None = None, **fields: Any) -> None:
        self._longhorn.provision(self._scenario.namespace, self._claim, self._volume, self._class, attributes, **fields)
        self._scenario.volumes.append(self._volume)

    def _allow(self, nodes: list[str], fields: Object | None = None) -> None:
        """Limit share-managers to these nodes from now on."""
        if self._class in self._scenario.storage_classes:
            self._plane.request("DELETE", f"{STORAGE}/storageclasses/{self._class}")
        topologies = [{"matchLabelExpressions": [{"key": HOSTNAME, "values": nodes}]}]
        storage_class = {"metadata": {"name": self._class}, "provisioner": DRIVER, "allowedTopologies": topologies}
        self._plane.request("POST", f"{STORAGE}/storageclasses", storage_class | (fields or {}))
        self._scenario.storage_classes.append(self._class)

    def _start_a_consumer(self, node: str) -> None:
        self._scenario.create(self._scenario.vm_pod(self._claim, self._claim, opt_in=None, nodeName=node))

    def _start_a_backup(self) -> None:
        self._scenario.create_consumer(self._claim, "node-c")

    def _stop_the_consumer(self) -> None:
        self._plane.delete_pods(self._scenario.pods)

    def _start_the_pod(self) -> None:
        if "startTime" not in self._plane.request("GET", self._server)["status"]:
            started = {"startTime": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"}
            self._plane.request("PATCH", f"{self._server}/status", {"status": started})

    def _run_the_pod(self, ready: bool = True) -> None:
        self._start_the_pod()
        container = {"name": "share-manager", "image": "i", "imageID": "", "restartCount": 0, "ready": ready}
        status = {"phase": "Running", "containerStatuses": [container]}
        self._plane.request("PATCH", f"{self._server}/status", {"status": status})

    def _delete_the_pod(self) -> None:
        self._plane.request("DELETE", self._server)

    def _delete_the_pod_at_once(self) -> None:
        # Paused, because even such a pod is stored with a deletionTimestamp for a moment.
        with self._longhorn.paused():
            self._plane.request("DELETE", f"{self._server}?gracePeriodSeconds=0")
            self._until(lambda: self._longhorn.pod(self._volume) is None, "the end of the pod")

    _end_the_pod = _delete_the_pod_at_once

    def _cordon(self, node: str) -> None:
        self._scenario.change_node(node, {"spec": {"unschedulable": True}})

    def _uncordon(self, node: str) -> None:
        self._scenario.change_node(node, {"spec": {"unschedulable": None}})

    def _lose(self, node: str) -> None:
        self._scenario.make_not_ready(node)

    def _mark(self) -> None:
        path = f"{self._longhorn.managers}/{self._volume}"
        self._plane.request("PATCH", path, {"metadata": {"labels": {"mark": "yes"}}})

    @staticmethod
    def _wait(seconds: float) -> None:
        time.sleep(seconds)

    # --- observations ---

    def _events(self) -> Iterator[Event]:
        """Yield the events of the trail's objects: the resource version, the type, the object's role, the object."""
        for version, path, kind, item in self._recorder.events():
            if name := self._role(path, item["metadata"], item.get("spec", {})):
                yield version, kind, name, item

    def _role(self, path: str, metadata: Object, spec: Object) -> str:
        name, is_here = metadata["name"], metadata.get("namespace") == self._scenario.namespace
        if path == ATTACHMENTS:
            return "VolumeAttachment" if spec["source"]["persistentVolumeName"] == f"pv-{self._volume}" else ""
        if is_here and metadata.get("labels", {}).get("vm.kubevirt.io/name") == self._claim:
            return "consumer"
        return {
            (self._longhorn.managers, self._volume): "ShareManager",
            (PODS, f"share-manager-{self._volume}"): "pod",
            (VOLUMES, f"pv-{self._volume}"): "PV",
            (CLAIMS, self._claim if is_here else ""): "claim",
        }.get((path, name), "")

    def _seen(self) -> list[str]:
        seen, old, node = [], dict[str, dict[str, str]](), ""
        for version, kind, name, item in self._events():
            uid = item["metadata"]["uid"]
            if name == "pod":
                node = "" if kind == "DELETED" else item["spec"].get("nodeName", "")
            facts = _facts(name, item)
            new = [f"{name} created"] if uid not in old and name not in ("consumer", "claim") else []
            new += [text for key, text in facts.items() if text and old.get(uid, {}).get(key) != text]
            new += [f"{name} gone"] if kind == "DELETED" else []
            relative = {f"ShareManager owner {each}": "another node" for each in NODES}
            relative |= {f"ShareManager owner {node}": "its pod's node"}
            new = [f"ShareManager owner {relative[text]}" if text in relative else text for text in new]
            seen += new if version > self._since else []
            old[uid] = facts
        return seen


def _facts(name: str, item: Object) -> dict[str, str]:
    """Return what the webhook or the tool reads of an object, as texts."""
    metadata, spec, status = item["metadata"], item.get("spec", {}), item.get("status", {})
    if name == "ShareManager":
        owner, state = status.get("ownerID"), status.get("state")
        return {
            "owner": f"ShareManager owner {owner}" if owner else "",
            "state": f"ShareManager state {state}" if state else "",
            "mark": "marked" if "mark" in metadata.get("labels", {}) else "",
        }
    if name == "pod":
        node, runs = spec.get("nodeName"), status.get("phase") == "Running"
        return {
            "node": f"pod bound to {node}" if node else "",
            "phase": "pod Running" if runs else "",
            "end": "pod terminating" if metadata.get("deletionGracePeriodSeconds") else "",
        }
    if name == "claim":
        return {"phase": "claim Bound" if status["phase"] == "Bound" else ""}
    return {"attached": "VolumeAttachment attached" if status.get("attached") else ""}


@pytest.fixture(scope="module")
def player(plane: ControlPlane, longhorn: Longhorn) -> Iterator[Player]:
    before = longhorn.deletes_consumers, longhorn.fast_failover
    with (
        closing(Scenario(plane, longhorn, None)) as scenario,
        History(plane, longhorn.managers, PODS, ATTACHMENTS, CLAIMS, VOLUMES) as recorder,
    ):
        yield Player(scenario, recorder)
    longhorn.pod_annotations = {}
    longhorn.deletes_consumers, longhorn.fast_failover = before


@pytest.mark.controlplane
@pytest.mark.parametrize("name", TRAILS)
def test_the_simulation_shows_what_the_real_controllers_showed(player: Player, name: str) -> None:
    trail = TRAILS[name]
    assert trail["evidence"] in EVIDENCE
    try:
        seen, pods = player.play(name, trail)
    finally:
        player.clean_up()
    assert mismatch(trail["trail"], seen) == ""
    for pod in pods:
        assert contains(pod, trail.get("pod", {}))
    assert not trail.get("last_pod") or contains(pods[-1], trail["last_pod"])


def contains(pod: Object, expected: Object) -> bool:
    """Return whether the pod has the labels and the fields of the spec."""
    labels = expected.get("metadata", {}).get("labels", {})
    return pod["metadata"]["labels"].items() >= labels.items() and all(
        pod["spec"].get(key) == value for key, value in expected.get("spec", {}).items()
    )


@pytest.mark.parametrize("name", TRAILS)
def test_observations_in_another_order_and_missing_or_more_ones_do_not_match_the_trail(name: str) -> None:
    trail = [[each] if isinstance(each, str) else each for each in TRAILS[name]["trail"] if not isinstance(each, dict)]
    seen = [name.removeprefix("?") for group in trail for name in group]
    assert mismatch(trail, seen) == ""
    assert mismatch(trail, seen[::-1])
    assert mismatch(trail, seen[:-1]) or trail[-1][-1].startswith("?")
    assert mismatch(trail, [*seen, "pod created"])


# --- the race for the pods of a replaced share-manager, in seconds after the remount was asked for ---

REQUESTED_AT = datetime(2026, 1, 28, 12, tzinfo=UTC)


def started_pod(second: int | None, **fields: Any) -> Object:
    started_at = {} if second is None else {"startTime": f"{REQUESTED_AT + timedelta(seconds=second):%FT%TZ}"}
    owner = {"kind": "VirtualMachineInstance", "controller": True}
    pod = {"metadata": {"ownerReferences": [owner]}, "spec": {"nodeName": "node-a"}}
    return pod | {"status": {"phase": "Running"} | started_at} | fields


# When the new share-manager started, when a pod that mounts its share did, the current time, and whether that pod is
# deleted.
# Longhorn has the first rows in controller/kubernetes_pod_controller_test.go.
RACES = [
    ("no start of the server", None, -30, 90, False),
    ("a server that runs on", -60, -30, 90, False),
    ("a server that started 5 s later", 5, -30, 90, True),
    ("a request 5 s after the start of the server", -5, -30, 90, False),
    ("a server that started in the same second", 0, -30, 90, False),
    ("a server that started in the next second", 1, -30, 90, True),
    ("a pod that started in the same second", 5, 0, 90, False),
    ("a pod that started in the second before", 5, -1, 90, True),
    ("a pod that has not started", 5, None, 90, False),
    ("5 s after the request", 1, -30, 5, False),
    ("6 s after the request", 1, -30, 6, True),
]


@pytest.mark.parametrize(
    ("server", "pod", "now", "deleted"), [case for _, *case in RACES], ids=[row[0] for row in RACES]
)
def test_a_pod_is_deleted_only_if_a_new_server_started_in_a_later_second_than_the_request(
    server: int | None, pod: int | None, now: int, deleted: bool
) -> None:
    at = REQUESTED_AT + timedelta(seconds=now)
    assert (is_due(started_pod(server), REQUESTED_AT, at) and is_affected(started_pod(pod), REQUESTED_AT)) is deleted


def test_a_pod_without_a_controller_and_one_that_ends_are_spared() -> None:
    assert not is_affected(started_pod(-30, metadata={}), REQUESTED_AT)
    ending = {**started_pod(-30)["metadata"], "deletionTimestamp": "2026-01-28T12:00:01Z"}
    assert not is_affected(started_pod(-30, metadata=ending), REQUESTED_AT)


def test_a_server_that_does_not_serve_yet_deletes_no_pod() -> None:
    pod = started_pod(5)
    pod["status"]["containerStatuses"] = [{"ready": False}]
    assert not is_due(pod, REQUESTED_AT, REQUESTED_AT + timedelta(seconds=90))


def test_a_pod_on_a_node_that_is_down_is_deleted_once_the_node_is_back() -> None:
    remounts, pod, server = Remounts(), started_pod(-30), started_pod(60)
    remounts.delay = -60
    remounts.request("v", again=False)
    server["status"]["startTime"] = "2100-01-01T00:00:00Z"
    assert remounts.take("v", server, lambda: [pod], []) == []
    assert remounts.is_pending("v", server)
    assert remounts.take("v", server, lambda: [pod], ["node-a"]) == [pod]
    assert not remounts.is_pending("v", server)


@pytest.mark.parametrize("lasts", [True, False])
def test_a_race_decides_at_each_loss_whether_the_error_outlasts_the_start(lasts: bool) -> None:
    remounts, outcomes = Remounts(), iter([lasts, not lasts])
    remounts.races["v"] = lambda: next(outcomes)
    for again, expected in (False, lasts), (True, lasts), (False, not lasts):
        remounts.request("v", again=again)
        assert remounts.lasts("v") is expected
