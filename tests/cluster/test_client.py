"""Tests of ClusterClient: lists, watches, reads, writes, credentials, timeouts and error messages."""

import json
import re
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import msgspec
import pytest
import urllib3
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey as PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from msgspec.structs import replace

from tests.support.authority import issue_ca, issue_leaf
from tests.support.builders import claim
from tests.support.fake_api_server import (
    CUT,
    ApiServer,
    body,
    error_response,
    event,
    no_response,
    status,
    stream,
)
from webhook.cluster.client import MAX_PAGE_BYTES, RETRY_AFTER, TRIES, ClusterClient
from webhook.cluster.credentials import Api, ClusterError, pod_api

CLAIMS = "/api/v1/persistentvolumeclaims"
CLAIM = "/api/v1/namespaces/default/persistentvolumeclaims/disk1"
NODES = "/api/v1/nodes"
SHORT_TIMEOUT = 0.2  # seconds; for tests where the server never completes its response
LONG_TIMEOUT = 20.0  # seconds; many times what a responding server needs
TOKEN = "not-a-real-token"


@pytest.fixture
def cluster(server: ApiServer) -> ClusterClient:
    return client_for(server.url)


def client_for(url: str, silence: float = LONG_TIMEOUT) -> ClusterClient:
    return ClusterClient(Api(url), silence=silence)


def list_pages(cluster: ClusterClient, path: str, **query: str) -> list[list[str]]:
    return [
        [msgspec.json.decode(item)["metadata"]["name"] for item in items] for _, items in cluster.pages(path, **query)
    ]


def watch_events(cluster: ClusterClient, version: str, path: str = CLAIMS) -> Iterator[tuple[str, Any]]:
    for kind, item in cluster.watch(path, version, 60):
        yield kind, msgspec.json.decode(item)


def error_from(call: Any, *arguments: Any) -> ClusterError:
    with pytest.raises(ClusterError) as caught:
        list(call(*arguments) or ())
    return caught.value


# Lists


def test_the_pages_of_a_list_grow_to_500_small_objects(server: ApiServer, cluster: ClusterClient) -> None:
    server.put(*(claim(f"disk{number}") for number in range(1201)))
    pages = list_pages(cluster, CLAIMS)
    assert [len(page) for page in pages] == [100, 400, 500, 201]
    assert [name for page in pages for name in page] == [f"disk{number}" for number in range(1201)]
    queries = [request.query for request in server.requests]
    assert ["continue" in query for query in queries] == [False, True, True, True]


def test_the_pages_of_large_objects_are_small(server: ApiServer, cluster: ClusterClient) -> None:
    """100 pods of 2.8 MB were one response of 280 MB."""
    note = "x" * 1_000_000
    for number in range(40):
        server.put(claim(f"disk{number}") | {"note": note if number > 20 else ""})
    pages = list_pages(cluster, CLAIMS)
    assert [name for page in pages for name in page] == [f"disk{number}" for number in range(40)]
    assert [int(request.query["limit"]) for request in server.requests][:2] == [100, 12]  # the first was too large
    assert max(map(len, pages[2:])) <= MAX_PAGE_BYTES // len(note)


