"""`serve --client-ca-file`: only clients with a certificate of this CA are served; the others get a TLS alert."""

import http.client
import ssl
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from certs.serving import trust_clients
from tests.serving.loop_driver import POST, drive_loop
from tests.support.authority import issue_ca
from tests.support.client_certificates import client_context, issue_client, replace, write_client
from tests.support.log_capture import capture_logs
from tests.support.server_process import JSON, TIMEOUT, VM_START, run_server, until
from tests.support.tls_client import write_certificate_files
from webhook.serving.worker.connection import Phase

NOW = datetime.now(UTC)
CA, OTHER_CA, SERVER_CA = (issue_ca(NOW) for _ in range(3))
CLIENT = issue_client(CA)
DAY = timedelta(days=1)
TLS_VERSIONS = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
DROPPED = 'connections_dropped_total{cause="certificate"}'
# OpenSSL's names for the alerts of RFC 8446, 6.2, and the reason in the log.
REJECTED = {
    "no certificate": (None, "HANDSHAKE_FAILURE|CERTIFICATE_REQUIRED", "no certificate was sent"),
    "another CA": (issue_client(OTHER_CA), "UNKNOWN_CA", "unable to get local issuer certificate"),
    "expired": (issue_client(CA, lifetime=-DAY), "CERTIFICATE_EXPIRED", "certificate has expired"),
    "of a server": (
        issue_client(CA, usage=ExtendedKeyUsageOID.SERVER_AUTH),
        "UNSUPPORTED_CERTIFICATE",
        "unsuitable certificate purpose",
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The CA of accepted clients, and the certificate of the server."""
    folder = tmp_path_factory.mktemp("server")
    replace(folder / "client-ca.crt", CA.certificate)
    write_certificate_files(folder / "tls", SERVER_CA)
    return folder


@pytest.fixture(scope="module")
def server(folder):
    with run_server(folder, "--client-ca-file", folder / "client-ca.crt", "--tls-dir", folder / "tls") as server:
        yield server


def connect(server, *certificate, version=None):
    """A connection of a client that presents this certificate, or none."""
    context = client_context(server.ca, *certificate, version=version)
    return http.client.HTTPSConnection(*server.https, timeout=TIMEOUT, context=context)


def review(connection):
    """Send a review over an open connection. Return the response's status and its Connection header."""
    connection.request("POST", "/mutate?timeout=10s", VM_START, JSON)
    response = connection.getresponse()
    response.read()
    return response.status, response.headers["Connection"]


# The server


def test_a_client_with_a_certificate_of_the_ca_is_served(server, tmp_path):
    for version in TLS_VERSIONS:
        with closing(connect(server, *write_client(tmp_path, CLIENT), version=version)) as connection:
            assert [review(connection) for _ in range(3)] == [(200, "keep-alive")] * 3
    left = server.metric('certificate_expiry_seconds{certificate="client-ca"}')
    assert 364 * 86400 < left <= 365 * 86400


def test_a_client_without_a_valid_certificate_gets_an_alert(server, tmp_path):
    rejected, reasons = server.metric(DROPPED), []
    for (client, alert, reason), version in product(REJECTED.values(), TLS_VERSIONS):
        files = write_client(tmp_path, client) if client else ()
        with closing(connect(server, *files, version=version)) as connection, pytest.raises(ssl.SSLError, match=alert):
            review(connection)
        reasons.append((reason, "127.0.0.1"))
    until(lambda: server.metric(DROPPED) == rejected + len(reasons))
    lines = [line for line in server.log_lines if line["event"] == "client certificate rejected"]
    assert [(line["reason"], line["peer"]) for line in lines] == reasons


def test_a_client_with_a_huge_chain_is_rejected(server, tmp_path):
    certificate, key = write_client(tmp_path, CLIENT)
    certificate.write_bytes(CLIENT.certificate + CA.certificate * 300)  # OpenSSL accepts 100 KB
    with closing(connect(server, certificate, key)) as connection, pytest.raises(OSError, match=r".+"):
        review(connection)
    with closing(connect(server, *write_client(tmp_path, CLIENT))) as connection:
        assert review(connection)[0] == 200


def test_an_open_connection_ends_with_its_next_response_after_its_ca_is_removed(server, folder, tmp_path):
    """`Connection: close` fails no call. Otherwise, a stolen certificate would be of use as long as requests follow."""
    with closing(connect(server, *write_client(tmp_path, CLIENT))) as connection:
        assert review(connection) == (200, "keep-alive")
        write_certificate_files(folder / "tls", SERVER_CA)  # a renewed serving certificate ends no connection
        assert server.probe("/readyz")[0] == 200
        assert review(connection) == (200, "keep-alive")
        replace(folder / "client-ca.crt", OTHER_CA.certificate)  # the last test of this server
        assert server.probe("/readyz")[0] == 200  # reloads the file; the kubelet sends this probe every 2 s
        assert review(connection) == (200, "close")
        with pytest.raises(ssl.SSLError, match="UNKNOWN_CA"):
            review(connection)


# The event loop


@pytest.fixture
def driver(tmp_path):
    write_certificate_files(tmp_path)
    with drive_loop(tmp_path) as driver:
        trust_clients(driver.server_context, CA.certificate.decode())
        yield driver


def test_a_rejected_client_is_dropped_after_it_has_read_the_alert(driver):
    """An immediate close would answer the request that the client has already sent with a reset."""
    # With TLS 1.3, the client's handshake is complete before the server has verified its certificate.
    with capture_logs() as logs, driver.connect_tls() as sock:
        sock.send(POST)
        driver.turn(3)
        assert [connection.phase for connection in driver.loop._table.in_phases(*Phase)] == [Phase.CLOSING]
        with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
            sock.recv(1000)
    driver.turn(2)
    assert driver.loop.connections() == 0
    assert driver.requests == []
    assert driver.dropped == {"certificate": 1}
    assert [line["event"] for line in logs] == ["client certificate rejected"]
