"""Tests of Reflector: a cache mirrors one resource kind despite API server errors.

Tests call `follow` and `run` directly, with a fake clock and without real waits.
"""

import gc
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from tests.cluster.stop_event import StopAfterWaits
from tests.support.builders import claim, pod, share_manager
from tests.support.fake_api_server import (
    CUT,
    ApiServer,
    Responder,
    body,
    bookmark,
    error_response,
    event,
    expired,
    forbidden,
    no_response,
    status,
    stream,
)
from tests.support.fake_clock import FakeClock
from tests.support.log_capture import capture_logs
from tests.support.paths import REVIEWS
from tests.support.threads import own_threads
from webhook.catalog.kind import Kind
from webhook.catalog.kinds import kinds
from webhook.catalog.store import Store
from webhook.catalog.tables import Table
from webhook.cluster.client import ClusterClient
from webhook.cluster.credentials import Api, ClusterError
from webhook.cluster.reflector import CRD_MISSING, FIRST_WAIT, MAX_WAIT, MISSING_WAIT, Reflector
from webhook.placement.objects.facts import Claim, Fact, Pod, ShareManager

PASSPHRASE = "not-a-real-passphrase"
CLAIMS, PODS, MANAGERS = "persistentvolumeclaims", "pods", "sharemanagers"
LONG_TIMEOUT = 20.0  # seconds; many times what a responding server needs
SHORT_TIMEOUT = 0.2  # seconds; for tests where the server never completes its response


def kind_of(fact: type[Fact]) -> Kind:
    return next(kind for kind in kinds("longhorn-system") if kind.fact is fact)


class Cache:
    """A reflector of one kind, its store, and a fake API server. Tests drive the passes."""

    def __init__(
        self,
        server: ApiServer,
        fact: type[Fact] = Claim,
        *,
        step: float = 60.0,
        lock: Any = None,
        silence: float = LONG_TIMEOUT,
    ) -> None:
        cluster = ClusterClient(Api(server.url), silence=silence)
        self.server, self.kind, self.store = server, kind_of(fact), Store()
        self.reflector = Reflector(self.kind, cluster, self.store, lock or nullcontext(), FakeClock(0.0, step))
        self.health = self.reflector.health

    def follow(self, *watches: Responder) -> None:
        """List once, then open one watch per answer and a last one that stops the reflector."""
        stop = threading.Event()
        last = stream(then=stop.set)
        self.server.script("watch", self.kind.plural, *watches, last)
        self.reflector.follow(stop)

    def run(self, waits: int, then: Callable[[], Any] = lambda: None) -> list[float]:
        """Run until the reflector has waited `waits` times; return the timeouts in seconds."""
        stop = StopAfterWaits(waits, then)
        self.reflector.run(stop)
        return stop.waits

    @property
    def names(self) -> list[str]:
        return sorted(name for _, name in self.store.table(self.kind.fact)._by_key)


@pytest.fixture
def cache(server: ApiServer) -> Cache:
    return Cache(server)


# Lists


def test_a_reader_never_sees_a_partial_relist(server: ApiServer, cache: Cache) -> None:
    server.put(*(claim(f"disk{number}") for number in range(501)))
    cache.follow()
    known, seen = set(cache.store.claims), list[bool]()

    def second_page(connection: Any) -> None:
        seen.append(set(cache.store.claims) == known)
        connection.answer(200, {"metadata": {"resourceVersion": "9"}, "items": []})

    first_page = {"metadata": {"resourceVersion": "9", "continue": "more"}, "items": [claim("new")]}
    server.script("list", CLAIMS, body(first_page), second_page)
    cache.follow()
    assert (seen, len(known)) == ([True], 501)
    assert cache.names == ["new"]


def test_a_relist_fills_and_clears_tables_while_it_does_not_hold_the_lock(server: ApiServer) -> None:
    changes: list[bool] = []

    class WatchedTable(Table[Any]):
        def put(self, fact: Any) -> None:
            changes.append(lock.locked())
            super().put(fact)

        def remove(self, key: Any) -> Any:
            changes.append(lock.locked())
            return super().remove(key)

    lock = threading.Lock()
    cache = Cache(server, lock=lock)
    cache.store._tables[Claim] = WatchedTable()
    server.put(claim(), claim("disk2"))
    for _ in range(2):
        cache.follow()
    assert changes == [False] * 6
    assert cache.names == ["disk1", "disk2"]


def test_a_failed_relist_leaves_the_cache_unchanged(server: ApiServer, cache: Cache) -> None:
    server.put(claim())
    cache.follow()
    page = {"metadata": {"resourceVersion": "9", "continue": "more"}, "items": []}
    server.script("list", CLAIMS, body(page), error_response(status(500, "etcdserver: request timed out")))
    with pytest.raises(ClusterError, match="timed out"):
        cache.follow()
    assert cache.names == ["disk1"]


