"""A cache is kept like the cluster, whatever the API server does. Tests drive its passes: no thread, no clock."""

import gc
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from kubernetes.client import Configuration
from structlog.testing import capture_logs

from tests.support.builders import Object, apart, claim, node, pod, share_manager, virt_launcher, volume
from tests.support.fake_api_server import (
    CUT,
    Answer,
    ApiServer,
    body,
    bookmark,
    event,
    expired,
    forbidden,
    refusal,
    silence,
    status,
    stream,
)
from tests.support.paths import REVIEWS
from tests.support.threads import threads
from webhook.cluster.client import ClusterClient, ClusterError
from webhook.cluster.kinds import Kind, kinds, object_path
from webhook.cluster.objects import Fact
from webhook.cluster.reflector import FIRST_WAIT, LONGEST_WAIT, MISSING, MISSING_WAIT, Reflector
from webhook.cluster.store import Store
from webhook.placement.catalog import Claim, Node, Pod, ShareManager, Volume

PASSPHRASE = "not-a-real-passphrase"
CLAIMS, PODS, MANAGERS = "persistentvolumeclaims", "pods", "sharemanagers"
IN_TIME = 20.0  # seconds, many times what a server takes that answers
SOON = 0.2  # seconds: what one that says nothing may cost a test


class Clock:
    """Seconds that pass by themselves: so many between one look and the next."""

    def __init__(self, step: float = 60.0) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


class Stop(threading.Event):
    """What ends a thread, and counts how long it wanted to wait instead of waiting; after so many times it ends it."""

    def __init__(self, after: int, then: Callable[[], Any] = lambda: None) -> None:
        super().__init__()
        self.waits: list[float] = []
        self._after, self._then = after, then

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout or 0.0)
        if len(self.waits) == self._after:
            self._then()
            self.set()
        return self.is_set()


class Lock(AbstractContextManager[None]):
    """A lock that is looked at whenever it is let go."""

    def __init__(self, look: Callable[[], Any]) -> None:
        self.seen: list[Any] = []
        self._look = look

    def __exit__(self, *_: object) -> None:
        self.seen.append(self._look())


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        yield server


def kind_of(fact: type[Fact]) -> Kind:
    return next(kind for kind in kinds("longhorn-system") if kind.fact is fact)


class Cache:
    """One kind of a fake cluster, and the passes that a test drives."""

    def __init__(
        self,
        server: ApiServer,
        fact: type[Fact] = Claim,
        *,
        step: float = 60.0,
        lock: Any = None,
        silence: float = IN_TIME,
    ) -> None:
        cluster = ClusterClient(lambda: Configuration(host=server.url), silence=silence)
        self.server, self.kind, self.store = server, kind_of(fact), Store()
        self.reflector = Reflector(self.kind, cluster, self.store, lock or nullcontext(), Clock(step))
        self.health = self.reflector.health

    def follow(self, *watches: Answer) -> None:
        """List once, and watch as often as there are answers."""
        stop = threading.Event()
        last = stream(then=stop.set)
        self.server.script("watch", self.kind.plural, *watches, last)
        self.reflector.follow(stop)

    def run(self, waits: int, then: Callable[[], Any] = lambda: None) -> list[float]:
        """Run until it has waited so many times, and return for how long."""
        stop = Stop(waits, then)
        self.reflector.run(stop)
        return stop.waits

    @property
    def names(self) -> list[str]:
        return sorted(name for _, name in self.store.table(self.kind.fact)._by_key)


@pytest.fixture
def cache(server: ApiServer) -> Cache:
    return Cache(server)


# Lists


