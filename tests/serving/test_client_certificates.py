"""`serve --client-ca-file`: only clients with a certificate of this CA are served; the others get a TLS alert."""

import http.client
import ssl
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from certs.authority import issue_ca
from certs.serving import trust_clients
from tests.serving.loop_driver import POST, drive_loop
from tests.support.client_certificates import client_context, issue_client, replace, write_client
from tests.support.log_capture import capture_logs
from tests.support.server_process import JSON, TIMEOUT, VM_START, run_server, run_to_exit, until, write_cluster
from tests.support.tls_client import write_certificate_files
from webhook.serving.http.connection import Phase
from webhook.serving.http.loop import MAX_CONNECTIONS

NOW = datetime.now(UTC)
CA, OTHER_CA = issue_ca(NOW), issue_ca(NOW)
CLIENT = issue_client(CA)
DAY = timedelta(days=1)
VERSIONS = pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
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
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    (folder / "client-ca.crt").write_bytes(CA.certificate)
    with run_server(folder, "--client-ca-file", folder / "client-ca.crt") as server:
        yield server


def connect(server, *certificate, version=None):
    """A connection of a client that presents this certificate, or none."""
    context = client_context(server.ca, *certificate, version=version)
    return http.client.HTTPSConnection(*server.https, timeout=TIMEOUT, context=context)


def status_of_review(connection):
    connection.request("POST", "/mutate?timeout=10s", VM_START, JSON)
    response = connection.getresponse()
    response.read()
    return response.status


def metric(server, name):
    lines = server.probe("/metrics")[1].splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} ")), None)


# The server


@VERSIONS
def test_a_client_with_a_certificate_of_the_ca_is_served(server, tmp_path, version):
    with closing(connect(server, *write_client(tmp_path, CLIENT), version=version)) as connection:
        assert [status_of_review(connection) for _ in range(3)] == [200] * 3
    left = metric(server, 'kubevirt_scheduler_certificate_expiry_seconds{certificate="client-ca"}')
    assert 364 * 86400 < left <= 365 * 86400


@VERSIONS
@pytest.mark.parametrize("case", REJECTED)
def test_a_client_without_a_valid_certificate_gets_an_alert(server, tmp_path, case, version):
    client, alert, reason = REJECTED[case]
    files = write_client(tmp_path, client) if client else ()
    rejected = metric(server, 'kubevirt_scheduler_connections_dropped_total{cause="certificate"}')
    with closing(connect(server, *files, version=version)) as connection, pytest.raises(ssl.SSLError, match=alert):
        status_of_review(connection)
    until(lambda: metric(server, 'kubevirt_scheduler_connections_dropped_total{cause="certificate"}') == rejected + 1)
    line = server.log_lines[-1]
    assert (line["event"], line["reason"], line["peer"]) == ("client certificate rejected", reason, "127.0.0.1")


def test_a_client_with_a_huge_chain_is_rejected(server, tmp_path):
    certificate, key = write_client(tmp_path, CLIENT)
    certificate.write_bytes(CLIENT.certificate + CA.certificate * 300)  # OpenSSL accepts 100 KB
    with closing(connect(server, certificate, key)) as connection, pytest.raises(OSError, match=r".+"):
        status_of_review(connection)
    with closing(connect(server, *write_client(tmp_path, CLIENT))) as connection:
        assert status_of_review(connection) == 200


@pytest.mark.parametrize("content", [None, b"garbage"], ids=["missing", "garbage"])
def test_an_unusable_client_ca_stops_the_start(tmp_path, content):
    """The server never serves clients without a certificate when it was asked not to."""
    file = tmp_path / "client-ca.crt"
    if content:
        file.write_bytes(content)
    exited = run_to_exit("--snapshot", write_cluster(tmp_path), "--client-ca-file", file)
    assert exited.returncode == 2
    # A server of another test may have been killed, and a start logs the removal of its keys.
    (line,) = (each for each in exited.stderr.splitlines() if "keys of a killed process removed" not in each)
    assert line.startswith(f"Error: {file}: ")


def connection_header(connection):
    """Send a review over an open connection, and return the response's Connection header."""
    connection.request("POST", "/mutate?timeout=10s", VM_START, JSON)
    response = connection.getresponse()
    assert (response.status, bool(response.read())) == (200, True)
    return response.headers["Connection"]


def test_an_open_connection_ends_with_its_next_response_after_its_ca_is_removed(tmp_path):
    """`Connection: close` fails no call. Otherwise, a stolen certificate would be of use as long as requests follow."""
    ca_file, folder = tmp_path / "client-ca.crt", tmp_path / "tls"
    replace(ca_file, CA.certificate)
    write_certificate_files(folder, OTHER_CA)
    with (
        run_server(tmp_path, "--client-ca-file", ca_file, "--tls-dir", folder) as server,
        closing(connect(server, *write_client(tmp_path, CLIENT))) as connection,
    ):
        assert connection_header(connection) == "keep-alive"
        write_certificate_files(folder, OTHER_CA)  # a renewed serving certificate ends no connection
        assert server.probe("/readyz")[0] == 200
        assert connection_header(connection) == "keep-alive"
        replace(ca_file, OTHER_CA.certificate)
        assert server.probe("/readyz")[0] == 200  # reloads the file; the kubelet sends this probe every 2 s
        assert connection_header(connection) == "close"
        with pytest.raises(ssl.SSLError, match="UNKNOWN_CA"):
            status_of_review(connection)


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


def test_rejected_clients_are_evicted_first(driver, tmp_path):
    accepted = client_context(tmp_path / "ca.crt", *write_client(tmp_path, CLIENT))
    driver.loop.max_connections = 2
    with driver.connect_tls(context=accepted) as served, driver.connect_tls(), driver.connect_tls():
        driver.turn(3)
        assert driver.send_and_receive(served).startswith(b"HTTP/1.1 200")
    assert driver.dropped["evicted"] == 1
    assert driver.loop.max_connections < MAX_CONNECTIONS
