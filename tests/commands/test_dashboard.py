"""`dashboard` serves the report's page on loopback, to its own addresses only, and follows the cluster."""

import http.client
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.commands.browser import chromium
from tests.support.builders import Object, labeled_namespace, node, storage
from tests.support.command_line import run_cli
from tests.support.controlplane.process import free_ports
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
def dashboard(*options: str, errors: str = "") -> Iterator[int]:
    """Run the command, and yield its port. `errors` are the lines that it prints until Ctrl-C."""
    # A background job of a shell ignores SIGINT, and so do its children, unless `env` restores the default.
    command = ["env", "--default-signal=INT", SCRIPT, "dashboard", "-A", "--port", "0", "--interval", "1", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            words = process.stdout.readline()
            yield int(words.partition("http://127.0.0.1:")[2].partition("/")[0])
        finally:
            process.send_signal(signal.SIGINT)
            _, printed = process.communicate(timeout=60)
    assert (process.returncode, printed) == (130, f"{errors}Interrupted\n")


def get(port: int, path: str, host: str = "", site: str = "") -> tuple[int, Any, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Host": host, "Sec-Fetch-Site": site}
    connection.request("GET", path, headers={name: value for name, value in headers.items() if value})
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
        assert get(port, "/report.json")[0] == 200  # the report of this interval
        end = time.monotonic() + 20
        while status != 503 and time.monotonic() < end:
            status, _, content = get(port, "/report.json")
        assert (status, "pods is forbidden" in json.loads(content)["error"]) == (503, True)
        status, headers, content = get(port, "/")
        assert (status, headers["Refresh"], "pods is forbidden" in content) == (503, "1", True)


def test_another_site_and_abandoned_requests_cause_no_readings() -> None:
    """With 60 requests of one page, the dashboard read the cluster 45 times."""
    readings: list[int] = []

    def read() -> Object:
        readings.append(len(readings))
        return {"number": len(readings)}

    with PageServer(0, read, 60) as own:
        threading.Thread(target=own.serve_forever, daemon=True).start()
        port = own.server_port
        assert [get(port, "/report.json", site=site)[0] for site in ("cross-site", "same-site")] == [403, 403]
        assert readings == []
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda path: get(port, path, site="same-origin"), ["/", "/report.json"] * 30))
        assert {status for status, *_ in found} == {200}
        assert get(port, "/", site="none")[0] == 200
        own.shutdown()
    assert readings == [0]


def test_a_dashboard_prints_a_warning_once_and_its_page_repeats_it(server: ApiServer, tmp_path: Path) -> None:
    (closed,) = free_ports(1)
    url = f"http://user:s3cret@127.0.0.1:{closed}"
    words = f"no traffic from Prometheus http://127.0.0.1:{closed}: cannot reach it: Connection refused"
    options = ["--prometheus", url, "--kubeconfig", server.kubeconfig(tmp_path)]
    with dashboard(*options, errors=f"Warning: {words}\n") as port:
        end, times = time.monotonic() + 20, set[str]()
        while len(times) < 2 and time.monotonic() < end:
            found = json.loads(get(port, "/report.json")[2])
            assert found["warnings"] == [words]
            times.add(found["time"])


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
    minute = run_cli("dashboard", "--interval", "1m", "--kubeconfig", kubeconfig)
    assert (minute.exit_code, "'1m' is not a valid number of seconds" in minute.stderr) == (2, True)
    server.put(labeled_namespace("shop"))
    with dashboard("--kubeconfig", kubeconfig) as port:
        unknown = run_cli("dashboard", "-n", "shpo", "--port", port, "--kubeconfig", kubeconfig)
        assert (unknown.exit_code, 'namespace "shpo" not found; did you mean "shop"?' in unknown.stderr) == (2, True)
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

        page.open(f"http://127.0.0.1:{port}/#search=moved&vm=default/moved")
        title, focused = "document.querySelector('#details h2').textContent", "document.activeElement.textContent"
        wait_for(title, "⇄ default/moved")
        page.evaluate("document.querySelector('.vm').focus()")
        server.delete(vm_pod("moved", "node-b"))
        server.put(vm_pod("moved", "node-a"))
        wait_for(title, "● default/moved")
        assert page.evaluate(focused) == "●moved"
        assert page.evaluate("location.hash") == "#search=moved&vm=default%2Fmoved"
        server.forbidden.add(("list", "pods"))
        wait_for("document.querySelector('#source').textContent.includes('not updated since: ')", expected=True)
        server.forbidden.clear()
        wait_for("document.querySelector('#source').className", "")
        assert {error for error in page.errors if "503" not in error} == set()
