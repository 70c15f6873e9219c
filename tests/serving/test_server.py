"""The real server: gunicorn over TLS in a process of its own, its probes beside it, and what ends it."""

import http.client
import json
import os
import re
import signal
import socket
import ssl
from base64 import b64decode
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime
from http import HTTPStatus
from time import monotonic

import jsonpatch
import pytest
from flask import Flask

from certs.authority import issue_ca, issue_leaf
from certs.renewal import Policy
from certs.rotate import CertificateController
from certs.serving import ServingCertificate
from tests.support.builders import catalog, settings
from tests.support.server_process import IN_TIME, JSON, REVIEWS, VM_START, run, serving, until, write_cluster
from webhook.cluster.backend import from_snapshot
from webhook.serving.connection import RequestHandler
from webhook.serving.exchange import Response
from webhook.serving.listeners import CannotListen, listening
from webhook.serving.loop import QUIET
from webhook.serving.metrics import Metrics
from webhook.serving.server import Server

SECRET = "not-a-real-passphrase"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("server")) as running:
        yield running


def post(connection, body=VM_START, headers=JSON, path="/mutate?timeout=10s"):
    """The status, headers and JSON of an answer; the connection stays open."""
    connection.request("POST", path, body, headers)
    response = connection.getresponse()
    return response.status, response.headers, json.loads(response.read())


def received(sock):
    """All that comes until the other side has finished."""
    parts = []
    while part := sock.recv(65536):
        parts.append(part)
    return b"".join(parts).decode(errors="replace")


def write_certificate(folder, ca=None, names=("localhost", "127.0.0.1")):
    folder.mkdir(exist_ok=True)
    ca = ca or issue_ca(datetime.now(UTC))
    leaf = issue_leaf(ca, names, datetime.now(UTC))
    for name, content in (("ca.crt", ca.certificate), ("tls.key", leaf.key), ("tls.crt", leaf.certificate)):
        folder.joinpath(name).write_bytes(content)
    return leaf


def serial(server):
    """The serial number of the certificate that a new connection is shown."""
    with server.raw() as connection:
        return connection.getpeercert()["serialNumber"]


# Reviews over TLS


def test_a_recorded_vm_is_pinned_over_tls_by_a_client_that_verifies_the_ca(server):
    response = server.review()
    pod = json.loads(VM_START)["request"]["object"]
    after = jsonpatch.JsonPatch(json.loads(b64decode(response["patch"]))).apply(pod)
    assert response["uid"] == json.loads(VM_START)["request"]["uid"]
    assert response["auditAnnotations"]["reason"] == "CoScheduled"
    assert after["metadata"]["annotations"]["kubevirt-scheduler/co-scheduled-node"] == "node-a"


@pytest.mark.parametrize("file", sorted(REVIEWS.glob("*.json")), ids=lambda file: file.stem)
def test_each_recorded_review_is_allowed_with_its_uid(server, file):
    response = server.review(file.read_bytes())
    assert (response["uid"], response["allowed"]) == (json.loads(file.read_bytes())["request"]["uid"], True)


def test_a_client_that_trusts_another_ca_does_not_get_through(server):
    other = ssl.create_default_context(cadata=issue_ca(datetime.now(UTC)).certificate.decode())
    with pytest.raises(ssl.SSLCertVerificationError), server.plain() as sock:
        other.wrap_socket(sock, server_hostname="127.0.0.1")


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1"])
def test_the_certificate_of_the_run_holds_the_names_of_this_machine(server, name):
    with server.plain() as sock, server.trusting().wrap_socket(sock, server_hostname=name) as connection:
        assert connection.version() == "TLSv1.3"


def test_a_connection_serves_many_reviews(server):
    connection = server.connect()
    for _ in range(3):
        status, headers, _ = post(connection)
        assert (status, headers["Connection"]) == (200, "keep-alive")
    local = connection.sock.getsockname()
    post(connection)
    assert connection.sock.getsockname() == local
    connection.close()


def test_each_decision_is_a_line_of_json_in_the_log(server):
    sent = json.loads(VM_START)
    sent["request"]["uid"] = "a-uid-of-its-own"
    server.review(json.dumps(sent).encode())
    [line] = until(lambda: [line for line in server.lines if line.get("uid") == "a-uid-of-its-own"])
    assert {"event": "decided", "vm": "vm1", "reason": "CoScheduled", "node": "node-a"}.items() <= line.items()


# Bad input, where the test client does not reach