def test_a_cache_is_synced_after_its_first_list_and_a_bookmark_is_a_contact(server: ApiServer, cache: Cache) -> None:
    server.put(claim())
    assert cache.health.last_contact is None
    with capture_logs() as logs:
        cache.follow()
        listed = cache.health.last_contact
        assert listed
        cache.follow(stream(bookmark("PersistentVolumeClaim", "2000")))
    assert cache.health.last_contact > listed + 60
    assert logs == [{"event": "synced", "log_level": "info", "resource": CLAIMS, "objects": 1}]


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("levels", [90, 700, 985, 10_000])
def test_an_object_of_any_depth_is_stored_and_ends_neither_a_list_nor_a_watch(server: ApiServer, levels: int) -> None:
    """One pod of 10 KB with made-up managedFields ended each list and each watch of pods, in all replicas."""
    cache, deep = Cache(server, Pod), b'{"f:[":[' * levels + b'"\\"]"' + b"]}" * levels
    first, second = pod("one", node="node-a"), pod("two", node="node-a")
    for each in (first, second):
        each["metadata"]["managedFields"] = "DEEP"
    page = json.dumps({"metadata": {"resourceVersion": "9"}, "items": [first, pod("other")]}).encode()
    server.script("list", PODS, body(page.replace(b'"DEEP"', deep)))
    cache.follow(stream(event("ADDED", second).replace(b'"DEEP"', deep)))
    assert (cache.names, cache.health.skipped) == (["one", "other", "two"], 0)
    assert cache.health.relists.total() == 1
    assert cache.store.pods.requested("node-a", ("", "")) == {"pods": 2}


# Watches


def test_finished_pods_are_not_requested_and_a_pod_bookmark_adds_no_pod(server: ApiServer) -> None:
    """A bookmark of a real API server has null for `containers`."""
    cache = Cache(server, Pod)
    cache.follow(stream(bookmark("Pod", "2000")))
    expected = {"status.phase!=Succeeded,status.phase!=Failed"}
    assert {server.last(verb, PODS).query["fieldSelector"] for verb in ("list", "watch")} == expected
    assert server.last("watch", PODS).query["resourceVersion"] == "2000"
    assert (cache.names, cache.health.skipped, cache.health.watch_errors) == ([], 0, 0)


def test_a_new_watch_resumes_at_the_last_resource_version_without_a_relist(server: ApiServer, cache: Cache) -> None:
    server.put(claim())
    item = claim("disk2")
    item["metadata"]["resourceVersion"] = "1500"
    cache.follow(stream(event("ADDED", item)), stream(bookmark("PersistentVolumeClaim", "1600")), stream())
    versions = [request.query["resourceVersion"] for request in server.requests if request.verb == "watch"]
    assert versions == [server.version, "1500", "1600", "1600"]
    assert server.count("list", CLAIMS) == 1
    assert cache.names == ["disk1", "disk2"]
    assert (cache.health.problem, cache.health.watch_errors, dict(cache.health.relists)) == ("", 0, {"start": 1})


def test_watch_timeouts_vary_between_150_and_300_seconds(server: ApiServer, cache: Cache) -> None:
    cache.follow(*[stream()] * 30)
    lengths = {int(request.query["timeoutSeconds"]) for request in server.requests if request.verb == "watch"}
    assert len(lengths) > 5
    assert all(150 <= length <= 300 for length in lengths)


def test_a_watch_that_ends_immediately_is_retried_with_backoff(server: ApiServer) -> None:
    cache = Cache(server, step=0.001)
    server.script("watch", CLAIMS, *[stream()] * 9)
    waits = cache.run(8)
    assert server.count("watch", CLAIMS) == 8
    assert all(wait >= FIRST_WAIT / 2 for wait in waits)
    assert all(wait >= MAX_WAIT / 2 for wait in waits[3:])
    assert cache.health.problem == "the watch ended immediately"


# Errors


@pytest.mark.parametrize(
    ("verb", "answer"),
    [
        pytest.param("watch", stream(event("ERROR", expired())), id="ERROR event of a watch"),
        pytest.param("watch", error_response(expired()), id="response to a watch"),
        pytest.param("list", error_response(expired()), id="response to a list"),
    ],
)
def test_an_expired_resource_version_relists_without_a_wait(
    server: ApiServer, cache: Cache, verb: str, answer: Responder
) -> None:
    server.script(verb, CLAIMS, answer)
    server.script("watch", CLAIMS, stream(end=CUT))
    server.put(claim())
    with capture_logs() as logs:
        waits = cache.run(2)
    assert (waits[0], logs[0]["log_level"]) == (0.0, "info")
    assert cache.health.relists == {"start": 1, "expired": 1}
    assert cache.names == ["disk1"]


