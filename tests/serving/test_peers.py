"""The `serve` process: its TLS policy, stalled clients, certificate changes, shutdown, and a hanging worker."""

import http.client
import json
import os
import re
import shutil
import ssl
import subprocess
import threading
import warnings
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1
from cryptography.x509 import load_der_x509_certificate

from certs.authority import issue_ca, issue_leaf
from tests.support.server_process import JSON, VM_START, run_server, until
from tests.support.tls_client import client_hello, closed_by_server, receive_all, write_certificate_files

HEAD = b"POST /mutate?timeout=10s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
REVIEW = HEAD + b"Content-Length: %d\r\n\r\n" % len(VM_START) + VM_START


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with run_server(tmp_path_factory.mktemp("server")) as parse_ready_line:
        yield parse_ready_line


def metric(server, name):
    """The value of a metric, by its name and labels."""
    lines = server.probe("/metrics")[1].splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"kubevirt_scheduler_{name} "))


def wait_for_no_connections(server):
    return until(lambda: metric(server, "connections") == 0)


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


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=lambda version: version.name)
def test_tls_1_2_and_1_3_are_accepted(server, version):
    context = tls_context(server, maximum_version=version, minimum_version=version)
    assert handshake(server, context)[0].replace(".", "_") == version.name


def test_tls_1_1_is_rejected(server):
    old = {"minimum_version": ssl.TLSVersion.TLSv1_1, "maximum_version": ssl.TLSVersion.TLSv1_1}
    context = tls_context(server, **old)
    context.set_ciphers("ALL:@SECLEVEL=0")  # otherwise the client itself would reject TLS 1.1
    with pytest.raises(ssl.SSLError, match="ALERT_PROTOCOL_VERSION"):
        handshake(server, context)


ACCEPTED_SUITES = ["ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-ECDSA-CHACHA20-POLY1305"]
REJECTED_SUITES = [
    "ECDHE-ECDSA-AES128-SHA256",
    "ECDHE-ECDSA-AES256-SHA",
    "ECDHE-ECDSA-AES128-CCM",
    "AES128-GCM-SHA256",
    "NULL",
]


@pytest.mark.parametrize("suite", ACCEPTED_SUITES)
def test_the_suites_with_forward_secrecy_and_authenticated_encryption_are_accepted_in_any_order(server, suite):
    context = tls_context(server, maximum_version=ssl.TLSVersion.TLSv1_2)
    context.set_ciphers(":".join([suite, *ACCEPTED_SUITES]))
    assert handshake(server, context)[1] == suite


@pytest.mark.parametrize("suite", REJECTED_SUITES)
def test_any_other_suite_is_rejected(server, suite):
    context = tls_context(server, maximum_version=ssl.TLSVersion.TLSv1_2)
    context.set_ciphers(f"{suite}:@SECLEVEL=0")
    with pytest.raises(ssl.SSLError, match="HANDSHAKE_FAILURE"):
        handshake(server, context)


def test_the_certificate_key_is_p_256(server):
    with server.connect_tls() as sock:
        certificate = load_der_x509_certificate(sock.getpeercert(binary_form=True))
    assert isinstance(certificate.public_key().curve, SECP256R1)


def test_alpn_selects_http_1_1(server):
    assert handshake(server, tls_context(server))[2] == "http/1.1"


def test_the_server_issues_no_session_ticket(server):
    context = tls_context(server, minimum_version=ssl.TLSVersion.TLSv1_3)
    session = handshake(server, context)[3]
    assert not session.has_ticket
    assert handshake(server, context, session=session)[4] is False


# Stalled clients

STALL_POINTS = ["no bytes", "incomplete ClientHello", "idle", "incomplete head", "incomplete body"]


def stalled_client(server, stall_point):
    """A client that connects, sends data up to this point, and then stalls."""
    if stall_point == "incomplete ClientHello":
        sock = server.connect_tcp()
        sock.sendall(client_hello(server.client_context())[:100])
        return sock
    if stall_point == "no bytes":
        return server.connect_tcp()
    sock = server.connect_tls()
    sock.sendall(
        {"idle": b"", "incomplete head": HEAD, "incomplete body": HEAD + b"Content-Length: 9\r\n\r\n{"}[stall_point]
    )
    return sock