def test_a_body_over_8_mib_is_refused_before_it_is_read(server):
    with server.raw() as connection:
        head = f"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {8 * 2**20 + 2}"
        connection.sendall(f"{head}\r\n\r\n".encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(("size", "status"), [(8 * 2**20, 200), (8 * 2**20 + 1, 413)])
def test_a_chunked_body_is_read_up_to_8_mib(server, size, status):
    connection = server.connect()
    chunks = iter([VM_START.ljust(2**20), *[b" " * 2**20] * 7, b" " * (size - 8 * 2**20)])
    connection.request("POST", "/mutate", (chunk for chunk in chunks if chunk), JSON, encode_chunked=True)
    assert connection.getresponse().status == status
    connection.close()


@pytest.mark.parametrize(
    "said",
    [
        f"{SECRET} / HTTP/1.1\r\n\r\n",
        f"GET /{SECRET} HTTP/{SECRET}\r\n\r\n",
        f"GET / HTTP/1.1\r\n{SECRET}\r\n\r\n",
        f"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: {SECRET}\r\n\r\n",
        f"POST /mutate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: {SECRET}\r\n\r\n",
        f"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n{SECRET}",
        f"POST /mutate HTTP/1.1\r\nHost: x\r\nX: {SECRET * 1000}\r\n\r\n",
    ],
)
def test_what_is_not_http_gets_an_error_in_json_that_quotes_nothing(server, said):
    with server.raw() as connection:
        connection.sendall(said.encode())
        head, _, body = received(connection).partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 400 ")
    assert "application/json" in head
    assert json.loads(body) == {"error": "not HTTP"}
    assert SECRET not in server.log


def test_a_chunk_that_is_none_is_answered_in_json(server):
    head = "POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked"
    with server.raw() as connection:
        connection.sendall(f"{head}\r\n\r\n{SECRET}\r\n".encode())
        head, _, body = received(connection).partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 400 ")
    assert json.loads(body) == {"error": "the body ends too early, or is not framed as HTTP wants it"}
    assert SECRET not in server.log


def test_a_body_that_ends_too_early_is_a_bad_request(server):
    head = "POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked"
    before = server.log.count("the body ends too early")  # others have had it said already
    with server.raw() as connection:
        connection.sendall(f"{head}\r\n\r\n5\r\nab".encode())
        connection.shutdown(socket.SHUT_WR)
    assert until(lambda: server.log.count("the body ends too early") > before)


def test_a_body_longer_than_it_said_reaches_no_log(server):
    """Its end passes for the next request, and gunicorn's own log quotes a request line that it can't read."""
    body = REVIEWS.joinpath("share-manager-avoiding-a-node.json").read_bytes()
    cut = body.index(SECRET.encode())
    head = f"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {cut}\r\n\r\n"
    with server.raw() as connection:
        connection.sendall(head.encode() + body)
        said = received(connection)
    assert said.count("HTTP/1.1 400 ") == 2
    assert SECRET not in said
    assert SECRET not in server.log


def test_not_even_the_most_talkative_log_quotes_what_was_received(tmp_path):
    body = REVIEWS.joinpath("share-manager-avoiding-a-node.json").read_bytes()
    head = "POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
    with serving(tmp_path, CO_SCHEDULE_LOG_LEVEL="debug") as server:
        for said in (SECRET, head.format(len(body) + 1), head.format(body.index(SECRET.encode()))):
            with server.raw() as connection:
                connection.sendall(said.encode() + body[: body.index(SECRET.encode()) + len(SECRET)])
                connection.shutdown(socket.SHUT_WR)
                received(connection)
        assert server.stop() == 0
        assert SECRET not in server.log


# Connections that lead to nothing


def test_a_connection_that_is_closed_at_once_does_not_break_the_next_request(server):
    for _ in range(20):
        server.plain().close()
    assert server.review()["allowed"]


def test_a_client_that_speaks_no_tls_does_not_break_the_next_request(server):
    with server.plain() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        with suppress(ConnectionResetError):
            assert b"HTTP" not in connection.recv(100)
    assert server.review()["allowed"]


def test_half_open_tls_connections_do_not_break_the_next_request(server):
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        server.trusting().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    hello = outgoing.read()
    waiting = [server.plain() for _ in range(4)]
    for sock, part in zip(waiting, (b"", hello[:1], hello[: len(hello) // 2], hello), strict=True):
        sock.sendall(part)
    with server.raw() as half_a_request:
        half_a_request.sendall(b"POST /mutate HTTP/1.1\r\nHost")
        assert server.review()["allowed"]
    for sock in waiting:
        sock.close()


# The plain port


def test_the_plain_port_tells_that_we_live_and_are_ready(server):
    assert server.probe("/healthz") == (200, '{"status":"ok"}\n')
    status, told = server.probe("/readyz")
    assert (status, json.loads(told)["status"]) == (200, "ok")


def test_the_plain_port_tells_what_was_decided(server):
    def decided():
        [value] = re.findall(
            r'decisions_total{outcome="pinned",reason="CoScheduled"} (\S+)', server.probe("/metrics")[1]
        )
        return float(value)

    before = decided()
    server.review()
    assert decided() == before + 1


def test_neither_port_has_the_routes_of_the_other(server):
    assert server.probe("/mutate")[0] == 404
    connection = server.connect()
    connection.request("GET", "/metrics")
    assert connection.getresponse().status == 404
    connection.close()


def test_probes_are_answered_while_every_thread_of_the_tls_port_waits(server):
    waiting = [server.raw() for _ in range(8)]
    for sock in waiting:
        sock.sendall(b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n")
    assert server.probe("/readyz")[0] == 200
    for sock in waiting:
        sock.close()
    assert server.review()["allowed"]


def test_idle_peers_do_not_keep_the_plain_port_from_answering(server):
    """As many as waitress would let in: the kubelet would restart us for the sake of whoever they are."""
    with ExitStack() as stack:
        for _ in range(120):
            stack.enter_context(socket.create_connection(server.http, timeout=IN_TIME))
        assert server.probe("/healthz")[0] == 200


@pytest.mark.parametrize("head", ["Content-Length: 60000000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"])
def test_the_plain_port_takes_no_body(server, head):
    with socket.create_connection(server.http, timeout=IN_TIME) as sock:
        sock.sendall(f"POST /healthz HTTP/1.1\r\nHost: x\r\n{head}".encode())
        assert sock.recv(100).startswith(b"HTTP/1.1 413 ")


# Start


def test_one_line_on_standard_output_says_where_and_all_else_is_a_log_of_json(tmp_path):
    with serving(tmp_path) as server:
        server.review()
        assert server.ca.name == "ca.crt"
        assert server.stop() == 0
        assert server.process.stdout.read() == ""
        assert {"decided", "Starting gunicorn 27.0.1"} <= {line["event"] for line in server.lines}


def test_the_log_is_text_where_the_settings_say_so(tmp_path):
    with serving(tmp_path, CO_SCHEDULE_LOG_FORMAT="text", CO_SCHEDULE_LOG_LEVEL="debug") as server:
        server.review()
        assert until(lambda: re.search(r"level=info event=decided .*vm=vm1 .*reason=CoScheduled", server.log))


def test_the_certificate_of_the_run_is_for_its_own_user_alone(server):
    assert server.ca.parent.stat().st_mode & 0o777 == 0o700
    assert server.ca.with_name("tls.key").stat().st_mode & 0o777 == 0o600


def test_an_address_of_ipv6_is_written_as_in_a_url(tmp_path):
    with serving(tmp_path, "--bind", "::1") as server:
        assert server.https[0] == "::1"
        assert server.probe("/healthz")[0] == 200
        assert server.review()["allowed"]


def failed(run):
    """What is said of a server that does not start: one line, exit 2, no traceback."""
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith("Error: ")
    assert run.stderr.count("\n") == 1
    return run.stderr


@pytest.mark.parametrize("option", ["--https-port", "--http-port"])
def test_a_port_in_use_is_named(tmp_path, option):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        other = "--http-port" if option == "--https-port" else "--https-port"
        said = failed(run("--snapshot", write_cluster(tmp_path), option, port, other, 0))
    assert said == f"Error: cannot listen on 127.0.0.1:{port}: Address already in use\n"


@pytest.mark.parametrize("address", ["192.0.2.1", "no.such.host.invalid", "", "bücher..example", "x" * 300])
def test_an_address_that_is_not_ours_is_named(address):
    with pytest.raises(CannotListen, match=f"^cannot listen on {address}:0: "), listening(address, 0, 0):
        pass


def test_a_wrong_setting_is_named_with_its_value_and_what_is_allowed(tmp_path):
    said = failed(run("--snapshot", write_cluster(tmp_path), CO_SCHEDULE_AFFINITY_MODE="soft"))
    assert said == "Error: CO_SCHEDULE_AFFINITY_MODE='soft': allowed is 'required' or 'preferred'\n"


def test_neither_a_cluster_nor_a_snapshot_is_said(tmp_path):
    said = failed(run(KUBECONFIG=str(tmp_path / "nowhere"), KUBERNETES_SERVICE_HOST=""))
    assert "--kubeconfig FILE, or --snapshot FILE" in said


def test_a_snapshot_that_is_not_there_is_named(tmp_path):
    assert "nowhere.yaml" in failed(run("--snapshot", tmp_path / "nowhere.yaml", "--https-port", 0, "--http-port", 0))


@pytest.mark.parametrize("name", ["tls.crt", "tls.key", "ca.crt"])
def test_a_certificate_file_that_is_missing_is_named(tmp_path, name):
    folder = tmp_path / "tls"
    write_certificate(folder)
    folder.joinpath(name).unlink()
    assert run_with(tmp_path, folder) == f"Error: {folder / name}: No such file or directory\n"


def test_a_key_of_another_certificate_is_named(tmp_path):
    folder = tmp_path / "tls"
    write_certificate(folder)
    folder.joinpath("tls.key").write_bytes(write_certificate(tmp_path / "other").key)
    assert run_with(tmp_path, folder) == f"Error: {folder / 'tls.key'}: is not the key of {folder / 'tls.crt'}\n"


def run_with(tmp_path, folder):
    arguments = ("--https-port", 0, "--http-port", 0, "--tls-dir", folder)
    return failed(run("--snapshot", write_cluster(tmp_path), *arguments))


def test_gunicorn_is_set_up_for_the_api_server(tmp_path):
    backend = from_snapshot(catalog(), settings())
    app, answering = (
        Flask("app"),
        RequestHandler(lambda _: None, lambda *_: Response(HTTPStatus.OK, b""), lambda _: None),
    )
    write_certificate(tmp_path)
    certificate = ServingCertificate(tmp_path)
    keeper = CertificateController(None, secret=None, configuration=None, policy=Policy(), folder=tmp_path)
    with listening("127.0.0.1", 0, 0) as listeners:
        server = Server(answering, lambda *_: app, listeners, certificate, settings(), backend, Metrics(), keeper)
        options = server.options(3)
    wanted = {"workers": 1, "max_requests": 0, "control_socket_disable": True}
    assert wanted.items() <= options.items()


# The certificate changes


def test_a_certificate_that_changes_is_served_without_a_restart(tmp_path):
    folder, ca = tmp_path / "tls", issue_ca(datetime.now(UTC))
    write_certificate(folder, ca)
    with serving(tmp_path, "--tls-dir", folder) as server:
        before, kept = serial(server), server.connect()
        assert post(kept)[0] == 200
        write_certificate(folder, ca)
        assert until(lambda: serial(server) != before)
        assert post(kept)[0] == 200
        kept.close()


def test_a_certificate_that_can_not_be_used_leaves_the_old_one_and_is_said_once(tmp_path):
    folder = tmp_path / "tls"
    write_certificate(folder)
    with serving(tmp_path, "--tls-dir", folder) as server:
        before = serial(server)
        folder.joinpath("tls.key").write_text("no key")
        assert [serial(server) for _ in range(3)] == [before] * 3
        said = [line for line in server.lines if line["event"] == "the serving certificate stays as it was"]
        assert len(said) == 1
        assert str(folder / "tls.key") in said[0]["reason"]


# The end


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_ends_it_with_0_and_its_folder_with_it(tmp_path, number):
    with serving(tmp_path) as server:
        assert server.ca.exists()
        server.process.send_signal(number)
        assert server.process.wait(IN_TIME) == 0
        assert not server.ca.parent.exists()


def test_both_processes_hear_an_interrupt_from_the_terminal_and_it_still_ends_with_0(tmp_path):
    with serving(tmp_path) as server:
        os.kill(worker_of(server), signal.SIGINT)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(IN_TIME) == 0


def test_half_open_connections_do_not_keep_it_from_ending(tmp_path):
    with serving(tmp_path) as server, server.plain() as sock:
        sock.sendall(b"\x16\x03\x01")
        server.review()
        assert server.stop() == 0


def test_while_it_ends_it_is_not_ready_and_still_answers_on_old_connections(tmp_path):
    # Once a second has gone by without a request it may be gone: where we are held up for as long, once more.
    assert until(lambda: still_answers(tmp_path))


def still_answers(folder):
    """Tell a server to end and ask it again; false where we came too late for that."""
    with serving(folder) as server, closing(server.connect()) as connection:
        assert post(connection)[0] == 200
        told = monotonic()
        server.process.terminate()
        try:
            assert until(lambda: server.probe("/readyz")[0] == 503)
            status, headers, _ = post(connection)
        except (OSError, http.client.HTTPException):
            assert monotonic() - told > QUIET, "it was gone too early"
            return False
        assert (status, headers["Connection"]) == (200, "close")
        assert server.process.wait(IN_TIME) == 0
    return True


def worker_of(server):
    """The worker's process: the one that was started last."""
    booted = [line["event"] for line in server.lines if line["event"].startswith("Booting worker")]
    return int(booted[-1].rpartition(" ")[2])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGQUIT], ids=lambda number: number.name)
def test_a_worker_that_ends_is_replaced_and_says_nothing_more_on_standard_output(tmp_path, number):
    with serving(tmp_path) as server:
        first = worker_of(server)
        os.kill(first, number)
        assert until(lambda: worker_of(server) != first)
        assert until(lambda: reviewed(server))
        assert server.probe("/healthz")[0] == 200
        assert server.ca.exists()
        assert server.stop() == 0
        assert server.process.stdout.read() == ""


def reviewed(server):
    try:
        return server.review()
    except (OSError, http.client.HTTPException):
        return None
