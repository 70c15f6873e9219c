"""The `serve` process: reviews over TLS, probes over plain HTTP, errors, new certificates, shutdown, and hangs."""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import warnings
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic

import jsonpatch
import pytest

from certs.authority import LIFETIME, read
from tests.support.authority import issue_ca, issue_leaf
from tests.support.fake_api_server import ApiServer
from tests.support.fake_certificate_cluster import CONFIGURATION, NAME, NAMES, NAMESPACE, configuration, secret
from tests.support.server_process import JSON, REVIEWS, TIMEOUT, VM_START, run_server, run_to_exit, until, write_cluster
from tests.support.tls_client import client_hello, closed_by_server, receive_all, write_certificate_files
from webhook.serving.worker.listeners import CannotListen, listen
from webhook.serving.worker.loop import QUIET_PERIOD

SECRET = "not-a-real-passphrase"
HEAD = b"POST /mutate?timeout=10s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server that logs everything."""
    with run_server(tmp_path_factory.mktemp("server"), CO_SCHEDULE_LOG_LEVEL="debug") as server:
        yield server


def post(connection, body=VM_START, headers=JSON, path="/mutate?timeout=10s"):
    """The status, headers and JSON of a response; the connection stays open."""
    connection.request("POST", path, body, headers)
    response = connection.getresponse()
    return response.status, response.headers, json.loads(response.read())


# A start


@pytest.mark.parametrize(("address", "signum"), [("127.0.0.1", signal.SIGTERM), ("::1", signal.SIGINT)])
def test_a_recorded_vm_is_pinned_over_verified_tls_logged_and_counted_until_a_signal(tmp_path, address, signum):
    with run_server(tmp_path, "--bind", address) as server:
        assert server.https[0] == address
        assert server.probe("/healthz") == (200, '{"status":"ok"}\n')
        status, page = server.probe("/readyz")
        assert (status, json.loads(page)["status"]) == (200, "ok")
        with server.connect_tcp(address) as sock:  # the generated certificate has this name, too
            server.client_context().wrap_socket(sock, server_hostname="localhost").close()
        response, sent = server.review(), json.loads(VM_START)["request"]
        after = jsonpatch.JsonPatch(json.loads(b64decode(response["patch"]))).apply(sent["object"])
        assert response["uid"] == sent["uid"]
        assert after["metadata"]["annotations"]["kubevirt-scheduler/co-scheduled-node"] == "node-a"
        counted = r'decisions_total{.*outcome="pinned",reason="CoScheduled",subject="vm"} 1.0\n'
        assert until(lambda: re.search(counted, server.probe("/metrics")[1]))  # the page is up to a second old
        assert server.probe("/mutate")[0] == 404
        server.process.send_signal(signum)
        assert server.process.wait(TIMEOUT) == 0
        assert server.process.stdout.read() == ""  # one line, which `run_server` has read
        [line] = [line for line in server.log_lines if line["event"] == "decided"]
        decided = {"uid": sent["uid"], "vm": "vm1", "reason": "CoScheduled", "node": "node-a"}
        assert decided.items() <= line.items()


# TLS


def tls_context(server, **attributes):
    """A client context with these attributes. It offers h2 and http/1.1 in ALPN."""
    context = server.client_context()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # TLS 1.1 is deprecated, and a test offers it
        for name, value in attributes.items():
            setattr(context, name, value)
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


def handshake(server, context, **options):
    """The version, cipher suite, ALPN protocol and session of a handshake, and whether it resumed a session."""
    with context.wrap_socket(server.connect_tcp(), server_hostname="127.0.0.1", **options) as sock:
        sock.sendall(HEAD + b"Connection: close\r\nContent-Length: 0\r\n\r\n")
        receive_all(sock)
        return sock.version(), sock.cipher()[0], sock.selected_alpn_protocol(), sock.session, sock.session_reused


TLS_1_1, TLS_1_2, TLS_1_3 = ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
ACCEPTED_SUITES = ["ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-ECDSA-CHACHA20-POLY1305"]
REJECTED = [
    (TLS_1_1, "ALL", "ALERT_PROTOCOL_VERSION"),
    *(
        (TLS_1_2, f"ECDHE-ECDSA-{suite}", "HANDSHAKE_FAILURE")
        for suite in ("AES128-SHA256", "AES256-SHA", "AES128-CCM")
    ),
    *((TLS_1_2, suite, "HANDSHAKE_FAILURE") for suite in ("AES128-GCM-SHA256", "NULL")),
]


