"""The real server and peers that misbehave: the others are answered, everything is counted, and it ends in time."""

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
from tests.support.builders import node
from tests.support.fake_api_server import ApiServer, silence
from tests.support.loop_driver import has_ended, hello, reset, write_pair
from tests.support.server_process import IN_TIME, JSON, VM_START, serving, until

HEAD = b"POST /mutate?timeout=10s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
REVIEW = HEAD + b"Content-Length: %d\r\n\r\n" % len(VM_START) + VM_START


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("server")) as running:
        yield running


def metric(server, name):
    """The value of a metric, by its name and labels."""
    lines = server.probe("/metrics")[1].splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"kubevirt_scheduler_{name} "))


def dropped(server):
    causes = ("tls", "reset", "hello", "writing", "evicted", "error")
    return {cause: metric(server, f'connections_dropped_total{{cause="{cause}"}}') for cause in causes}


def nobody_is_left(server):
    return until(lambda: metric(server, "connections") == 0)


def received(sock):
    """All that comes until the other side has finished."""
    parts = []
    while part := sock.recv(65536):
        parts.append(part)
    return b"".join(parts)


def worker_of(server):
    booted = [line["event"] for line in server.lines if line["event"].startswith("Booting worker")]
    return int(booted[-1].rpartition(" ")[2])


# TLS


def offering(server, **chosen):
    """What comes of a handshake with these settings of the client's context."""
    context = server.trusting()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that 1.1 is deprecated is what is tested
        for name, value in chosen.items():
            setattr(context, name, value)
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


def shaken(server, context, **options):
    with context.wrap_socket(server.plain(), server_hostname="127.0.0.1", **options) as sock:
        sock.sendall(HEAD + b"Connection: close\r\nContent-Length: 0\r\n\r\n")
        received(sock)
        return sock.version(), sock.cipher()[0], sock.selected_alpn_protocol(), sock.session, sock.session_reused


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=lambda version: version.name)
def test_today_s_tls_is_spoken(server, version):
    context = offering(server, maximum_version=version, minimum_version=version)
    assert shaken(server, context)[0].replace(".", "_") == version.name


def test_yesterdays_tls_is_refused(server):
    old = {"minimum_version": ssl.TLSVersion.TLSv1_1, "maximum_version": ssl.TLSVersion.TLSv1_1}
    context = offering(server, **old)
    context.set_ciphers("ALL:@SECLEVEL=0")  # so that it is not our own side that refuses
    with pytest.raises(ssl.SSLError, match="ALERT_PROTOCOL_VERSION"):
        shaken(server, context)


GOOD = ["ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-ECDSA-CHACHA20-POLY1305"]
BAD = ["ECDHE-ECDSA-AES128-SHA256", "ECDHE-ECDSA-AES256-SHA", "ECDHE-ECDSA-AES128-CCM", "AES128-GCM-SHA256", "NULL"]


@pytest.mark.parametrize("suite", GOOD)
def test_a_suite_with_forward_secrecy_and_authenticated_encryption_is_taken(server, suite):
    context = offering(server, maximum_version=ssl.TLSVersion.TLSv1_2)
    context.set_ciphers(suite)
    assert shaken(server, context)[1] == suite


@pytest.mark.parametrize("suite", BAD)
def test_any_other_suite_is_refused(server, suite):
    context = offering(server, maximum_version=ssl.TLSVersion.TLSv1_2)
    context.set_ciphers(f"{suite}:@SECLEVEL=0")
    with pytest.raises(ssl.SSLError, match="HANDSHAKE_FAILURE"):
        shaken(server, context)


def test_the_key_is_one_of_p_256(server):
    with server.raw() as sock:
        certificate = load_der_x509_certificate(sock.getpeercert(binary_form=True))
    assert isinstance(certificate.public_key().curve, SECP256R1)


def test_http_1_1_is_what_is_agreed_on(server):
    assert shaken(server, offering(server))[2] == "http/1.1"


def test_nothing_is_handed_out_to_resume_a_session_with(server):
    context = offering(server, minimum_version=ssl.TLSVersion.TLSv1_3)
    session = shaken(server, context)[3]
    assert not session.has_ticket
    assert shaken(server, context, session=session)[4] is False