def test_repeatedly_expired_resource_versions_relist_with_backoff(server: ApiServer, cache: Cache) -> None:
    server.script("list", CLAIMS, *[error_response(expired())] * 5)
    waits = cache.run(5)
    assert waits[0] == 0.0
    assert all(wait >= FIRST_WAIT for wait in waits[1:])


@pytest.mark.parametrize(
    ("verb", "answer"),
    [
        pytest.param("list", body(b"garbage"), id="list is not JSON"),
        pytest.param("list", lambda connection: connection.end(cut=True), id="list is cut"),
        pytest.param("watch", stream(end=CUT), id="watch is cut"),
        pytest.param("watch", stream(event("ADDED", claim("x")), b"garbage"), id="watch sends invalid JSON"),
        pytest.param("watch", stream(event("ERROR", status(500, "etcd"))), id="ERROR event"),
        pytest.param("watch", stream(end=None), id="silent watch"),
        pytest.param("watch", no_response, id="watch without a response"),
    ],
)
def test_any_error_relists_after_a_short_wait(server: ApiServer, verb: str, answer: Responder) -> None:
    cache = Cache(server, silence=SHORT_TIMEOUT)  # on a busy machine another answer may be late, which is an error too
    server.put(claim())
    server.script(verb, CLAIMS, answer)
    server.script("watch", CLAIMS, stream(end=CUT))
    waits = cache.run(2)
    assert FIRST_WAIT / 2 <= waits[0] <= FIRST_WAIT
    assert cache.names == ["disk1"]
    assert cache.health.relists == {"start": 1, "error": 1}


def test_the_backoff_grows_with_jitter_up_to_three_seconds(server: ApiServer, cache: Cache) -> None:
    """With this limit, decisions are correct within 5 s after the API server returns."""
    server.script("list", CLAIMS, *[error_response(status(500, "etcd"))] * 40)
    waits = cache.run(40)
    for wait, longest in zip(waits, [0.5, 1.0, 2.0, *[3.0] * 37], strict=True):
        assert longest / 2 <= wait <= longest
    assert len(set(waits[3:])) > 30


def test_the_backoff_resets_after_a_long_watch(server: ApiServer, cache: Cache) -> None:
    server.script("list", CLAIMS, *[error_response(status(500, "etcd"))] * 5)
    server.script("watch", CLAIMS, stream(end=CUT))
    waits = cache.run(6)
    assert waits[4] > 1.0
    assert waits[5] <= FIRST_WAIT


def test_a_missing_permission_is_logged_once_with_the_api_servers_message(server: ApiServer, cache: Cache) -> None:
    server.forbidden.add(("list", CLAIMS))
    with capture_logs() as logs:
        cache.run(6)
    sentence = forbidden("list", CLAIMS)["message"]
    assert sentence.startswith('persistentvolumeclaims is forbidden: User "system:serviceaccount:kubevirt-scheduler:')
    assert (cache.health.problem, cache.health.code, cache.health.last_contact) == (sentence, 403, None)
    assert cache.health.relists == {"start": 1, "forbidden": 5}
    assert logs == [
        {
            "event": "list or watch failed, relisting",
            "log_level": "warning",
            "resource": CLAIMS,
            "code": 403,
            "error": sentence,
        }
    ]


def test_an_unexpected_error_is_logged_with_its_traceback_and_does_not_end_the_thread(server: ApiServer) -> None:
    class BrokenStore(Store):
        def replace(self, *_: Any) -> None:
            raise ZeroDivisionError

    cache = Cache(server)
    cache.reflector._store = BrokenStore()
    with capture_logs() as logs:
        waits = cache.run(3)
    assert len(waits) == 3
    assert cache.health.problem == "ZeroDivisionError in persistentvolumeclaims"
    assert [(entry["event"], entry["log_level"]) for entry in logs[:2]] == [
        ("unexpected error", "error"),
        ("list or watch failed, relisting", "warning"),
    ]
    assert logs[0]["exc_info"]