@pytest.mark.parametrize("suite", [*ACCEPTED_SUITES, "TLS_AES_256_GCM_SHA384"])
def test_the_suites_with_forward_secrecy_and_authenticated_encryption_are_accepted_in_any_order(server, suite):
    version = TLS_1_3 if suite.startswith("TLS_") else TLS_1_2
    context = tls_context(server, maximum_version=version, minimum_version=version)
    context.set_ciphers(":".join([suite, *ACCEPTED_SUITES]))
    assert handshake(server, context)[:3] == (version.name.replace("_", "."), suite, "http/1.1")


@pytest.mark.parametrize(("version", "suite", "alert"), REJECTED)
def test_any_other_version_or_suite_is_rejected(server, version, suite, alert):
    context = tls_context(server, minimum_version=version, maximum_version=version)
    context.set_ciphers(f"{suite}:@SECLEVEL=0")  # otherwise the client itself would reject TLS 1.1
    with pytest.raises(ssl.SSLError, match=alert):
        handshake(server, context)


def test_the_server_issues_no_session_ticket(server):
    context = tls_context(server, minimum_version=ssl.TLSVersion.TLSv1_3)
    session = handshake(server, context)[3]
    assert not session.has_ticket
    assert handshake(server, context, session=session)[4] is False


# Invalid requests


def test_invalid_http_gets_a_json_error_and_neither_it_nor_the_debug_log_quotes_a_request(server):
    body, before = REVIEWS.joinpath("share-manager-avoiding-a-node.json").read_bytes(), len(server.log_lines)
    cut = body.index(SECRET.encode())
    for sent in (
        f"{SECRET} / HTTP/1.1\r\n\r\n".encode(),
        f"GET /{SECRET} HTTP/{SECRET}\r\n\r\n".encode(),
        f"GET / HTTP/1.1\r\n{SECRET}\r\n\r\n".encode(),
        HEAD + f"Content-Length: {SECRET}\r\n\r\n".encode(),
        HEAD + f"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n{SECRET}".encode(),
        SECRET.encode() + body,
    ):
        with server.connect_tls() as connection:
            connection.sendall(sent)
            head, _, content = receive_all(connection).decode().partition("\r\n\r\n")
        assert head.startswith("HTTP/1.1 400 ")
        assert "application/json" in head
        assert json.loads(content) == {"error": "malformed HTTP request"}
    for length in (len(body) + 1, cut):  # an incomplete body, and one that is invalid JSON
        with server.connect_tls() as connection:
            connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % length + body[: cut + len(SECRET)])
            connection.shutdown(socket.SHUT_WR)
            receive_all(connection)
    assert until(lambda: len(server.log_lines) > before)
    assert SECRET not in server.log


# The plain port


@pytest.mark.parametrize("head", ["Content-Length: 60000000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"])
def test_the_plain_port_rejects_a_body(server, head):
    with socket.create_connection(server.http, timeout=TIMEOUT) as sock:
        sock.sendall(f"POST /healthz HTTP/1.1\r\nHost: x\r\n{head}".encode())
        assert sock.recv(100).startswith(b"HTTP/1.1 413 ")


# Startup


def own_memory(pid):
    """The anonymous memory of a process in MB. Processes that share a page share its size."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss_Anon")) / 1000


def test_master_and_worker_share_the_memory_of_their_modules(tmp_path):
    """A collection in the worker wrote to each imported object, so 20 MB were there twice: 82 MB instead of 61."""
    with ApiServer() as api, run_server(tmp_path, "--kubeconfig", api.kubeconfig(tmp_path)) as server:
        assert server.review()["allowed"]
        assert own_memory(server.process.pid) + own_memory(server.worker_pid()) < 75


@pytest.mark.parametrize("closed", ["2>&-", "0<&- 2>&-"])
def test_a_server_whose_standard_error_is_closed_serves_and_gives_its_number_to_no_socket(tmp_path, closed):
    with run_server(tmp_path, launcher=["sh", "-c", f'exec "$@" {closed}', "sh"]) as server:
        assert server.review()["allowed"]
        assert Path(f"/proc/{server.process.pid}/fd/2").readlink() == Path(os.devnull)


@pytest.mark.parametrize("ahead", [21 * 86400, 5], ids=["by weeks", "by seconds"])
def test_a_replica_whose_clock_is_wrong_stays_ready_and_asks_again_for_a_new_claim(tmp_path, ahead):
    """By the API server's time, the call has just begun. So it is worth a retry that the caches lack the claim."""
    review = json.loads(VM_START)
    with ApiServer() as api:
        api.seconds_ahead = -ahead
        with (
            run_server(tmp_path, "--kubeconfig", api.kubeconfig(tmp_path)) as server,
            closing(server.connect()) as call,
        ):
            status, page = server.probe("/readyz?verbose")
            assert status == 200
            assert server.metric("clock_ahead_seconds") == pytest.approx(ahead, abs=60 if ahead > 60 else 3)
            for entry in review["request"]["object"]["metadata"]["managedFields"]:
                entry["time"] = (datetime.now(UTC) - timedelta(seconds=ahead)).isoformat()
            assert [post(call, json.dumps(review))[0] for _ in range(2)] == [503, 200]
    problem = json.loads(page)["problems"].get("clock", "")
    assert bool(problem) is (ahead > 60)
    assert problem.endswith(" s ahead of the API server's; synchronize the clocks of both nodes" if problem else "")