# Peers that do not go on

KINDS = ["nothing", "half a hello", "idle", "half a head", "half a body"]


def stalled(server, kind):
    """A peer that begins, and does not go on."""
    if kind == "half a hello":
        sock = server.plain()
        sock.sendall(hello(server.trusting())[:100])
        return sock
    if kind == "nothing":
        return server.plain()
    sock = server.raw()
    sock.sendall({"idle": b"", "half a head": HEAD, "half a body": HEAD + b"Content-Length: 9\r\n\r\n{"}[kind])
    return sock


@pytest.mark.parametrize("kind", KINDS)
def test_beside_100_peers_that_do_not_go_on_reviews_are_answered_and_no_thread_is_taken(server, kind):
    server.review()
    threads = Path(f"/proc/{worker_of(server)}/status")
    before = re.search(r"Threads:\s+(\d+)", threads.read_text())[1]
    with ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(stalled(server, kind))
        until(lambda: metric(server, "connections") == 100)
        for _ in range(10):
            assert server.review()["allowed"]
        assert re.search(r"Threads:\s+(\d+)", threads.read_text())[1] == before
    nobody_is_left(server)


# As a container runtime may start it: with few file descriptors, and more for who asks.
FEW = 128
WITH_FEW_FILES = ("sh", "-c", f'ulimit -Sn {FEW} && exec "$@"', "sh")


def test_probes_are_answered_beside_more_connections_than_files_were_granted_at_first(tmp_path):
    with ExitStack() as stack:
        server = stack.enter_context(serving(tmp_path, by=WITH_FEW_FILES))
        for _ in range(FEW):
            stack.enter_context(server.plain())
        until(lambda: metric(server, "connections") == FEW)
        assert server.review()["allowed"]
        assert server.probe("/readyz")[0] == 200


def test_a_port_scan_leaves_every_count_true(server):
    nobody_is_left(server)
    before = dropped(server)
    for _ in range(10):
        server.plain().close()
        reset(server.plain())
        with server.plain() as garbage, suppress(ConnectionResetError):
            garbage.sendall(b"GET / HTTP/1.0\r\n\r\n")
            garbage.recv(100)
        with server.plain() as begun:
            begun.sendall(hello(server.trusting()))
            begun.recv(100)
        reset(server.raw())
        server.raw().close()
    assert server.review()["allowed"]
    nobody_is_left(server)
    after = dropped(server)
    changed = {cause: after[cause] - count for cause, count in before.items()}
    assert changed == {"tls": 10, "reset": 30, "hello": 0, "writing": 0, "evicted": 0, "error": 0}


def test_a_client_that_sends_on_after_a_refusal_is_told_why(server):
    """As http.client does, and Go's: both send the whole body before they look for an answer."""
    connection = server.connect()
    pieces = (b" " * 65536 for _ in range(256))
    connection.request("POST", "/mutate", pieces, JSON | {"Content-Length": str(16 * 2**20)})
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Connection"]) == (413, "close")
    connection.close()