def test_100_stalled_clients_use_no_thread_and_do_not_block_reviews(server):
    wait_for_no_connections(server)  # starts the thread of /metrics
    status_file = Path(f"/proc/{server.worker_pid()}/status")
    before = re.search(r"Threads:\s+(\d+)", status_file.read_text())[1]
    with ExitStack() as stack:
        for stall_point in 20 * STALL_POINTS:
            stack.enter_context(stalled_client(server, stall_point))
        until(lambda: metric(server, "connections") == 100)
        for _ in range(10):
            assert server.review()["allowed"]
        assert re.search(r"Threads:\s+(\d+)", status_file.read_text())[1] == before
    wait_for_no_connections(server)


# A container runtime may set a low soft limit of file descriptors below a higher hard limit.
SOFT_LIMIT = 128
WITH_SOFT_LIMIT = ("sh", "-c", f'ulimit -Sn {SOFT_LIMIT} && exec "$@"', "sh")


def test_the_server_accepts_more_connections_than_its_initial_file_limit(tmp_path):
    with ExitStack() as stack:
        server = stack.enter_context(run_server(tmp_path, launcher=WITH_SOFT_LIMIT))
        for _ in range(SOFT_LIMIT):
            stack.enter_context(server.connect_tcp())
        until(lambda: metric(server, "connections") == SOFT_LIMIT)
        assert server.review()["allowed"]
        assert server.probe("/readyz")[0] == 200


# Certificate changes


def swap_certificate(folder, ca, number):
    """Replace certificate and key as the kubelet does: with one rename of a symbolic link."""
    write_certificate_files(folder / f"..{number}", ca)
    (folder / "..next").symlink_to(f"..{number}")
    (folder / "..next").rename(folder / "..data")


@pytest.fixture
def mounted_server(tmp_path):
    """A server whose certificate folder looks like a Secret volume, the folder, and the CA."""
    folder, ca = tmp_path / "tls", issue_ca(datetime.now(UTC))
    folder.mkdir()
    swap_certificate(folder, ca, 0)
    for name in ("tls.crt", "tls.key", "ca.crt"):
        folder.joinpath(name).symlink_to(Path("..data") / name)
    with run_server(tmp_path, "--tls-dir", folder) as server:
        yield server, folder, ca


@contextmanager
def sending_reviews(server, *, new_connections):
    """Send reviews in a thread until the end of the block; the failures and the responses so far."""
    failures, responses, stop = [], [], threading.Event()

    def send_reviews():
        connection = server.connect()
        while not stop.is_set():
            try:
                connection.request("POST", "/mutate?timeout=10s", VM_START, JSON)
                response = connection.getresponse()
                (responses if response.status == 200 else failures).append(response.read())
            except (OSError, http.client.HTTPException) as error:
                failures.append(repr(error))
            if new_connections:
                connection.close()
        connection.close()

    thread = threading.Thread(target=send_reviews)
    thread.start()
    try:
        yield failures, responses
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("new_connections", [True, False], ids=["new connections", "one connection"])
def test_a_changed_certificate_is_served_to_the_next_connection_and_no_review_fails(mounted_server, new_connections):
    server, folder, ca = mounted_server
    with sending_reviews(server, new_connections=new_connections) as (failures, responses):
        serials, counts = {server.served_serial()}, [0]
        for number in range(1, 11):
            swap_certificate(folder, ca, number)
            now = server.served_serial()
            assert now not in serials
            serials.add(now)
            counts.append(len(responses))
            until(lambda: len(responses) > counts[-1])
    assert failures == []
    logged = [line["event"] for line in server.log_lines if line["event"].startswith("serving certificate")]
    assert set(logged) == {"serving certificate reloaded"}
    assert len(logged) >= 10  # 11 or more if a swap falls between the checks of its two files


def test_a_session_is_not_resumed_after_a_certificate_change(mounted_server):
    """OpenSSL caches TLS 1.2 sessions by ID, and Python can't disable that. The cache belongs to the SSL context."""
    server, folder, ca = mounted_server
    context = tls_context(server, maximum_version=ssl.TLSVersion.TLSv1_2)
    session = handshake(server, context)[3]
    assert handshake(server, context, session=session)[4] is True
    swap_certificate(folder, ca, 1)
    assert handshake(server, context, session=session)[4] is False