def test_a_replica_issues_its_certificate_by_the_clock_of_the_api_server(tmp_path):
    """API servers verify it by their own clocks."""
    with ApiServer() as api:
        api.put(secret(), configuration())
        api.seconds_ahead = -21 * 86400
        arguments = [f"--tls-secret={NAMESPACE}/{NAME}", f"--webhook-configuration={CONFIGURATION}"]
        with run_server(tmp_path, *arguments, f"--tls-name={NAMES[0]}", "--kubeconfig", api.kubeconfig(tmp_path)):
            until(lambda: "data" in api.stored("secrets", (NAMESPACE, NAME)))
            leaf = read(b64decode(api.stored("secrets", (NAMESPACE, NAME))["data"]["tls.crt"]))
    issued = datetime.now(UTC) - timedelta(days=21)
    assert abs(leaf.not_after - LIFETIME - issued) < timedelta(minutes=5)


def test_a_worker_that_replaces_a_crashed_one_reads_the_secret_before_it_accepts_connections(tmp_path):
    with ApiServer() as api:
        api.put(secret(), configuration())
        arguments = [f"--tls-secret={NAMESPACE}/{NAME}", f"--webhook-configuration={CONFIGURATION}"]
        names = ["--tls-name=127.0.0.1", f"--tls-name={NAMES[0]}"]
        with run_server(tmp_path, *arguments, *names, "--kubeconfig", api.kubeconfig(tmp_path)) as server:
            before, crashed = server.served_serial(), server.worker_pid()
            os.kill(crashed, signal.SIGKILL)
            assert until(lambda: server.worker_pid() != crashed)
            assert server.served_serial() == before


def test_a_server_that_does_not_start_prints_one_line(tmp_path):
    write_certificate_files(tmp_path / "tls")
    (tmp_path / "tls" / "tls.key").write_bytes(write_certificate_files(tmp_path / "other").key)
    (client_ca := tmp_path / "client-ca.crt").write_bytes(b"garbage")
    snapshot = ("--snapshot", write_cluster(tmp_path), "--https-port", 0)
    with socket.create_server(("127.0.0.1", 0)) as other_socket:
        port = other_socket.getsockname()[1]
        rows = [
            (f"cannot listen on 127.0.0.1:{port}: Address already in use", [*snapshot, "--http-port", port], {}),
            (
                f"{tmp_path}/tls/tls.key: does not match {tmp_path}/tls/tls.crt",
                [*snapshot, "--http-port", 0, "--tls-dir", tmp_path / "tls"],
                {},
            ),
            (
                "CO_SCHEDULE_AFFINITY_MODE='soft': expected 'required' or 'preferred'",
                snapshot,
                {"CO_SCHEDULE_AFFINITY_MODE": "soft"},
            ),
            (
                "--kubeconfig FILE, or --snapshot FILE",
                (),
                {"KUBECONFIG": str(tmp_path / "nowhere"), "KUBERNETES_SERVICE_HOST": ""},
            ),
            (f"{client_ca}: ", [*snapshot, "--http-port", 0, "--client-ca-file", client_ca], {}),
            ("'*' is neither a DNS name nor an IP address", [*snapshot, "--http-port", 0, "--bind", "*"], {}),
        ]
        with ThreadPoolExecutor() as pool:
            results = list(pool.map(lambda row: run_to_exit(*row[1], **row[2]), rows))
        for (sentence, *_), result in zip(rows, results, strict=True):
            (line,) = result.stderr.splitlines()
            assert (result.returncode, result.stdout, line.partition(":")[0]) == (2, "", "Error")
            assert sentence in line


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_auto_listens_on_both_families(family):
    with listen("auto", 0) as listener, socket.socket(family, socket.SOCK_STREAM) as client:
        client.connect(("127.0.0.1" if family == socket.AF_INET else "::1", listener.getsockname()[1]))