@pytest.mark.parametrize(("refusals", "works"), [(TRIES - 1, True), (TRIES, False)])
def test_a_list_or_watch_is_tried_again_while_the_api_server_is_overloaded(
    server: ApiServer, cluster: ClusterClient, refusals: int, *, works: bool
) -> None:
    first, last = (
        body({"metadata": {"resourceVersion": "7", "continue": more}, "items": [claim(name)]})
        for more, name in (("more", "disk1"), ("", "disk2"))
    )
    busy = [error_response(status(429, "too many requests"))] * refusals
    server.script("list", "persistentvolumeclaims", first, *busy, last)
    patient = replace(cluster, sleep=(waits := list[float]()).append)
    if works:
        assert list_pages(patient, CLAIMS) == [["disk1"], ["disk2"]]
    else:
        assert error_from(patient.pages, CLAIMS).code == 429
    assert waits == [RETRY_AFTER] * (TRIES - 1)
    assert {request.query.get("continue") for request in server.requests[1:]} == {"more"}
    server.script("watch", "persistentvolumeclaims", *busy[:1], stream())
    assert list(watch_events(patient, "7")) == []
    assert waits == [RETRY_AFTER] * TRIES


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"<html>502 Bad Gateway</html>", id="HTML page"),
        pytest.param(b"", id="empty body"),
        pytest.param(b"[]", id="JSON array"),
        pytest.param(b'{"metadata":{"resourceVersion":7},"items":[]}', id="numeric resourceVersion"),
        pytest.param(b'{"metadata":{"resourceVersion":"7"},"items":{}}', id="items is not an array"),
        pytest.param(b'{"items":[' + b"[" * 100_000, id="nested too deeply"),
        pytest.param(b'{"metadata":{"resourceVersion":"\xff"}}', id="invalid UTF-8"),
    ],
)
def test_a_malformed_list_raises_an_error_with_code_0(
    server: ApiServer, cluster: ClusterClient, content: bytes
) -> None:
    server.script("list", "persistentvolumeclaims", body(content))
    error = error_from(cluster.pages, CLAIMS)
    assert (error.code, str(error)) == (0, "unexpected response: not a Kubernetes object")


def test_an_error_response_without_a_message_raises_the_request_and_the_http_reason_phrase(
    server: ApiServer, cluster: ClusterClient
) -> None:
    server.script("list", "nodes", body(b"upstream connect error", 503))
    error = error_from(cluster.pages, NODES)
    assert (error.code, str(error)) == (503, f"GET {NODES}: Service Unavailable")


# Watches


def test_a_watch_starts_at_a_resource_version_and_requests_bookmarks(server: ApiServer, cluster: ClusterClient) -> None:
    server.put(claim("before"))
    version = server.version
    server.put(claim("one"), claim("two"), claim("one", volume="bound"))
    server.delete(claim("two"))
    watch = watch_events(cluster, version)
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


def test_a_watch_that_the_server_ends_returns_its_connection_to_the_pool(
    server: ApiServer, cluster: ClusterClient
) -> None:
    server.script("watch", "persistentvolumeclaims", stream(), stream())
    assert [[*watch_events(cluster, "1")] for _ in range(2)] == [[], []]
    assert server.http.accepted == 1


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        pytest.param(stream(event("ADDED", claim()), end=CUT), "was interrupted", id="connection cut"),
        pytest.param(stream(event("ADDED", claim()), b"garbage"), "unexpected response", id="not JSON"),
        pytest.param(stream(event("ADDED", claim()), b"{}"), "unexpected response", id="not a watch event"),
        pytest.param(
            stream(event("ADDED", claim()), b'{"type":"\xff","object":{}}'),
            "unexpected response",
            id="invalid UTF-8",
        ),
        pytest.param(
            stream(event("ADDED", claim()), event("ERROR", {})), "the watch failed", id="ERROR event without a message"
        ),
    ],
)
def test_a_failing_watch_delivers_earlier_events_before_it_raises(
    server: ApiServer, cluster: ClusterClient, answer: Any, message: str
) -> None:
    server.script("watch", "persistentvolumeclaims", answer)
    watch = watch_events(cluster, "1")
    assert next(watch)[0] == "ADDED"
    with pytest.raises(ClusterError, match=message):
        next(watch)


# Timeouts and connection errors


@pytest.mark.parametrize("answer", [no_response, stream(b"{", end=None)], ids=["no response", "half a response"])
def test_a_read_without_a_complete_response_times_out(server: ApiServer, cluster: ClusterClient, answer: Any) -> None:
    server.script("get", "persistentvolumeclaims", answer)
    with pytest.raises(ClusterError) as caught:
        cluster.get(CLAIM, SHORT_TIMEOUT)
    assert caught.value.code == 0