def problems_of(server):
    """The problems that a ready server reports."""
    code, page = server.probe("/readyz?verbose")
    assert code == 200
    return json.loads(page)["problems"]


def expiry(server):
    """The days until the served certificate expires."""
    return metric(server, 'certificate_expiry_seconds{certificate="leaf"}') / 86400


@pytest.mark.parametrize("first", ["tls.crt", "tls.key"])
def test_a_mismatched_pair_is_logged_once_while_the_old_pair_is_served(mounted_server, first):
    server, folder, ca = mounted_server
    write_certificate_files(folder / "other", ca)
    before = server.served_serial()
    folder.joinpath("other", first).rename(folder / first)
    assert [server.served_serial() for _ in range(5)] == [before] * 5
    assert problems_of(server) == {"serving certificate": f"{folder}/tls.key: does not match {folder}/tls.crt"}
    assert until(lambda: metric(server, "certificate_unusable") == 1)  # the page is up to a second old
    [second] = {"tls.crt", "tls.key"} - {first}
    folder.joinpath("other", second).rename(folder / second)
    assert until(lambda: server.served_serial() != before)
    logged = [line["event"] for line in server.log_lines if line["event"].startswith("serving certificate")]
    assert logged == ["serving certificate unusable, keeping the old one", "serving certificate reloaded"]
    assert problems_of(server) == {}
    assert until(lambda: metric(server, "certificate_unusable") == 0)


def test_the_expiry_metric_changes_only_when_certificate_and_key_match(mounted_server):
    server, folder, ca = mounted_server
    before, days = server.served_serial(), expiry(server)
    new = issue_leaf(ca, ["127.0.0.1"], datetime.now(UTC), timedelta(days=90))
    for name, content, ends in (("tls.crt", new.certificate, days), ("tls.key", new.key, 90)):
        folder.joinpath("new").write_bytes(content)
        folder.joinpath("new").rename(folder / name)
        assert (server.served_serial() == before) is (ends == days)
        assert until(lambda ends=ends: expiry(server) == pytest.approx(ends, abs=0.01))


# Shutdown


def test_shutdown_answers_incomplete_requests_with_503(tmp_path):
    with run_server(tmp_path) as server, server.connect_tls() as sock, server.connect_tls() as other:
        sock.sendall(HEAD)
        other.sendall(HEAD + b"Content-Length: 9\r\n\r\n{")
        until(lambda: metric(server, "connections") == 2)
        assert server.stop() == 0
        for client in (sock, other):
            response = receive_all(client)
            assert response.startswith(b"HTTP/1.1 503 ")
            assert b"\r\nRetry-After: 0\r\n" in response
            assert b"\r\nConnection: close\r\n" in response


def stops_on_second_sigterm(folder):
    """Whether a second SIGTERM stops a server that receives ten reviews per second.

    With one SIGTERM, such a server drains for 15 s. A server also exits after one second without a review.
    False if the machine stalls for that second: the server may then exit before the second SIGTERM.
    """
    folder.mkdir()
    with run_server(folder) as server, ExitStack() as stack:
        peers = [stack.enter_context(server.connect_tls()) for _ in range(70)]
        for number, sock in enumerate(peers):
            if number in (0, 5):
                server.process.terminate()
            with suppress(OSError):
                sock.sendall(REVIEW)
            with suppress(subprocess.TimeoutExpired):
                assert server.process.wait(0.1) == 0
                return number >= 5
    return False


def test_a_second_sigterm_stops_the_server_immediately(tmp_path):
    assert any(stops_on_second_sigterm(tmp_path / str(number)) for number in range(5))


def test_stalled_clients_do_not_block_shutdown(tmp_path):
    with run_server(tmp_path) as server, ExitStack() as stack:
        peers = [stack.enter_context(stalled_client(server, stall_point)) for stall_point in STALL_POINTS]
        until(lambda: metric(server, "connections") == len(STALL_POINTS))
        begin = monotonic()
        assert server.stop() == 0
        assert monotonic() - begin < 10  # seconds, the timeout of an incomplete request
        for sock in peers:
            sock.setblocking(False)
            assert closed_by_server(sock)


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
        os.close(os.open(folder / "other-end", os.O_WRONLY))
        assert until(lambda: server.probe("/healthz")[0] == 200)
    assert server.review()["allowed"]