def test_auto_listens_on_ipv4_on_a_node_without_ipv6(monkeypatch):
    monkeypatch.setattr(socket, "has_ipv6", False)
    resolve = socket.getaddrinfo

    def without_ipv6(host, *arguments, **options):
        if host == "::":
            raise socket.gaierror(socket.EAI_ADDRFAMILY, "Address family for hostname not supported")
        return resolve(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", without_ipv6)
    with listen("auto", 0) as listener:
        assert listener.family == socket.AF_INET


@pytest.mark.parametrize("address", ["192.0.2.1", "no.such.host.invalid", "", "bücher..example", "x" * 300])
def test_an_address_that_cannot_be_bound_is_reported(address):
    with pytest.raises(CannotListen, match=f"^cannot listen on {address}:0: "):
        listen(address, 0)


# Shutdown


def stalled_clients(server, stack):
    """Connect clients that stall: two of them within their handshake, the others before, in and after a head."""
    silent, greeting = (stack.enter_context(server.connect_tcp()) for _ in range(2))
    greeting.sendall(client_hello(server.client_context())[:100])
    requesting = [stack.enter_context(server.connect_tls()) for _ in range(3)]
    for sock, sent in zip(requesting, (b"", HEAD, HEAD + b"Content-Length: 9\r\n\r\n{"), strict=True):
        sock.sendall(sent)
    return [silent, greeting, *requesting]


def test_a_draining_server_is_unready_serves_open_connections_and_waits_for_no_stalled_client(tmp_path):
    # The server may exit after one second (QUIET_PERIOD) without a request. A slow test may miss it, so try again.
    assert until(lambda: serves_while_draining(tmp_path))


def serves_while_draining(folder):
    """Terminate a server and send another review. False if the server exited before, because the machine stalled."""
    with run_server(folder) as server, ExitStack() as stack:
        stalled = stalled_clients(server, stack)
        connection = stack.enter_context(closing(server.connect()))
        assert post(connection)[0] == 200
        until(lambda: server.metric("connections") >= 4)  # the two without a whole hello may have timed out
        terminated = monotonic()
        server.process.terminate()
        try:
            assert until(lambda: server.probe("/readyz")[0] == 503)
            status, headers, _ = post(connection)
        except (OSError, http.client.HTTPException):
            assert monotonic() - terminated > QUIET_PERIOD, "the server exited too early"
            return False
        assert (status, headers["Connection"]) == (200, "close")
        assert server.process.wait(TIMEOUT) == 0
        assert monotonic() - terminated < 10  # seconds, the timeout of an incomplete request
        for sock in stalled:
            sock.setblocking(False)
            assert closed_by_server(sock)
    return True


def test_a_stopped_worker_is_replaced_without_a_second_ready_line(tmp_path):
    with run_server(tmp_path) as server:
        for signum in (signal.SIGKILL, signal.SIGTERM, signal.SIGQUIT):
            stopped = {server.worker_pid()}
            os.kill(*stopped, signum)
            assert until(lambda stopped=stopped: server.worker_pid() not in stopped)
            assert until(lambda: try_review(server))
        assert server.probe("/healthz")[0] == 200
        assert server.stop() == 0
        assert server.process.stdout.read() == ""


def test_a_crash_prints_the_frames_and_fails_the_test_that_ran_the_server(tmp_path):
    """Three segmentation faults in an afternoon of tests failed none: gunicorn starts another worker."""
    with pytest.raises(AssertionError, match="was sent SIGSEGV"):
        run_server_that_crashes(tmp_path)
    log = (tmp_path / "log").read_text()
    assert "Fatal Python error: Segmentation fault" in log
    assert "in run_once" in log


def run_server_that_crashes(folder):
    with run_server(folder) as server:
        assert server.review()  # the thread that announces it has ended: a dump of one that ends is truncated
        os.kill(server.worker_pid(), signal.SIGSEGV)
        assert until(lambda: "was sent SIGSEGV" in server.log)


def try_review(server):
    try:
        return server.review()
    except (OSError, http.client.HTTPException):
        return None


# Certificate changes


def swap_certificate(folder, ca, number):
    """Replace certificate and key as the kubelet does: with one rename of a symbolic link."""
    write_certificate_files(folder / f"..{number}", ca)
    (folder / "..next").symlink_to(f"..{number}")
    (folder / "..next").rename(folder / "..data")


@pytest.fixture(scope="module")
def mounted_server(tmp_path_factory):
    """A server whose certificate folder looks like a Secret volume, the folder, and the CA."""
    parent = tmp_path_factory.mktemp("mounted")
    folder, ca = parent / "tls", issue_ca(datetime.now(UTC))
    folder.mkdir()
    swap_certificate(folder, ca, 0)
    for name in ("tls.crt", "tls.key", "ca.crt"):
        folder.joinpath(name).symlink_to(Path("..data") / name)
    with run_server(parent, "--tls-dir", folder) as server:
        yield server, folder, ca


def logged(server):
    """The lines of the log about the serving certificate."""
    return [line["event"] for line in server.log_lines if line["event"].startswith("serving certificate")]


def test_a_changed_certificate_is_served_to_the_next_connection_and_no_review_fails(mounted_server):
    server, folder, ca = mounted_server
    with server.timed_reviews(reconnect=True) as reconnecting, server.timed_reviews() as keeping:
        serials = {server.served_serial()}
        for number in range(1, 11):
            swap_certificate(folder, ca, number)
            now = server.served_serial()
            assert now not in serials
            serials.add(now)
            counts = len(reconnecting), len(keeping)
            until(lambda counts=counts: len(reconnecting) > counts[0] and len(keeping) > counts[1])
    assert set(logged(server)) == {"serving certificate reloaded"}
    assert len(logged(server)) >= 10  # 11 or more if a swap falls between the checks of its two files


def problems_of(server):
    """The problems that a ready server reports."""
    code, page = server.probe("/readyz?verbose")
    assert code == 200
    return json.loads(page)["problems"]


def leaf_days(server):
    """The days until the served certificate expires."""
    return round(server.metric('certificate_expiry_seconds{certificate="leaf"}') / 86400)


def test_a_mismatched_pair_is_logged_once_while_the_old_pair_is_served(mounted_server):
    server, folder, ca = mounted_server
    leaf = issue_leaf(ca, ["127.0.0.1"], datetime.now(UTC), timedelta(days=90))
    for name, content in (("tls.crt", leaf.certificate), ("tls.key", leaf.key)):
        folder.joinpath(f"new-{name}").write_bytes(content)
    before, lines = server.served_serial(), len(logged(server))
    folder.joinpath("new-tls.crt").rename(folder / "tls.crt")
    assert [server.served_serial() for _ in range(5)] == [before] * 5
    assert problems_of(server) == {"serving certificate": f"{folder}/tls.key: does not match {folder}/tls.crt"}
    assert until(lambda: server.metric("certificate_unusable") == 1)
    assert leaf_days(server) == 30
    folder.joinpath("new-tls.key").rename(folder / "tls.key")
    assert until(lambda: server.served_serial() != before)
    expected = ["serving certificate unusable, keeping the old one", "serving certificate reloaded"]
    assert logged(server)[lines:] == expected
    assert problems_of(server) == {}
    assert until(lambda: server.metric("certificate_unusable") == 0)
    assert leaf_days(server) == 90


# A hanging worker


def test_a_hanging_loop_fails_both_probes_until_it_recovers(mounted_server):
    """A FIFO replaces the certificate file: opening it blocks the loop until a writer opens it as well.

    The probes fail once the loop has made no turn for 10 s.
    """
    server, folder, _ = mounted_server
    shutil.copy(folder / "tls.crt", folder / "real")
    os.mkfifo(folder / "pipe")
    os.link(folder / "pipe", folder / "other-end")
    (folder / "pipe").rename(folder / "tls.crt")
    begin = monotonic()
    with server.connect_tcp():
        until(lambda: server.probe("/healthz")[0] == 503)
        assert monotonic() - begin > 9
        assert server.probe("/readyz")[0] == 503
        (folder / "real").rename(folder / "tls.crt")
        with suppress(OSError):  # on a stalled machine, gunicorn has replaced the worker, and there is no reader
            os.close(os.open(folder / "other-end", os.O_WRONLY | os.O_NONBLOCK))
        assert until(lambda: server.probe("/healthz")[0] == 200)
    assert server.review()["allowed"]