def test_a_truncated_response_raises_an_error(server: ApiServer, cluster: ClusterClient) -> None:
    def send_truncated_body(connection: Any) -> None:
        body(b'{"items":[]}', **{"Content-Length": "99"})(connection)
        connection.end(cut=True)

    server.script("list", "persistentvolumeclaims", send_truncated_body, lambda connection: connection.end(cut=True))
    assert (
        str(error_from(cluster.pages, CLAIMS))
        == f"GET {CLAIMS}: the response was interrupted: the connection was closed"
    )
    assert str(error_from(cluster.pages, CLAIMS)) == f"GET {server.url}{CLAIMS}: the connection was closed"


def test_a_connection_error_names_the_request_the_server_and_the_cause_but_no_token() -> None:
    with ApiServer() as server:
        url = server.url
    error = error_from(client_for(url).pages, CLAIMS)
    assert (error.code, str(error)) == (0, f"GET {url}{CLAIMS}: Connection refused")
    hidden = client_for(url.replace("//", "//user:s3cret@"))
    assert str(error_from(hidden.pages, CLAIMS)) == f"GET {url}{CLAIMS}: Connection refused"
    two_lines = ClusterClient(Api(url, authorization=lambda: "Bearer s3cret\ns3cret"))
    assert str(error_from(two_lines.pages, CLAIMS)) == f"GET {url}{CLAIMS}: the request is invalid"


def test_a_tls_error_has_its_cause_in_words(server: ApiServer) -> None:
    """OpenSSL's own message begins with [SSL: WRONG_VERSION_NUMBER] and ends with (_ssl.c:1006)."""
    url = server.url.replace("http:", "https:")
    problem = str(error_from(client_for(url).pages, CLAIMS)).removeprefix(f"GET {url}{CLAIMS}: ")
    assert re.fullmatch(r"TLS failed: [a-z0-9 ]+", problem), problem


# Reads


def test_requests_reuse_one_connection_without_compression_and_a_missing_object_or_crd_is_none(
    server: ApiServer, cluster: ClusterClient
) -> None:
    """Compression costs client and server more than it saves on a cluster network."""
    server.missing.add("sharemanagers")
    for _ in range(20):
        assert cluster.get(CLAIM) is None
        assert cluster.get("/apis/longhorn.io/v1beta2/namespaces/longhorn-system/sharemanagers/vol-disk1") is None
        assert list_pages(cluster, NODES) == [[]]
    assert server.http.accepted == 1
    accepted = {(each.headers["accept-encoding"], each.headers["accept"]) for each in server.requests}
    assert accepted == {("identity", "application/json")}


# Credentials


