"""`dashboard` serves the report's page on loopback, to its own addresses only, and follows the cluster."""

import http.client
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.commands.browser import chromium
from tests.support.builders import node, storage
from tests.support.command_line import run_cli
from tests.support.fake_api_server import ApiServer
from tests.support.fleet import installation, vm, vm_pod, vmi
from webhook.commands.report.dashboard import PageServer

SCRIPT = Path(sys.executable).with_name("kubevirt-scheduler")
FLEET = [*storage(), node("node-a"), node("node-b"), vm("moved"), vmi("moved"), vm("other", opt_in=False)]


@pytest.fixture
def server(server: ApiServer) -> ApiServer:
    server.put(*FLEET, vm_pod("moved", "node-b"), *installation())
    return server


@contextmanager
def dashboard(*options: str) -> Iterator[int]:
    """Run the command, and yield its port."""
    # A background job of a shell ignores SIGINT, and so do its children, unless `env` restores the default.
    command = ["env", "--default-signal=INT", SCRIPT, "dashboard", "-A", "--port", "0", "--interval", "1", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            words = process.stdout.readline()
            yield int(words.partition("http://127.0.0.1:")[2].partition("/")[0])
        finally:
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "Interrupted\n")


def get(port: int, path: str, host: str = "") -> tuple[int, Any, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path, headers={"Host": host} if host else {})
    response = connection.getresponse()
    content = response.read().decode()
    connection.close()
    assert (response.headers["X-Content-Type-Options"], response.headers["Cache-Control"]) == ("nosniff", "no-store")
    return response.status, response.headers, content


def test_only_the_page_and_its_report_are_served_and_only_by_their_own_names(server: ApiServer, tmp_path: Path) -> None:
    with dashboard("--kubeconfig", server.kubeconfig(tmp_path)) as port:
        status, headers, page = get(port, "/")
        assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert "connect-src 'self'" in page
        status, headers, content = get(port, "/report.json?", f"localhost:{port}")
        assert (status, headers["Content-Type"]) == (200, "application/json; charset=utf-8")
        assert [each["state"] for each in json.loads(content)["vms"]] == ["Apart", "Stopped"]
        for path in ("/kubeconfig", "/../etc/passwd", "/report.jsonx"):
            assert get(port, path)[0] == 404
        before = len(server.requests)
        for host in ("attacker.example", f"attacker.example:{port}", "127.0.0.1", f"127.0.0.1.nip.example:{port}"):
            assert get(port, "/report.json", host)[0] == 421
        assert len(server.requests) == before
        server.forbidden.add(("list", "pods"))
        status, _, content = get(port, "/report.json")
        assert (status, "pods is forbidden" in json.loads(content)["error"]) == (503, True)
        status, headers, content = get(port, "/")
        assert (status, headers["Refresh"], "pods is forbidden" in content) == (503, "1", True)


def test_the_default_port_of_http_may_be_omitted() -> None:
    with PageServer(0, lambda: {}, 1) as own:  # noqa: PIE807 (a report, not a type)
        own.hosts = {"localhost:80"}
        threading.Thread(target=own.serve_forever, daemon=True).start()
        codes = [get(own.server_port, "/report.json", host)[0] for host in ("localhost", "localhost:80", "other", "")]
        own.shutdown()
    assert codes == [200, 200, 421, 421]


def test_a_cluster_or_a_port_that_can_not_be_used_ends_the_command(server: ApiServer, tmp_path: Path) -> None:
    kubeconfig = server.kubeconfig(tmp_path)
    both = run_cli("dashboard", "-A", "-n", "shop", "--kubeconfig", kubeconfig)
    assert (both.exit_code, "-A cannot be combined with -n" in both.stderr) == (2, True)
    wrong = run_cli("dashboard", "--prometheus", "localhost:9090", "--kubeconfig", kubeconfig)
    assert (wrong.exit_code, "expected a URL such as http://localhost:9090" in wrong.stderr) == (2, True)
    with dashboard("--kubeconfig", kubeconfig) as port:
        taken = run_cli("dashboard", "--port", port, "--kubeconfig", kubeconfig)
        assert (taken.exit_code, "specify another --port" in taken.stderr) == (2, True)
    server.forbidden.add(("list", "pods"))
    assert run_cli("dashboard", "--port", "0", "--kubeconfig", kubeconfig).exit_code == 2


@pytest.mark.needs("chromium")
def test_an_open_page_follows_the_cluster_and_keeps_what_it_shows(server: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "chromium").mkdir()
    with dashboard("--kubeconfig", server.kubeconfig(tmp_path)) as port, chromium(tmp_path / "chromium") as page:

        def wait_for(script: str, expected: Any) -> None:
            deadline = time.monotonic() + 60
            while (found := page.evaluate(script)) != expected:
                assert time.monotonic() < deadline, found
                page.evaluate("new Promise((done) => setTimeout(done, 100))")

        page.open(f"http://127.0.0.1:{port}/#name=moved&vm=default/moved")
        title, focused = "document.querySelector('#details h2').textContent", "document.activeElement.textContent"
        wait_for(title, "⇄ default/moved")
        page.evaluate("document.querySelector('.vm').focus()")
        server.delete(vm_pod("moved", "node-b"))
        server.put(vm_pod("moved", "node-a"))
        wait_for(title, "● default/moved")
        assert page.evaluate(focused) == "●moved"
        assert page.evaluate("location.hash") == "#name=moved&vm=default%2Fmoved"
        server.forbidden.add(("list", "pods"))
        wait_for("document.querySelector('#source').textContent.includes('not updated since: ')", expected=True)
        server.forbidden.clear()
        wait_for("document.querySelector('#source').className", "")
        assert {error for error in page.errors if "503" not in error} == set()
