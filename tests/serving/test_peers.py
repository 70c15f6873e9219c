"""The `serve` process: its TLS policy, certificate changes, and a hanging worker."""

import http.client
import json
import os
import shutil
import ssl
import threading
import warnings
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic

import pytest

from certs.authority import issue_ca, issue_leaf
from tests.support.server_process import JSON, VM_START, run_server, until
from tests.support.tls_client import receive_all, write_certificate_files

HEAD = b"POST /mutate?timeout=10s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with run_server(tmp_path_factory.mktemp("server")) as server:
        yield server


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


@contextmanager
def sending_reviews(server, new_connections):
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


def logged(server):
    """The lines of the log about the serving certificate."""
    return [line["event"] for line in server.log_lines if line["event"].startswith("serving certificate")]


def test_a_changed_certificate_is_served_to_the_next_connection_and_no_review_fails(mounted_server):
    server, folder, ca = mounted_server
    with sending_reviews(server, True) as (failures, responses), sending_reviews(server, False) as (failed, kept):
        serials = {server.served_serial()}
        for number in range(1, 11):
            swap_certificate(folder, ca, number)
            now = server.served_serial()
            assert now not in serials
            serials.add(now)
            counts = len(responses), len(kept)
            until(lambda counts=counts: len(responses) > counts[0] and len(kept) > counts[1])
    assert failures + failed == []
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