def test_a_pod_reads_its_token_for_each_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kubelet replaces the token after 80 % of its life."""
    ca, token = issue_ca(datetime.now(UTC)), tmp_path / "token"
    leaf = issue_leaf(ca, ["127.0.0.1"], datetime.now(UTC))
    (tmp_path / "ca.crt").write_bytes(ca.certificate)
    (tmp_path / "tls.pem").write_bytes(leaf.certificate + leaf.key)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "tls.pem")
    token.write_text("first\n")
    with ApiServer(tls) as server:
        with pytest.raises(ClusterError, match="certificate verify failed: "):
            list_pages(client_for(server.url), NODES)
        found = yaml.safe_load(Path(file := server.kubeconfig(tmp_path)).read_text())
        found["clusters"][0]["cluster"]["insecure-skip-tls-verify"] = True
        Path(file).write_text(yaml.safe_dump(found))
        assert list_pages(ClusterClient.connect(file), NODES) == [[]]  # without a warning, as kubectl
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", server.url.rpartition(":")[2])
        api = pod_api("no kubeconfig", tmp_path)
        assert list_pages(ClusterClient(api), NODES) == [[]]
        assert server.last("list", "nodes").headers["authorization"] == "Bearer first"
    token.write_text("second\n")
    assert api.authorization() == "Bearer second\n"
    token.unlink()
    assert str(error_from(ClusterClient(api).pages, NODES)) == f"GET {api.url}{NODES}: No such file or directory"
    (tmp_path / "ca.crt").unlink()
    with pytest.raises(ClusterError, match=r"no cluster credentials: no kubeconfig: .*No such file"):
        pod_api("no kubeconfig", tmp_path)


def _sign_old(name: str, key: PrivateKey, issuer: tuple[str, PrivateKey] | None = None) -> bytes:
    """Return a certificate as old cluster installers made them: a CA has basic constraints only, a leaf a name only."""
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, one)]) for one in (issuer[0] if issuer else name, name)]
    now, serial = datetime.now(UTC), x509.random_serial_number()
    builder = x509.CertificateBuilder(*names, key.public_key(), serial, now - timedelta(1), now + timedelta(1))
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    extension = address if issuer else x509.BasicConstraints(ca=True, path_length=None)
    signed = builder.add_extension(extension, critical=False).sign(issuer[1] if issuer else key, SHA256())
    return signed.public_bytes(Encoding.PEM)


def test_a_cluster_ca_without_key_usage_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.13 and newer refuse it by default, kubelet and kubectl don't; `make test-image` runs this on 3.13."""
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "ca.crt").write_bytes(_sign_old("kubernetes", ca_key))
    (tmp_path / "tls.pem").write_bytes(_sign_old("kube-apiserver", key, ("kubernetes", ca_key)) + pem)
    (tmp_path / "token").write_text("token")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "tls.pem")
    with ApiServer(tls) as server:
        config = yaml.safe_load(Path(file := server.kubeconfig(tmp_path)).read_text())
        config["clusters"][0]["cluster"]["certificate-authority"] = str(tmp_path / "ca.crt")
        Path(file).write_text(yaml.safe_dump(config))
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", server.url.rpartition(":")[2])
        for cluster in ClusterClient.connect(file), ClusterClient(pod_api("no kubeconfig", tmp_path)):
            assert list_pages(cluster, NODES) == [[]]
            assert not cluster.api.pool.connection_pool_kw["ssl_context"].verify_flags & ssl.VERIFY_X509_STRICT


def test_a_token_file_is_read_for_each_request(server: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old")
    cluster = ClusterClient.connect(server.kubeconfig(tmp_path, tokenFile="token"))
    for token in "first", "second":
        (tmp_path / "token").write_text(f"{token}\n")
        assert list_pages(cluster, NODES) == [[]]
        assert server.last("list", "nodes").headers["authorization"] == f"Bearer {token}"


def test_a_failed_credential_program_is_an_error(server: ApiServer, tmp_path: Path) -> None:
    program = {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh"}
    credential = {**program, "kind": "ExecCredential", "status": {"token": "fresh"}}
    for script, token in ((f"echo '{json.dumps(credential)}'", "fresh"), ("exit 3", ""), ("exit 3", "stored")):
        stored = {"token": token} if token == "stored" else {}
        file = server.kubeconfig(tmp_path, exec={**program, "args": ["-c", script]}, **stored)
        if token:
            assert list_pages(ClusterClient.connect(file), NODES) == [[]]
            assert server.last("list", "nodes").headers["authorization"] == f"Bearer {token}"
        else:
            with pytest.raises(ClusterError, match=rf"kubeconfig {file}: sh failed \(see above\)$"):
                ClusterClient.connect(file)


def test_connect_uses_the_kubeconfig_environment_variable(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", f"/nowhere:{server.kubeconfig(tmp_path)}")
    assert list_pages(ClusterClient.connect(), NODES) == [[]]
    assert list_pages(ClusterClient.connect(context="x"), NODES) == [[]]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("file", ["/nowhere", pytest.param("x" * 300, id="not even a file name")])
def test_missing_credentials_raise_an_error_that_names_the_searched_places(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], file: str
) -> None:
    monkeypatch.setenv("KUBECONFIG", file)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ClusterError) as caught:
        ClusterClient.connect()
    assert str(caught.value) == f"no cluster credentials: no kubeconfig {file}, and not running in a pod"
    assert capfd.readouterr() == ("", "")  # only the command writes to standard output


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param("", "Invalid kube-config.", id="empty"),
        pytest.param("{", "cannot read the file: invalid YAML in line 1", id="invalid YAML"),
        pytest.param("- 1", "cannot read the file: not a kubeconfig", id="top-level list"),
        pytest.param("kind: Config", "Expected key current-context", id="no current context"),
        pytest.param("\xff\xfe", "cannot read the file", id="binary"),
        pytest.param("[" * 500, "cannot read the file: not a kubeconfig", id="nested too deeply"),
    ],
)
def test_a_broken_kubeconfig_raises_an_error_with_its_path(tmp_path: Path, content: str, problem: str) -> None:
    file = tmp_path / "kubeconfig"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(ClusterError) as caught:
        ClusterClient.connect(str(file))
    assert str(caught.value).startswith(f"no cluster credentials: kubeconfig {file}: {problem}")