@pytest.mark.parametrize(
    ("fact", "item", "key"),
    [
        (Claim, claim(), ("default", "disk1")),
        (Volume, volume(), ("", "pvc-disk1")),
        (ShareManager, share_manager(), ("longhorn-system", "vol-disk1")),
        (Node, node(), ("", "node-a")),
        (Pod, pod("one"), ("default", "one")),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_each_kind_is_listed_and_followed(server: ApiServer, fact: type[Fact], item: Object, key: Any) -> None:
    cache = Cache(server, fact)
    server.put(item)
    cache.follow()
    assert cache.store.table(fact).get(key) is not None
    assert cache.health.objects == 1
    gone = event("DELETED", item)
    cache.follow(stream(gone))
    assert cache.names == []
    assert cache.health.objects == 0


def test_a_list_of_many_pages_is_put_in_its_place_at_once(server: ApiServer) -> None:
    server.put(*(claim(f"disk{number}") for number in range(1201)))
    lock = Lock(lambda: len(cache.store.claims))
    cache = Cache(server, lock=lock)
    cache.follow()
    assert lock.seen == [1201]
    assert server.count("list", CLAIMS) == 3


def test_a_reader_never_sees_a_relist_half_done(server: ApiServer, cache: Cache) -> None:
    server.put(*(claim(f"disk{number}") for number in range(501)))
    cache.follow()
    known, seen = cache.store.claims, list[Any]()

    def second_page(connection: Any) -> None:
        seen.append((cache.store.claims is known, len(cache.store.claims)))
        connection.answer(200, {"metadata": {"resourceVersion": "9"}, "items": []})

    first_page = {"metadata": {"resourceVersion": "9", "continue": "more"}, "items": [claim("new")]}
    server.script("list", CLAIMS, body(first_page), second_page)
    cache.follow()
    assert seen == [(True, 501)]
    assert cache.names == ["new"]


def test_what_a_relist_replaces_is_dismantled_when_nobody_waits_for_it(server: ApiServer) -> None:
    tables: list[Any] = []
    lock = Lock(lambda: [len(table) for table in tables])
    cache = Cache(server, lock=lock)
    server.put(claim(), claim("disk2"))
    cache.follow()
    tables.append(cache.store.claims)
    cache.follow()
    assert lock.seen[-1] == [2]
    assert [len(table) for table in tables] == [0]
    assert cache.names == ["disk1", "disk2"]


def test_a_relist_that_breaks_off_leaves_what_was_known(server: ApiServer, cache: Cache) -> None:
    server.put(claim())
    cache.follow()
    page = {"metadata": {"resourceVersion": "9", "continue": "more"}, "items": []}
    server.script("list", CLAIMS, body(page), refusal(status(500, "etcdserver: request timed out")))
    with pytest.raises(ClusterError, match="timed out"):
        cache.follow()
    assert cache.names == ["disk1"]


def test_pods_that_have_finished_are_not_asked_for(server: ApiServer) -> None:
    cache = Cache(server, Pod)
    cache.follow()
    chosen = {"status.phase!=Succeeded,status.phase!=Failed"}
    assert {server.last(verb, PODS).query["fieldSelector"] for verb in ("list", "watch")} == chosen


def test_a_cache_is_synced_after_its_first_list(server: ApiServer, cache: Cache) -> None:
    server.put(claim())
    assert (cache.health.synced, cache.health.heard) == (False, None)
    with capture_logs() as logs:
        cache.follow()
        cache.follow()
    assert cache.health.synced
    assert logs == [{"event": "synced", "log_level": "info", "resource": CLAIMS, "objects": 1}]


# Watches


def test_what_happens_is_followed(server: ApiServer, cache: Cache) -> None:
    server.put(claim("old"))
    events = [
        event("ADDED", claim("new", volume="")),
        event("MODIFIED", claim("new", volume="pvc-7")),
        event("DELETED", claim("old")),
        bookmark("PersistentVolumeClaim", "2000"),
    ]
    cache.follow(stream(*events))
    assert cache.names == ["new"]
    assert cache.store.claim("default", "new").volume_name == "pvc-7"


def test_a_bookmark_of_pods_is_no_pod_and_no_error(server: ApiServer) -> None:
    """The real one has null for the containers."""
    cache = Cache(server, Pod)
    cache.follow(stream(bookmark("Pod", "2000")))
    assert server.last("watch", PODS).query["resourceVersion"] == "2000"
    assert (cache.names, cache.health.skipped, cache.health.watch_errors) == ([], 0, 0)


@pytest.mark.parametrize("kind", ["MODIFIED", "DELETED"])
@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_finishes_leaves(server: ApiServer, kind: str, phase: str) -> None:
    cache = Cache(server, Pod)
    server.put(pod("one", node="node-a"), pod("two", node="node-a"))
    cache.follow(stream(event(kind, pod("one", node="node-a", phase=phase))))
    assert cache.names == ["two"]
    assert cache.store.requested("node-a", ("", "")) == {"pods": 1}


def test_a_deletion_of_what_is_not_there_changes_nothing(server: ApiServer, cache: Cache) -> None:
    server.put(claim())
    cache.follow(stream(event("DELETED", claim("another"))))
    assert cache.names == ["disk1"]


def test_a_watch_that_ended_goes_on_where_it_was_without_a_list(server: ApiServer, cache: Cache) -> None:
    server.put(claim())
    item = claim("disk2")
    item["metadata"]["resourceVersion"] = "1500"
    cache.follow(stream(event("ADDED", item)), stream(bookmark("PersistentVolumeClaim", "1600")), stream())
    versions = [asked.query["resourceVersion"] for asked in server.asked if asked.verb == "watch"]
    assert versions == [server.version, "1500", "1600", "1600"]
    assert server.count("list", CLAIMS) == 1
    assert cache.names == ["disk1", "disk2"]
    assert (cache.health.problem, cache.health.watch_errors, dict(cache.health.relists)) == ("", 0, {"start": 1})


def test_an_event_without_a_version_does_not_lose_the_place(server: ApiServer, cache: Cache) -> None:
    cache.follow(stream(event("ADDED", claim())))
    assert server.last("watch", CLAIMS).query["resourceVersion"] == server.version


def test_a_watch_is_of_a_length_that_replicas_do_not_share(server: ApiServer, cache: Cache) -> None:
    cache.follow(*[stream()] * 30)
    lengths = {int(asked.query["timeoutSeconds"]) for asked in server.asked if asked.verb == "watch"}
    assert len(lengths) > 5
    assert all(150 <= length <= 300 for length in lengths)


def test_a_watch_that_ends_at_once_is_no_busy_loop(server: ApiServer) -> None:
    cache = Cache(server, step=0.001)
    server.script("watch", CLAIMS, *[stream()] * 9)
    waits = cache.run(8)
    assert server.count("watch", CLAIMS) == 8
    assert all(wait >= FIRST_WAIT / 2 for wait in waits)
    assert all(wait >= LONGEST_WAIT / 2 for wait in waits[3:])
    assert cache.health.problem == "the watch ended at once"


def test_each_event_and_bookmark_is_a_sign_of_life(cache: Cache) -> None:
    cache.follow()
    listed = cache.health.heard
    cache.follow(stream(bookmark("PersistentVolumeClaim", "2000")))
    after_bookmark = cache.health.heard
    assert listed
    assert after_bookmark
    assert after_bookmark > listed + 60


# What goes wrong


GONE = pytest.mark.parametrize(
    ("verb", "answer"),
    [
        pytest.param("watch", stream(event("ERROR", expired())), id="an event of the watch"),
        pytest.param("watch", refusal(expired()), id="the answer to a watch"),
        pytest.param("list", refusal(expired()), id="the answer to a list"),
    ],
)


@GONE
def test_a_version_that_is_too_old_makes_a_new_list_at_once(
    server: ApiServer, cache: Cache, verb: str, answer: Answer
) -> None:
    server.script(verb, CLAIMS, answer)
    server.script("watch", CLAIMS, stream(end=CUT))
    server.put(claim())
    waits = cache.run(2)
    assert waits[0] == 0.0
    assert cache.health.relists == {"start": 1, "expired": 1}
    assert cache.names == ["disk1"]


def test_a_version_that_is_too_old_again_and_again_is_waited_for(server: ApiServer, cache: Cache) -> None:
    server.script("list", CLAIMS, *[refusal(expired())] * 5)
    waits = cache.run(5)
    assert waits[0] == 0.0
    assert all(wait >= FIRST_WAIT for wait in waits[1:])


def test_a_list_that_expires_between_its_pages_begins_anew(server: ApiServer, cache: Cache) -> None:
    server.put(*(claim(f"disk{number}") for number in range(501)))

    def compacted(connection: Any) -> None:
        server.compact()
        connection.answer(410, expired())

    page = {"metadata": {"resourceVersion": "9", "continue": "more"}, "items": []}
    server.script("list", CLAIMS, body(page), compacted)
    server.script("watch", CLAIMS, stream(end=CUT))
    cache.run(2)
    assert len(cache.names) == 501
    assert cache.health.relists == {"start": 1, "expired": 1}


@pytest.mark.parametrize(
    ("verb", "answer"),
    [
        pytest.param("list", refusal(status(500, "etcdserver: leader changed")), id="a list fails"),
        pytest.param("list", body(b"garbage"), id="a list is garbage"),
        pytest.param("list", lambda connection: connection.end(cut=True), id="a list breaks off"),
        pytest.param("watch", refusal(status(503, "unavailable")), id="a watch is refused"),
        pytest.param("watch", stream(end=CUT), id="a watch breaks off"),
        pytest.param("watch", stream(event("ADDED", claim("x")), b"garbage"), id="a watch turns into garbage"),
        pytest.param("watch", stream(b'{"type":"ADDED","object":{"metadata":{"name":"\xff"}}}'), id="invalid UTF-8"),
        pytest.param("watch", stream(event("CHANGED", claim())), id="an event of an unknown type"),
        pytest.param("watch", stream(event("ERROR", status(500, "etcd"))), id="an error in a watch"),
        pytest.param("watch", stream(end=None), id="a watch goes silent"),
        pytest.param("watch", silence, id="a watch is not answered"),
    ],
)
def test_any_error_makes_a_new_list_after_a_short_wait(server: ApiServer, verb: str, answer: Answer) -> None:
    cache = Cache(server, silence=SOON)  # where a busy machine is late with another answer, that is an error as well
    server.put(claim())
    server.script(verb, CLAIMS, answer)
    server.script("watch", CLAIMS, stream(end=CUT))
    waits = cache.run(2)
    assert FIRST_WAIT / 2 <= waits[0] <= FIRST_WAIT
    assert cache.names == ["disk1"]
    assert cache.health.relists == {"start": 1, "error": 1}


def test_what_failed_is_counted_by_where_it_failed(server: ApiServer, cache: Cache) -> None:
    server.script("list", CLAIMS, *[refusal(status(500, "etcd"))] * 2)
    server.script("watch", CLAIMS, *[stream(end=CUT)] * 3)
    cache.run(5)
    assert (cache.health.list_errors, cache.health.watch_errors) == (2, 3)


def test_waits_grow_are_jittered_and_end_at_three_seconds(server: ApiServer, cache: Cache) -> None:
    """So that decisions are right within 5 s of the API server's return."""
    server.script("list", CLAIMS, *[refusal(status(500, "etcd"))] * 40)
    waits = cache.run(40)
    for wait, longest in zip(waits, [0.5, 1.0, 2.0, *[3.0] * 37], strict=True):
        assert longest / 2 <= wait <= longest
    assert len(set(waits[3:])) > 30


def test_the_waits_are_short_again_once_a_watch_has_lasted(server: ApiServer, cache: Cache) -> None:
    server.script("list", CLAIMS, *[refusal(status(500, "etcd"))] * 5)
    server.script("watch", CLAIMS, stream(end=CUT))
    waits = cache.run(6)
    assert waits[4] > 1.0
    assert waits[5] <= FIRST_WAIT


def test_a_cluster_that_can_be_listed_but_not_watched_is_listed_every_few_seconds_and_no_oftener(
    server: ApiServer,
) -> None:
    cache = Cache(server, step=0.001)
    server.put(claim())
    server.forbidden.add(("watch", CLAIMS))
    with capture_logs() as logs:
        waits = cache.run(8)
    assert all(wait >= LONGEST_WAIT / 2 for wait in waits[3:])
    assert cache.names == ["disk1"]
    assert cache.health.problem == forbidden("watch", CLAIMS)["message"]
    assert [entry["event"] for entry in logs] == ["synced", "lost"]


def test_a_list_without_a_version_counts_but_is_not_watched(server: ApiServer, cache: Cache) -> None:
    server.script("list", CLAIMS, body({"metadata": {}, "items": [claim()]}))
    cache.run(1)
    assert cache.names == ["disk1"]
    assert server.count("watch", CLAIMS) == 0
    assert cache.health.problem == "the list has no resource version to watch from"


def test_a_right_that_is_missing_is_named_by_the_api_server_and_logged_once(server: ApiServer, cache: Cache) -> None:
    server.forbidden.add(("list", CLAIMS))
    with capture_logs() as logs:
        cache.run(6)
    sentence = forbidden("list", CLAIMS)["message"]
    assert sentence.startswith('persistentvolumeclaims is forbidden: User "system:serviceaccount:kubevirt-scheduler:')
    assert (cache.health.problem, cache.health.code, cache.health.synced) == (sentence, 403, False)
    assert cache.health.relists == {"start": 1, "forbidden": 5}
    assert logs == [{"event": "lost", "log_level": "warning", "resource": CLAIMS, "code": 403, "error": sentence}]


def test_a_right_that_was_given_back_ends_the_problem(server: ApiServer, cache: Cache) -> None:
    server.forbidden.add(("list", CLAIMS))
    cache.run(1, then=server.forbidden.clear)
    cache.follow()
    assert (cache.health.problem, cache.health.code, cache.health.synced) == ("", 0, True)


def test_a_problem_that_comes_back_after_a_good_while_is_logged_again(server: ApiServer, cache: Cache) -> None:
    server.script("watch", CLAIMS, *[stream(bookmark("PersistentVolumeClaim", "2000"), end=CUT)] * 2)
    with capture_logs() as logs:
        cache.run(2)
    assert [entry["event"] for entry in logs] == ["synced", "lost", "lost"]


def test_a_surprise_inside_is_told_with_its_traceback_and_does_not_end_the_thread(server: ApiServer) -> None:
    class Broken(Store):
        def swap_table(self, *_: Any) -> None:
            raise ZeroDivisionError

    cache = Cache(server)
    cache.reflector._store = Broken()
    with capture_logs() as logs:
        waits = cache.run(3)
    assert len(waits) == 3
    assert cache.health.problem == "ZeroDivisionError in persistentvolumeclaims"
    assert [(entry["event"], entry["log_level"]) for entry in logs[:2]] == [("surprised", "error"), ("lost", "warning")]
    assert logs[0]["exc_info"]


def test_many_reconnections_leave_nothing_behind(server: ApiServer, cache: Cache) -> None:
    server.put(*(claim(f"disk{number}") for number in range(50)))

    def lose(times: int) -> int:
        server.script("watch", CLAIMS, *[stream(event("ADDED", claim()), end=CUT)] * times)
        cache.run(times)
        server.asked.clear()
        gc.collect()
        # What coverage, say, makes of the lines that it sees is not ours.
        ours = ("webhook", "urllib3", "http", "ssl", "socket", "msgspec", "kubernetes")
        return sum(str(type(one).__module__).startswith(ours) for one in gc.get_objects())

    lose(20)
    running, before = threads(), lose(20)
    after = lose(200)
    assert after - before < 100
    assert threads() <= running
    assert server.connections <= 3


# Strange objects


STRANGE = [
    pytest.param(Claim, {"metadata": {"name": "strange", "namespace": 5}, "spec": {"accessModes": 7}}, id="claim"),
    pytest.param(Volume, {"spec": {"csi": [], "nodeAffinity": ""}}, id="volume"),
    pytest.param(ShareManager, {"status": [[]]}, id="share-manager"),
    pytest.param(Node, {"status": {"allocatable": {"cpu": "many"}}}, id="node"),
    pytest.param(Node, {"status": 7}, id="node's status"),
    pytest.param(Pod, {"spec": {"containers": 3}, "status": "x"}, id="pod"),
    pytest.param(Pod, {"spec": {"affinity": apart({"namespaces": [{}]})}}, id="affinity"),
    pytest.param(Pod, {"metadata": {"name": "strange", "labels": {"a": {}}}, "spec": []}, id="pod's labels"),
]
NAMELESS = [{}, [], 7, None, "x", {"metadata": None}, {"metadata": {"name": 7}}, {"metadata": {"name": ""}}]


def good(fact: type[Fact]) -> Object:
    made = {Claim: claim, Volume: volume, ShareManager: share_manager, Node: node, Pod: lambda: pod("one")}
    return dict(made[fact]())


@pytest.mark.parametrize(("fact", "item"), STRANGE)
def test_an_object_of_strange_types_does_not_take_the_others_along(
    server: ApiServer, fact: type[Fact], item: Object
) -> None:
    cache = Cache(server, fact)
    kind, item = cache.kind, {"metadata": {"name": "strange"}} | item
    page = {"metadata": {"resourceVersion": "9"}, "items": [item, good(fact)]}
    server.script("list", kind.plural, body(page))
    cache.follow(stream(event("MODIFIED", item), event("ADDED", good(fact))))
    assert good(fact)["metadata"]["name"] in cache.names
    assert (cache.health.watch_errors, cache.health.list_errors) == (0, 0)


@pytest.mark.parametrize("fact", [Claim, Volume, ShareManager, Node, Pod])
def test_what_has_no_name_is_skipped_and_counted(server: ApiServer, fact: type[Fact]) -> None:
    cache = Cache(server, fact)
    page = {"metadata": {"resourceVersion": "9"}, "items": [*NAMELESS, good(fact)]}
    server.script("list", cache.kind.plural, body(page))
    cache.follow(stream(*(event("ADDED", item) for item in NAMELESS)))
    assert cache.names == [good(fact)["metadata"]["name"]]
    assert cache.health.skipped == 2 * len(NAMELESS)


def test_an_object_that_is_no_json_is_skipped_in_a_list(server: ApiServer, cache: Cache) -> None:
    page = json.dumps({"metadata": {"resourceVersion": "9"}, "items": [claim("broken"), claim()]}).encode()
    server.script("list", CLAIMS, body(page.replace(b"broken", b"\xff\xfe")))
    cache.follow()
    assert (cache.names, cache.health.skipped) == (["disk1"], 1)


def test_a_pod_whose_request_can_no_longer_be_read_is_forgotten_and_told(server: ApiServer) -> None:
    cache = Cache(server, Pod)
    server.put(pod("one", node="node-a", requests={"cpu": "1"}))
    with capture_logs() as logs:
        cache.follow(stream(event("MODIFIED", pod("one", node="node-a", requests={"cpu": PASSPHRASE}))))
    assert cache.names == []
    assert [(entry["event"], entry.get("name")) for entry in logs] == [("synced", None), ("skipped", "one")]
    assert PASSPHRASE not in str(logs)


# A CRD that is not there


def test_a_missing_crd_is_an_empty_cache_and_one_warning(server: ApiServer) -> None:
    cache = Cache(server, ShareManager)
    server.missing.add(MANAGERS)
    with capture_logs() as logs:
        waits = cache.run(4)
    assert waits == [MISSING_WAIT] * 4
    assert (cache.health.synced, cache.health.objects, cache.health.code) == (True, 0, 404)
    assert cache.health.heard is not None
    assert (cache.health.list_errors, cache.health.watch_errors) == (0, 0)
    assert cache.health.relists == {"start": 1, "missing": 3}
    assert [(entry["log_level"], entry["error"]) for entry in logs] == [("warning", MISSING)]


def test_a_crd_is_picked_up_when_it_appears(server: ApiServer) -> None:
    cache = Cache(server, ShareManager)
    server.missing.add(MANAGERS)
    server.put(share_manager())
    cache.run(1, then=server.missing.clear)
    cache.follow()
    assert (cache.names, cache.health.problem) == (["vol-disk1"], "")


def test_a_crd_that_goes_takes_its_objects_along_and_is_told_again(server: ApiServer) -> None:
    cache = Cache(server, ShareManager)
    server.put(share_manager())
    with capture_logs() as logs:
        for _ in range(2):
            server.missing.clear()
            server.script("watch", MANAGERS, stream(end=CUT))
            cache.run(1, then=lambda: server.missing.add(MANAGERS))
            cache.run(1)
            assert cache.names == []
    assert sum(entry.get("error") == MISSING for entry in logs) == 2


def test_a_resource_that_kubernetes_itself_lacks_is_an_error(server: ApiServer, cache: Cache) -> None:
    server.missing.add(CLAIMS)
    cache.run(1)
    assert (cache.health.synced, cache.health.code) == (False, 404)


# Threads and secrets


def test_a_thread_ends_when_it_is_told_to(server: ApiServer, cache: Cache) -> None:
    stop = threading.Event()
    server.script("watch", CLAIMS, stream(then=stop.set))
    thread = threading.Thread(target=cache.reflector.run, args=(stop,))
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


def reachable(*roots: Any) -> Iterator[Any]:
    """All that can be reached from here but code, classes and modules."""
    seen, todo = set[int](), list(roots)
    while todo:
        found = todo.pop()
        if id(found) not in seen and not callable(found) and type(found).__name__ != "module":
            seen.add(id(found))
            yield found
            todo += gc.get_referents(found)


def test_the_passphrase_of_an_encrypted_volume_is_not_kept_anywhere(server: ApiServer) -> None:
    review = json.loads((REVIEWS / "share-manager-avoiding-a-node.json").read_text())
    item = review["request"]["object"]
    assert PASSPHRASE in json.dumps(item)
    strange = json.loads(json.dumps(item))  # of a shape that is decoded whole, to see what can be read
    strange["metadata"]["name"] = "strange"
    strange["spec"]["initContainers"] = strange["spec"]["containers"][0]
    cache = Cache(server, Pod)
    server.put(item)
    with capture_logs() as logs:
        cache.follow(stream(event("MODIFIED", item), event("ADDED", strange)))
        server.script("watch", PODS, stream(event("CHANGED", item)))
        cache.run(1)
    assert item["metadata"]["name"] in cache.names
    kept = list(reachable(vars(cache.store), cache.health.problem, cache.health.relists, logs, cache.reflector._told))
    assert item["metadata"]["name"] in kept
    assert not [found for found in kept if isinstance(found, str | bytes) and PASSPHRASE in str(found)]


def test_where_an_object_is_read_depends_on_its_kind() -> None:
    assert object_path(kind_of(Claim), ("my-ns", "disk1")) == "/api/v1/namespaces/my-ns/persistentvolumeclaims/disk1"
    assert object_path(kind_of(Pod), ("my-ns", "a/b")) == "/api/v1/namespaces/my-ns/pods/a%2Fb"
    assert object_path(kind_of(Volume), ("", "pvc-1")) == "/api/v1/persistentvolumes/pvc-1"
    managers = "/apis/longhorn.io/v1beta2/namespaces/longhorn-system/sharemanagers"
    assert object_path(kind_of(ShareManager), ("longhorn-system", "v")) == f"{managers}/v"


def test_a_vms_pod_is_kept_with_what_makes_it_a_consumer(server: ApiServer) -> None:
    cache = Cache(server, Pod)
    cache.follow(stream(event("ADDED", virt_launcher("vm1", node="node-a"))))
    assert [found.name for found in cache.store.mounting_pods("default", "disk1")] == ["vm1"]
