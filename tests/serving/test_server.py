"""The `serve` process: reviews over TLS, probes over plain HTTP, startup errors, and shutdown."""

import http.client
import json
import os
import re
import signal
import socket
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from time import monotonic

import jsonpatch
import pytest

from tests.support.fake_api_server import ApiServer
from tests.support.server_process import JSON, REVIEWS, TIMEOUT, VM_START, run_server, run_to_exit, until, write_cluster
from tests.support.tls_client import client_hello, closed_by_server, receive_all, write_certificate_files
from webhook.serving.http.listeners import CannotListen, listen
from webhook.serving.http.loop import QUIET_PERIOD

SECRET = "not-a-real-passphrase"


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
        assert server.ca.parent.stat().st_mode & 0o777 == 0o700
        assert server.ca.with_name("tls.key").stat().st_mode & 0o777 == 0o600
        server.process.send_signal(signum)
        assert server.process.wait(TIMEOUT) == 0
        assert not server.ca.parent.exists()
        assert server.process.stdout.read() == ""  # one line, which `run_server` has read
        [line] = [line for line in server.log_lines if line["event"] == "decided"]
        decided = {"uid": sent["uid"], "vm": "vm1", "reason": "CoScheduled", "node": "node-a"}
        assert decided.items() <= line.items()


# Invalid requests


@pytest.mark.parametrize(
    "raw_request",
    [
        f"{SECRET} / HTTP/1.1\r\n\r\n",
        f"GET /{SECRET} HTTP/{SECRET}\r\n\r\n",
        f"GET / HTTP/1.1\r\n{SECRET}\r\n\r\n",
        f"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: {SECRET}\r\n\r\n",
        f"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n{SECRET}",
    ],
)
def test_invalid_http_gets_a_json_error_that_does_not_quote_it(server, raw_request):
    with server.connect_tls() as connection:
        connection.sendall(raw_request.encode())
        head, _, body = receive_all(connection).decode(errors="replace").partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 400 ")
    assert "application/json" in head
    assert json.loads(body) == {"error": "malformed HTTP request"}
    assert SECRET not in server.log


def test_the_debug_log_does_not_quote_requests(server):
    body = REVIEWS.joinpath("share-manager-avoiding-a-node.json").read_bytes()
    cut = body.index(SECRET.encode())
    head = "POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
    before = len(server.log_lines)
    for start in (SECRET, head.format(len(body) + 1), head.format(cut)):
        with server.connect_tls() as connection:
            connection.sendall(start.encode() + body[: cut + len(SECRET)])
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
        ]
        with ThreadPoolExecutor() as pool:
            results = list(pool.map(lambda row: run_to_exit(*row[1], **row[2]), rows))
        for (sentence, *_), result in zip(rows, results, strict=True):
            assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
            assert result.stderr.startswith("Error: ")
            assert sentence in result.stderr


@pytest.mark.parametrize("address", ["192.0.2.1", "no.such.host.invalid", "", "bücher..example", "x" * 300])
def test_an_address_that_cannot_be_bound_is_reported(address):
    with pytest.raises(CannotListen, match=f"^cannot listen on {address}:0: "):
        listen(address, 0)


# Shutdown


HEAD = b"POST /mutate?timeout=10s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


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
        assert server.ca.exists()
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
        os.kill(server.worker_pid(), signal.SIGSEGV)
        assert until(lambda: "was sent SIGSEGV" in server.log)


def try_review(server):
    try:
        return server.review()
    except (OSError, http.client.HTTPException):
        return None