def test_pipelined_reviews_are_answered_in_order(server):
    sent = [REVIEW.replace(json.loads(VM_START)["request"]["uid"].encode(), f"{n:036}".encode()) for n in range(20)]
    with server.raw() as sock:
        sock.sendall(b"".join(sent) + b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
        answers = received(sock).split(b"HTTP/1.1 ")[1:]
    assert [answer[:3] for answer in answers] == [b"200"] * 20 + [b"404"]
    uids = [json.loads(answer.partition(b"\r\n\r\n")[2])["response"]["uid"] for answer in answers[:-1]]
    assert uids == [f"{n:036}" for n in range(20)]


def test_a_call_without_time_left_is_allowed_and_unchanged(server):
    connection = server.connect()
    connection.request("POST", "/mutate?timeout=400ms", VM_START, JSON)
    response = json.loads(connection.getresponse().read())["response"]
    connection.close()
    assert response["allowed"]
    assert "patch" not in response
    assert response["auditAnnotations"]["reason"] == "DeadlineExceeded"


# The certificate changes


def swap(folder, ca, number):
    """Have another pair in the folder's place, as the kubelet does it: by one rename of a link."""
    write_pair(folder / f"..{number}", ca)
    (folder / "..next").symlink_to(f"..{number}")
    (folder / "..next").rename(folder / "..data")


@pytest.fixture
def mounted(tmp_path):
    """A server whose certificate is mounted from a Secret, the folder, and its CA."""
    folder, ca = tmp_path / "tls", issue_ca(datetime.now(UTC))
    folder.mkdir()
    swap(folder, ca, 0)
    for name in ("tls.crt", "tls.key", "ca.crt"):
        folder.joinpath(name).symlink_to(Path("..data") / name)
    with serving(tmp_path, "--tls-dir", folder) as server:
        yield server, folder, ca


def shown(server):
    with server.raw() as sock:
        return sock.getpeercert()["serialNumber"]


@contextmanager
def calling(server, *, fresh):
    """Reviews one after the other in a thread; what failed, and how many were answered."""
    failed, answered, done = [], [], threading.Event()

    def call():
        connection = server.connect()
        while not done.is_set():
            try:
                connection.request("POST", "/mutate?timeout=10s", VM_START, JSON)
                answer = connection.getresponse()
                (answered if answer.status == 200 else failed).append(answer.read())
            except (OSError, http.client.HTTPException) as error:
                failed.append(repr(error))
            if fresh:
                connection.close()
        connection.close()

    thread = threading.Thread(target=call)
    thread.start()
    try:
        yield failed, answered
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("fresh", [True, False], ids=["new connections", "a connection that is kept"])
def test_certificates_change_with_the_next_connection_and_no_call_fails(mounted, fresh):
    server, folder, ca = mounted
    with calling(server, fresh=fresh) as (failed, answered):
        serials, counts = {shown(server)}, [0]
        for number in range(1, 11):
            swap(folder, ca, number)
            now = shown(server)
            assert now not in serials
            serials.add(now)
            counts.append(len(answered))
            until(lambda: len(answered) > counts[-1])
    assert failed == []
    said = [line["event"] for line in server.lines if line["event"].startswith("the serving certificate")]
    assert set(said) == {"the serving certificate was read anew"}
    assert len(said) >= 10  # twice for one where the swap came between the looks at its two files


def test_no_session_outlives_the_certificate_that_it_began_with(mounted):
    """OpenSSL keeps those of TLS 1.2 by their id, and Python can't forbid it: but it keeps them in the context."""
    server, folder, ca = mounted
    context = offering(server, maximum_version=ssl.TLSVersion.TLSv1_2)
    session = shaken(server, context)[3]
    assert shaken(server, context, session=session)[4] is True
    swap(folder, ca, 1)
    assert shaken(server, context, session=session)[4] is False


def problems_of(server):
    """What is wrong while all is served."""
    code, page = server.probe("/readyz?verbose")
    assert code == 200
    return json.loads(page)["problems"]


def expiry(server):
    """Days."""
    return metric(server, 'certificate_expiry_seconds{certificate="leaf"}') / 86400


@pytest.mark.parametrize("first", ["tls.crt", "tls.key"])
def test_half_a_pair_is_said_once_and_the_old_pair_serves_until_the_other_half_comes(mounted, first):
    server, folder, ca = mounted
    other = write_pair(folder / "other", ca)
    before = shown(server)
    folder.joinpath("other", first).rename(folder / first)
    assert [shown(server) for _ in range(5)] == [before] * 5
    assert problems_of(server) == {"serving certificate": f"{folder}/tls.key: is not the key of {folder}/tls.crt"}
    assert metric(server, "certificate_unusable") == 1
    [second] = {"tls.crt", "tls.key"} - {first}
    other.joinpath(second).rename(folder / second)
    assert until(lambda: shown(server) != before)
    said = [line["event"] for line in server.lines if line["event"].startswith("the serving certificate")]
    assert said == ["the serving certificate stays as it was", "the serving certificate was read anew"]
    assert (problems_of(server), metric(server, "certificate_unusable")) == ({}, 0)


def test_the_metric_is_of_the_certificate_that_is_served_until_its_key_has_come_too(mounted):
    server, folder, ca = mounted
    before, days = shown(server), expiry(server)
    new = issue_leaf(ca, ["127.0.0.1"], datetime.now(UTC), timedelta(days=90))
    for name, content, ends in (("tls.crt", new.certificate, days), ("tls.key", new.key, 90)):
        folder.joinpath("new").write_bytes(content)
        folder.joinpath("new").rename(folder / name)
        assert (shown(server) == before) is (ends == days)
        assert expiry(server) == pytest.approx(ends, abs=0.01)


# The end


def test_half_a_request_is_given_back_at_the_end(tmp_path):
    with serving(tmp_path) as server, server.raw() as sock, server.raw() as other:
        sock.sendall(HEAD)
        other.sendall(HEAD + b"Content-Length: 9\r\n\r\n{")
        until(lambda: metric(server, "connections") == 2)
        assert server.stop() == 0
        for each in (sock, other):
            answer = received(each)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"\r\nRetry-After: 0\r\n" in answer
            assert b"\r\nConnection: close\r\n" in answer


def hurries(folder):
    """Whether it ends when it is told again, though it is called ten times a second: for that it would go on for 15 s.

    A second without a call is its end as well, and so is a machine that stalls for as long: then this is not seen.
    """
    folder.mkdir()
    with serving(folder) as server, ExitStack() as stack:
        peers = [stack.enter_context(server.raw()) for _ in range(70)]
        for number, sock in enumerate(peers):
            if number in (0, 5):
                server.process.terminate()
            with suppress(OSError):
                sock.sendall(REVIEW)
            with suppress(subprocess.TimeoutExpired):
                assert server.process.wait(0.1) == 0
                return number >= 5
    return False


def test_a_second_sigterm_hurries(tmp_path):
    assert any(hurries(tmp_path / str(number)) for number in range(5))


def test_nobody_who_is_stuck_keeps_it_from_ending(tmp_path):
    with serving(tmp_path) as server, ExitStack() as stack:
        peers = [stack.enter_context(stalled(server, kind)) for kind in KINDS]
        until(lambda: metric(server, "connections") == len(KINDS))
        begin = monotonic()
        assert server.stop() == 0
        assert monotonic() - begin < 10  # as long as any of them is given that is waited for
        for sock in peers:
            sock.setblocking(False)
            assert has_ended(sock)


def test_a_review_that_waits_for_the_api_server_is_answered_at_the_end(tmp_path):
    with ApiServer() as api:
        api.put(node())
        api.script("get", "persistentvolumeclaims", silence)
        with serving(tmp_path, "--kubeconfig", api.kubeconfig(tmp_path)) as server:
            connection = server.connect()
            connection.request("POST", "/mutate?timeout=10s", VM_START, JSON)
            until(lambda: api.count("get", "persistentvolumeclaims"))
            server.process.terminate()
            answer = connection.getresponse()
            assert (answer.status, answer.headers["Connection"]) == (200, "close")
            assert json.loads(answer.read())["response"]["allowed"]
            connection.close()
            assert server.process.wait(IN_TIME) == 0


# A worker that hangs


def test_a_loop_that_hangs_is_told_to_the_kubelet_until_it_goes_on(mounted):
    """A pipe in the certificate's place: whoever opens it waits for a writer. It takes those 10 s."""
    server, folder, _ = mounted
    shutil.copy(folder / "tls.crt", folder / "real")
    os.mkfifo(folder / "pipe")
    os.link(folder / "pipe", folder / "other-end")
    (folder / "pipe").rename(folder / "tls.crt")
    begin = monotonic()
    with server.plain():
        until(lambda: server.probe("/healthz")[0] == 503)
        assert monotonic() - begin > 9
        assert server.probe("/readyz")[0] == 503
        (folder / "real").rename(folder / "tls.crt")
        os.close(os.open(folder / "other-end", os.O_WRONLY))
        assert until(lambda: server.probe("/healthz")[0] == 200)
    assert server.review()["allowed"]