def test_reconnections_leak_no_objects_threads_or_connections(server: ApiServer, cache: Cache) -> None:
    server.put(*(claim(f"disk{number}") for number in range(50)))

    def reconnect(times: int) -> int:
        server.script("watch", CLAIMS, *[stream(event("ADDED", claim()), end=CUT)] * times)
        cache.run(times)
        server.requests.clear()
        gc.collect()
        # Don't count objects of other tools, such as coverage.
        counted_modules = ("webhook", "urllib3", "http", "ssl", "socket", "msgspec", "kubernetes")
        return sum(str(type(one).__module__).startswith(counted_modules) for one in gc.get_objects())

    reconnect(20)
    running, before = own_threads(), reconnect(20)
    after = reconnect(100)
    assert after - before < 50
    assert own_threads() <= running
    assert len(server.http.open) <= 3


# Malformed objects


NAMELESS = [{}, [], 7, None, "x", {"metadata": None}, {"metadata": {"name": 7}}, {"metadata": {"name": ""}}]


def test_a_list_item_without_a_name_or_that_is_not_json_is_skipped_and_counted(server: ApiServer, cache: Cache) -> None:
    items = [*NAMELESS, claim("broken"), claim()]
    page = json.dumps({"metadata": {"resourceVersion": "9"}, "items": items}).encode()
    server.script("list", CLAIMS, body(page.replace(b"broken", b"\xff\xfe")))
    cache.follow(stream(*(event("ADDED", item) for item in NAMELESS)))
    assert (cache.names, cache.health.skipped) == (["disk1"], 2 * len(NAMELESS) + 1)


def test_a_pod_with_an_invalid_request_is_removed_and_logged(server: ApiServer) -> None:
    cache = Cache(server, Pod)
    server.put(pod("one", node="node-a", requests={"cpu": "1"}))
    with capture_logs() as logs:
        cache.follow(stream(event("MODIFIED", pod("one", node="node-a", requests={"cpu": PASSPHRASE}))))
    assert cache.names == []
    assert [(entry["event"], entry.get("object")) for entry in logs] == [
        ("synced", None),
        ("malformed object skipped", "default/one"),
    ]
    assert PASSPHRASE not in str(logs)


# A missing CRD


def test_a_missing_crd_gives_an_empty_cache_and_one_warning(server: ApiServer) -> None:
    cache = Cache(server, ShareManager)
    server.missing.add(MANAGERS)
    with capture_logs() as logs:
        waits = cache.run(4)
    assert waits == [MISSING_WAIT] * 4
    assert (cache.health.objects, cache.health.code) == (0, 404)
    assert cache.health.last_contact is not None
    assert cache.health.watch_errors == 0
    assert cache.health.relists == {"start": 1, "missing": 3}
    assert [(entry["log_level"], entry["error"]) for entry in logs] == [("warning", CRD_MISSING)]


def test_removing_the_crd_empties_the_cache_until_it_is_installed_again(server: ApiServer) -> None:
    cache = Cache(server, ShareManager)
    server.put(share_manager())
    with capture_logs() as logs:
        for _ in range(2):
            server.script("watch", MANAGERS, stream(end=CUT))
            cache.run(1, then=lambda: server.missing.add(MANAGERS))
            assert cache.names == ["vol-disk1"]
            cache.run(1, then=server.missing.clear)
            assert cache.names == []
    cache.follow()
    assert (cache.names, cache.health.problem, cache.health.code) == (["vol-disk1"], "", 0)
    assert sum(entry.get("error") == CRD_MISSING for entry in logs) == 2


# Threads and secrets


def reachable(*roots: Any) -> Iterator[Any]:
    """Yield all objects reachable from `roots` except code, classes and modules."""
    seen, todo = set[int](), list(roots)
    while todo:
        found = todo.pop()
        if id(found) not in seen and not callable(found) and type(found).__name__ != "module":
            seen.add(id(found))
            yield found
            todo += gc.get_referents(found)


def test_the_passphrase_of_an_encrypted_volume_is_not_retained(server: ApiServer) -> None:
    review = json.loads((REVIEWS / "share-manager-avoiding-a-node.json").read_text())
    item = review["request"]["object"]
    assert PASSPHRASE in json.dumps(item)
    malformed = json.loads(json.dumps(item))  # the reflector decodes a malformed pod in full
    malformed["metadata"]["name"] = "strange"
    malformed["spec"]["initContainers"] = malformed["spec"]["containers"][0]
    cache = Cache(server, Pod)
    server.put(item)
    with capture_logs() as logs:
        cache.follow(stream(event("MODIFIED", item), event("ADDED", malformed)))
        server.script("watch", PODS, stream(event("CHANGED", item)))
        cache.run(1)
    assert item["metadata"]["name"] in cache.names
    kept = list(
        reachable(vars(cache.store), cache.health.problem, cache.health.relists, logs, cache.reflector._last_error)
    )
    assert item["metadata"]["name"] in kept
    assert not [found for found in kept if isinstance(found, str | bytes) and PASSPHRASE in str(found)]
