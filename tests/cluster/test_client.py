"""The API server is listed, watched, read and written to, and whatever it does ends in time and in words."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from kubernetes.client import Configuration
from kubernetes.config.incluster_config import InClusterConfigLoader

from certs.authority import issue_ca, issue_leaf
from tests.support.builders import claim, node, share_manager
from tests.support.fake_api_server import (
    CUT,
    ApiServer,
    body,
    bookmark,
    dribble,
    event,
    expired,
    forbidden,
    key_of,
    refusal,
    silence,
    stream,
)
from webhook.cluster.client import LIST_TIMEOUT, SILENCE, ClusterClient, ClusterError
from webhook.cluster.wire import LONGEST_LINE, lines

CLAIMS = "/api/v1/persistentvolumeclaims"
CLAIM = "/api/v1/namespaces/default/persistentvolumeclaims/disk1"
NODES = "/api/v1/nodes"
SOON = 0.2  # seconds: what a server that says nothing may cost a test
IN_TIME = 20.0  # seconds, many times what a server takes that answers
TOKEN = "not-a-real-token"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        yield server


@pytest.fixture
def cluster(server: ApiServer) -> ClusterClient:
    return at(server.url)


@pytest.fixture
def impatient(server: ApiServer) -> ClusterClient:
    """One to which nothing is said in time."""
    return at(server.url, SOON)


def at(url: str, silence: float = IN_TIME) -> ClusterClient:
    return ClusterClient(lambda: Configuration(host=url), silence=silence)


def listed(cluster: ClusterClient, path: str, **query: str) -> list[list[str]]:
    return [
        [msgspec.json.decode(item)["metadata"]["name"] for item in items] for _, items in cluster.pages(path, **query)
    ]


def watched(cluster: ClusterClient, version: str, path: str = CLAIMS) -> Iterator[tuple[str, Any]]:
    for kind, item in cluster.watch(path, version, 60):
        yield kind, msgspec.json.decode(item)


def refused(what: Any, *arguments: Any) -> ClusterError:
    with pytest.raises(ClusterError) as caught:
        list(what(*arguments) or ())
    return caught.value


# Lists


def test_a_list_comes_in_pages_of_500(server: ApiServer, cluster: ClusterClient) -> None:
    server.put(*(claim(f"disk{number}") for number in range(1201)))
    pages = listed(cluster, CLAIMS)
    assert [len(page) for page in pages] == [500, 500, 201]
    assert [name for page in pages for name in page] == [f"disk{number}" for number in range(1201)]
    queries = [asked.query for asked in server.asked]
    assert [query["limit"] for query in queries] == ["500"] * 3
    assert ["continue" in query for query in queries] == [False, True, True]


def test_a_list_is_of_one_moment_whatever_happens_between_its_pages(server: ApiServer, cluster: ClusterClient) -> None:
    server.put(*(claim(f"disk{number}") for number in range(501)))
    pages = cluster.pages(CLAIMS)
    version, _ = next(pages)
    server.put(claim("later"))
    assert [(found, len(items)) for found, items in pages] == [(version, 1)]


def test_an_empty_list_is_one_page(cluster: ClusterClient) -> None:
    assert listed(cluster, CLAIMS) == [[]]


def test_a_list_whose_continuation_has_expired_is_refused_as_gone(server: ApiServer, cluster: ClusterClient) -> None:
    server.put(*(claim(f"disk{number}") for number in range(501)))
    pages = cluster.pages(CLAIMS)
    next(pages)
    server.compact()
    assert refused(lambda: pages).code == 410


def test_a_query_goes_with_every_page(server: ApiServer, cluster: ClusterClient) -> None:
    server.put(*(claim(f"disk{number}") for number in range(501)))
    listed(cluster, CLAIMS, fieldSelector="status.phase!=Succeeded")
    assert [asked.query["fieldSelector"] for asked in server.asked] == ["status.phase!=Succeeded"] * 2


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"<html>502 Bad Gateway</html>", id="HTML"),
        pytest.param(b"", id="nothing"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b'{"metadata":{"resourceVersion":7},"items":[]}', id="a version of another type"),
        pytest.param(b'{"metadata":{"resourceVersion":"7"},"items":{}}', id="items of another type"),
        pytest.param(b'{"items":[' + b"[" * 100_000, id="too deep"),
        pytest.param(b'{"metadata":{"resourceVersion":"\xff"}}', id="invalid UTF-8"),
    ],
)
def test_garbage_for_a_list_is_said_to_be_garbage(server: ApiServer, cluster: ClusterClient, content: bytes) -> None:
    server.script("list", "persistentvolumeclaims", body(content))
    error = refused(cluster.pages, CLAIMS)
    assert (error.code, str(error)) == (0, "the answer is not what an API server sends")


def test_a_refusal_is_told_in_the_api_servers_own_words(server: ApiServer, cluster: ClusterClient) -> None:
    server.forbidden.add(("list", "nodes"))
    error = refused(cluster.pages, NODES)
    assert (error.code, str(error)) == (403, forbidden("list", "nodes")["message"])
    assert "system:serviceaccount:kubevirt-scheduler:kubevirt-scheduler" in str(error)


def test_a_refusal_without_words_is_told_by_its_status(server: ApiServer, cluster: ClusterClient) -> None:
    server.script("list", "nodes", body(b"upstream connect error", 503))
    error = refused(cluster.pages, NODES)
    assert (error.code, str(error)) == (503, "Service Unavailable")


# Watches


def test_a_watch_goes_on_from_a_version_and_asks_for_bookmarks(server: ApiServer, cluster: ClusterClient) -> None:
    server.put(claim("before"))
    version = server.version
    server.put(claim("one"), claim("two"), claim("one", volume="bound"))
    server.delete(claim("two"))
    watch = watched(cluster, version)
    seen = [next(watch) for _ in range(4)]
    assert [(kind, item["metadata"]["name"]) for kind, item in seen] == [
        ("ADDED", "one"),
        ("ADDED", "two"),
        ("MODIFIED", "one"),
        ("DELETED", "two"),
    ]
    query = server.last("watch", "persistentvolumeclaims").query
    assert (query["allowWatchBookmarks"], query["timeoutSeconds"], query["resourceVersion"]) == ("true", "60", version)
    watch.close()


def test_an_event_is_there_as_soon_as_it_is_sent(server: ApiServer, cluster: ClusterClient) -> None:
    watch = watched(cluster, server.version)
    server.put(claim("one"))
    assert next(watch)[1]["metadata"]["name"] == "one"
    server.put(claim("two"))
    server.bookmark("PersistentVolumeClaim")
    assert [next(watch)[0] for _ in range(2)] == ["ADDED", "BOOKMARK"]
    watch.close()


def test_a_watch_that_the_server_ends_just_ends(server: ApiServer, cluster: ClusterClient) -> None:
    server.script("watch", "persistentvolumeclaims", stream(event("ADDED", claim())))
    assert [kind for kind, _ in watched(cluster, "1")] == ["ADDED"]


def test_a_watch_that_the_server_ends_gives_its_connection_back(server: ApiServer, cluster: ClusterClient) -> None:
    server.script("watch", "persistentvolumeclaims", stream(), stream())
    assert [[*watched(cluster, "1")] for _ in range(2)] == [[], []]
    assert server.accepted == 1


def test_events_that_arrive_in_pieces_are_whole(server: ApiServer, cluster: ClusterClient) -> None:
    line = event("ADDED", claim()) + b"\n" + event("DELETED", claim())
    pieces = [line[start : start + 7] for start in range(0, len(line), 7)]

    def answer(connection: Any) -> None:
        connection.begin()
        for piece in pieces:
            connection.chunk(piece)
        connection.end(cut=False)

    server.script("watch", "persistentvolumeclaims", answer)
    assert [kind for kind, _ in watched(cluster, "1")] == ["ADDED", "DELETED"]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(stream(event("ERROR", expired())), id="as an event"),
        pytest.param(refusal(expired()), id="as a status of HTTP"),
    ],
)
def test_a_version_that_is_too_old_is_refused_as_gone(server: ApiServer, cluster: ClusterClient, answer: Any) -> None:
    server.script("watch", "persistentvolumeclaims", answer)
    error = refused(watched, cluster, "1")
    assert (error.code, str(error)) == (410, expired()["message"])


def test_a_refused_watch_is_told_when_it_begins(server: ApiServer, cluster: ClusterClient) -> None:
    server.forbidden.add(("watch", "nodes"))
    with pytest.raises(ClusterError, match="cannot watch resource"):
        cluster.watch(NODES, "1", 60)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        pytest.param(stream(event("ADDED", claim()), end=CUT), "broke off", id="the connection breaks"),
        pytest.param(stream(event("ADDED", claim()), b"garbage"), "not what an API server sends", id="garbage"),
        pytest.param(stream(event("ADDED", claim()), b"{}"), "not what an API server sends", id="no event"),
        pytest.param(
            stream(event("ADDED", claim()), b'{"type":"\xff","object":{}}'),
            "not what an API server sends",
            id="invalid UTF-8",
        ),
        pytest.param(
            stream(event("ADDED", claim()), event("ERROR", {"code": None})),
            "not what an API server sends",
            id="an error that is none",
        ),
        pytest.param(
            stream(event("ADDED", claim()), event("ERROR", {})), "the watch failed", id="an error in no words"
        ),
    ],
)
def test_a_watch_that_goes_wrong_keeps_what_came_before(
    server: ApiServer, cluster: ClusterClient, answer: Any, message: str
) -> None:
    server.script("watch", "persistentvolumeclaims", answer)
    watch = watched(cluster, "1")
    assert next(watch)[0] == "ADDED"
    with pytest.raises(ClusterError, match=message):
        next(watch)


def begun(server: ApiServer, cluster: ClusterClient) -> Iterator[tuple[str, Any]]:
    """A watch that has shown one event and says nothing more, begun anew where a busy machine was late with that."""
    for _ in range(100):
        server.script("watch", "persistentvolumeclaims", stream(event("ADDED", claim()), end=None))
        watch = watched(cluster, "1")
        with suppress(ClusterError):
            assert next(watch)[0] == "ADDED"
            return watch
    raise AssertionError("in vain")


def test_a_watch_that_goes_silent_is_given_up(server: ApiServer, impatient: ClusterClient) -> None:
    watch = begun(server, impatient)
    with pytest.raises(ClusterError, match="broke off"):
        next(watch)


def test_a_line_that_does_not_end_is_not_waited_for() -> None:
    with pytest.raises(ValueError, match="does not end"):
        list(lines([b"x" * 1024] * (LONGEST_LINE // 1024 + 1)))


def test_lines_are_told_apart_wherever_the_parts_end() -> None:
    text = b"one\ntwo\n\nthree"
    for size in range(1, len(text) + 1):
        parts = [text[start : start + size] for start in range(0, len(text), size)]
        assert list(lines(parts)) == [b"one", b"two", b"three"]


def test_a_quiet_watch_is_given_more_time_than_the_first_bookmark_takes() -> None:
    """On a real API server of 1.36 it came after 59 to 120 s."""
    assert SILENCE > 120


# A server that does not answer


@pytest.mark.parametrize("answer", [silence, dribble])
def test_one_read_takes_no_longer_than_it_may(server: ApiServer, cluster: ClusterClient, answer: Any) -> None:
    server.script("get", "persistentvolumeclaims", answer)
    with pytest.raises(ClusterError) as caught:
        cluster.get(CLAIM, SOON)
    assert caught.value.code == 0


def test_a_watch_that_is_not_even_begun_is_given_up(server: ApiServer, impatient: ClusterClient) -> None:
    server.script("watch", "persistentvolumeclaims", silence)
    with pytest.raises(ClusterError, match="ReadTimeoutError"):
        impatient.watch(CLAIMS, "1", 60)


def test_an_answer_that_breaks_off_is_no_answer(server: ApiServer, cluster: ClusterClient) -> None:
    def half(connection: Any) -> None:
        body(b'{"items":[]}', **{"Content-Length": "99"})(connection)
        connection.end(cut=True)

    server.script("list", "persistentvolumeclaims", half, lambda connection: connection.end(cut=True))
    assert str(refused(cluster.pages, CLAIMS)) == f"GET {CLAIMS}: the answer broke off (ProtocolError)"
    assert str(refused(cluster.pages, CLAIMS)) == f"GET {CLAIMS}: ProtocolError"


def test_a_server_that_is_away_is_named_by_what_was_asked_of_it() -> None:
    with ApiServer() as server:
        url = server.url
    error = refused(at(url).pages, CLAIMS)
    assert (error.code, str(error)) == (0, f"GET {CLAIMS}: NewConnectionError")


def test_a_list_is_given_a_minute_for_each_page() -> None:
    assert LIST_TIMEOUT == 60


# One object


def test_one_object_is_read(server: ApiServer, cluster: ClusterClient) -> None:
    server.put(claim())
    found = cluster.get(CLAIM)
    assert found
    assert key_of(msgspec.json.decode(found)) == ("default", "disk1")


def test_an_object_that_is_not_there_is_none(server: ApiServer, cluster: ClusterClient) -> None:
    assert cluster.get(CLAIM) is None
    server.missing.add("sharemanagers")
    assert cluster.get("/apis/longhorn.io/v1beta2/namespaces/longhorn-system/sharemanagers/vol-disk1") is None


def test_an_object_that_must_not_be_read_is_an_error(server: ApiServer, cluster: ClusterClient) -> None:
    server.forbidden.add(("get", "persistentvolumeclaims"))
    with pytest.raises(ClusterError, match="cannot get resource"):
        cluster.get(CLAIM)


def test_connections_are_used_again(server: ApiServer, cluster: ClusterClient) -> None:
    server.put(node(), claim(), share_manager())
    for _ in range(20):
        cluster.get(CLAIM)
        listed(cluster, NODES)
    assert server.connections == 1


def test_no_compression_is_asked_for(server: ApiServer, cluster: ClusterClient) -> None:
    """It would cost both sides more than the network of a cluster saves."""
    listed(cluster, CLAIMS)
    assert server.asked[0].headers["accept-encoding"] == "identity"
    assert server.asked[0].headers["accept"] == "application/json"


# Who we are


def test_a_token_file_of_a_kubeconfig_is_read_again_when_its_token_is_not_taken_any_more(
    server: ApiServer, tmp_path: Path
) -> None:
    """The client itself reads it once and never again (kubernetes 37.0.2)."""
    file = tmp_path / "token"
    file.write_text("first\n")
    server.tokens = {"first"}
    cluster = ClusterClient.connect(server.kubeconfig(tmp_path, tokenFile=str(file)))
    assert listed(cluster, NODES) == [[]]
    file.write_text("second\n")
    server.tokens = {"second"}
    assert listed(cluster, NODES) == [[]]
    assert [asked.headers["authorization"] for asked in server.asked] == [
        f"Bearer {x}" for x in ("first", "first", "second")
    ]


def test_a_token_that_is_not_taken_when_read_again_is_an_error(server: ApiServer, tmp_path: Path) -> None:
    server.tokens = {"another"}
    error = refused(ClusterClient.connect(server.kubeconfig(tmp_path, token=TOKEN)).pages, NODES)
    assert (error.code, str(error)) == (401, "Unauthorized")
    assert server.count("list", "nodes") == 2


def test_threads_whose_token_has_expired_together_read_it_again_once(server: ApiServer) -> None:
    loads: list[str] = []

    def load() -> Configuration:
        loads.append(f"token-{len(loads)}")
        return Configuration(host=server.url, api_key={"BearerToken": f"Bearer {loads[-1]}"})

    cluster, together = ClusterClient(load), threading.Barrier(4)
    server.tokens = {"token-1"}

    def refuse(connection: Any) -> None:
        together.wait(20)  # none is refused before all have asked
        connection.answer(401, {})

    server.script("list", "nodes", *[refuse] * 4)
    threads = [threading.Thread(target=listed, args=(cluster, NODES)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loads == ["token-0", "token-1"]
    assert server.count("list", "nodes") == 8


def in_pod(folder: Path, server: ApiServer) -> InClusterConfigLoader:
    """The credentials of a pod; the client looks for them at a fixed place, this at ours."""
    port = server.url.rpartition(":")[2]
    environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port}
    return InClusterConfigLoader(folder / "token", folder / "ca.crt", environ=environment)


def test_a_service_accounts_token_is_read_again(tmp_path: Path) -> None:
    """By the client itself once a minute, and by us when it is not taken any more."""
    ca = issue_ca(datetime.now(UTC))
    leaf = issue_leaf(ca, ["127.0.0.1"], datetime.now(UTC))
    (tmp_path / "ca.crt").write_bytes(ca.certificate)
    (tmp_path / "tls.pem").write_bytes(leaf.certificate + leaf.key)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "tls.pem")
    with ApiServer(tls) as server:
        server.tokens = {"first"}
        (tmp_path / "token").write_text("first")
        loaders: list[InClusterConfigLoader] = []

        def load() -> Configuration:
            configuration = Configuration()
            loaders.append(in_pod(tmp_path, server))
            loaders[-1].load_and_set(configuration)
            return configuration

        cluster = ClusterClient(load)
        assert listed(cluster, NODES) == [[]]
        (tmp_path / "token").write_text("second")
        assert listed(cluster, NODES) == [[]]
        assert server.last("list", "nodes").headers["authorization"] == "bearer first"
        loaders[0].token_expires_at = datetime.now()  # noqa: DTZ005 (as the client writes it: a minute has passed)
        server.tokens = {"second"}
        assert listed(cluster, NODES) == [[]]
        assert len(loaders) == 1
        (tmp_path / "token").write_text("third")
        server.tokens = {"third"}
        assert listed(cluster, NODES) == [[]]
        assert len(loaders) == 2
        (tmp_path / "token").unlink()
        loaders[1].token_expires_at = datetime.now()  # noqa: DTZ005 (the same)
        assert str(refused(cluster.pages, NODES)) == f"GET {NODES}: FileNotFoundError"
        (tmp_path / "token").write_text("")
        assert str(refused(cluster.pages, NODES)) == f"GET {NODES}: ConfigException"


def test_a_server_that_is_not_trusted_is_told_to_be_that(tmp_path: Path) -> None:
    issued = issue_leaf(issue_ca(datetime.now(UTC)), ["127.0.0.1"], datetime.now(UTC))
    (tmp_path / "tls.pem").write_bytes(issued.certificate + issued.key)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "tls.pem")
    with ApiServer(tls) as server, pytest.raises(ClusterError, match="CERTIFICATE_VERIFY_FAILED"):
        listed(at(server.url), NODES)


def test_the_usual_kubeconfig_is_found(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", f"/nowhere:{server.kubeconfig(tmp_path)}")
    assert listed(ClusterClient.connect(), NODES) == [[]]
    assert listed(ClusterClient.connect(context="x"), NODES) == [[]]
    assert capfd.readouterr() == ("", "")


def test_without_any_credentials_it_is_said_where_they_were_looked_for(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ClusterError) as caught:
        ClusterClient.connect()
    assert str(caught.value) == (
        "no credentials for a cluster: no kubeconfig /nowhere, and no pod around us: Service host/port is not set."
    )
    assert capfd.readouterr() == ("", "")  # standard output belongs to the command


@pytest.mark.parametrize(
    ("content", "told"),
    [
        pytest.param("", "Invalid kube-config.", id="empty"),
        pytest.param("{", "it can't be read (ParserError)", id="no YAML"),
        pytest.param("- 1", "it can't be read (TypeError)", id="a list"),
        pytest.param("kind: Config", "Expected key current-context", id="without a context"),
        pytest.param("\xff\xfe", "it can't be read", id="binary"),
    ],
)
def test_a_broken_kubeconfig_is_named(tmp_path: Path, content: str, told: str) -> None:
    file = tmp_path / "kubeconfig"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(ClusterError) as caught:
        ClusterClient.connect(str(file))
    assert str(caught.value).startswith(f"no credentials for a cluster: kubeconfig {file}: {told}")


@pytest.mark.parametrize(
    ("context", "namespace"), [(None, "shop"), ("shop", "shop"), ("bare", "default")], ids=["current", "named", "bare"]
)
def test_the_namespace_that_is_meant_is_that_of_the_context(
    server: ApiServer, tmp_path: Path, context: str | None, namespace: str
) -> None:
    file = Path(server.kubeconfig(tmp_path))
    found = yaml.safe_load(file.read_text())
    own = {"cluster": "c", "user": "u"}
    found["contexts"] = [{"name": "bare", "context": own}, {"name": "shop", "context": own | {"namespace": "shop"}}]
    file.write_text(yaml.safe_dump(found | {"current-context": "shop"}))
    assert ClusterClient.connect(str(file), context).namespace == namespace


def test_a_context_and_a_file_that_do_not_exist_are_named(server: ApiServer, tmp_path: Path) -> None:
    file = server.kubeconfig(tmp_path)
    with pytest.raises(ClusterError, match="name nope"):
        ClusterClient.connect(file, "nope")
    with pytest.raises(ClusterError, match="kubeconfig /nowhere: No configuration found"):
        ClusterClient.connect("/nowhere")


def test_a_broken_kubeconfig_is_not_quoted_where_it_holds_a_token(tmp_path: Path) -> None:
    """The client calls an entry by its content."""
    file = tmp_path / "kubeconfig"
    file.write_text(
        "{current-context: x, contexts: [{name: x, context: {cluster: c, user: u}}],"
        f" clusters: [{{name: c, cluster: {{}}}}], users: [{{name: u, users: {{token: {TOKEN}}}}}]}}"
    )
    with pytest.raises(ClusterError) as caught:
        ClusterClient.connect(str(file))
    assert TOKEN not in str(caught.value)


def test_what_goes_wrong_never_quotes_the_token(server: ApiServer, tmp_path: Path) -> None:
    cluster = ClusterClient.connect(server.kubeconfig(tmp_path, token=f"{TOKEN}\nmore"))
    assert str(refused(cluster.pages, NODES)) == f"GET {NODES}: ValueError"


# Writing


def test_a_write_is_sent_as_json_and_its_answer_read(server: ApiServer, cluster: ClusterClient) -> None:
    server.script("post", "events", body({"metadata": {"name": "made"}}, 201))
    made = cluster.send("POST", "/api/v1/namespaces/default/events", {"reason": "x"}, IN_TIME)
    assert made == {"metadata": {"name": "made"}}
    asked = server.last("post", "events")
    assert asked.headers["content-type"] == "application/json"


def test_a_patch_is_a_merge_patch(server: ApiServer, cluster: ClusterClient) -> None:
    server.script("patch", "events", body({}))
    cluster.send("PATCH", "/api/v1/namespaces/default/events/made", {"count": 2}, IN_TIME)
    assert server.last("patch", "events").headers["content-type"] == "application/merge-patch+json"


@pytest.mark.parametrize(
    ("answer", "limit", "code"),
    [
        pytest.param(refusal(forbidden("create", "events")), IN_TIME, 403, id="refused"),
        pytest.param(silence, SOON, 0, id="silent"),
        pytest.param(dribble, SOON, 0, id="slow"),
        pytest.param(body(b"garbage"), IN_TIME, 0, id="garbage"),
    ],
)
def test_a_write_that_fails_says_so_in_time(
    server: ApiServer, cluster: ClusterClient, answer: Any, limit: float, code: int
) -> None:
    server.script("post", "events", answer)
    with pytest.raises(ClusterError) as caught:
        cluster.send("POST", "/api/v1/namespaces/default/events", {}, limit)
    assert caught.value.code == code


def test_versions_count_up(server: ApiServer) -> None:
    """The fake is as the real one in this."""
    versions = []
    for number in range(3):
        server.put(claim(f"disk{number}"))
        versions.append(int(server.version))
    assert all(before < after for before, after in pairwise(versions))


def test_a_bookmark_of_pods_is_as_the_real_one_writes_it() -> None:
    """Seen on 1.36: `containers` is null, which no pod has."""
    assert b'"spec": {"containers": null}' in bookmark("Pod", "7")