@pytest.mark.parametrize(
    ("current", "context", "namespace"),
    [
        pytest.param(("shop",), None, "shop", id="the current context"),
        pytest.param(("shop",), "bare", "default", id="a named context, which has no namespace"),
        pytest.param(("shop", "lab"), None, "shop", id="the first file's current context"),
        pytest.param(("", "lab"), None, "lab", id="the first current context that is set"),
        pytest.param(("", ""), "lab", "lab", id="a named context without a current one"),
    ],
)
def test_the_context_and_its_namespace_are_those_of_kubectl(
    server: ApiServer, tmp_path: Path, current: tuple[str, ...], context: str | None, namespace: str
) -> None:
    found, files = yaml.safe_load(Path(server.kubeconfig(tmp_path)).read_text()), list[str]()
    own = {"cluster": "c", "user": "u"}
    bare = {"name": "bare", "context": own}
    for name, selected in zip(("shop", "lab"), current, strict=False):
        contexts = [{"name": name, "context": own | {"namespace": name}}, bare]
        (file := tmp_path / name).write_text(
            yaml.safe_dump(found | {"contexts": contexts, "current-context": selected})
        )
        files.append(str(file))
    assert ClusterClient.connect(":".join(files), context).namespace == namespace


def test_a_kubeconfig_may_name_a_proxy_with_a_password(server: ApiServer, tmp_path: Path) -> None:
    file = Path(server.kubeconfig(tmp_path))
    found, address = yaml.safe_load(file.read_text()), server.url.removeprefix("http://")
    own = found["clusters"][0]["cluster"]
    own |= {"server": "http://cluster.example", "proxy-url": f"http://user:p%40ss@{address}"}
    file.write_text(yaml.safe_dump(found))
    assert list_pages(ClusterClient.connect(str(file)), NODES) == [[]]
    expected = urllib3.make_headers(proxy_basic_auth="user:p@ss")["proxy-authorization"]
    assert server.last("list", "nodes").headers["proxy-authorization"] == expected
    own["proxy-url"] = f"socks5://{address}"
    file.write_text(yaml.safe_dump(found))
    with pytest.raises(ClusterError, match=f"kubeconfig {file}: a SOCKS proxy requires the Python package PySocks$"):
        ClusterClient.connect(str(file))


def test_the_error_for_a_broken_kubeconfig_does_not_contain_its_token(tmp_path: Path) -> None:
    """The Kubernetes client quotes the broken entry, token included, in its error."""
    file = tmp_path / "kubeconfig"
    file.write_text(
        "{current-context: x, contexts: [{name: x, context: {cluster: c, user: u}}],"
        f" clusters: [{{name: c, cluster: {{}}}}], users: [{{name: u, users: {{token: {TOKEN}}}}}]}}"
    )
    with pytest.raises(ClusterError) as caught:
        ClusterClient.connect(str(file))
    assert TOKEN not in str(caught.value)


def test_the_error_for_an_invalid_token_does_not_contain_it(server: ApiServer, tmp_path: Path) -> None:
    cluster = ClusterClient.connect(server.kubeconfig(tmp_path, token=f"{TOKEN}\nmore"))
    assert str(error_from(cluster.pages, NODES)) == f"GET {server.url}{NODES}: the request is invalid"
