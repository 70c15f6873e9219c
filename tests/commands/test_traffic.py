"""`report` and `recolocate` order VMs by the disk traffic that a Prometheus has, and say in one line if it has none."""

import gzip
import json
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import Result

from tests.support import needs
from tests.support.builders import Object, node, storage
from tests.support.command_line import run_cli
from tests.support.controlplane.api import LOOPBACK
from tests.support.controlplane.process import Process, free_ports, running
from tests.support.fake_api_server import ApiServer, body
from tests.support.fleet import installation, vm, vm_pod
from tests.support.migrations import kubevirt, migratable, migration_crd
from webhook.fleet import history, traffic
from webhook.reading.documents import BadInput
from webhook.reading.prometheus import ask

NAMES = ("idle", "quiet", "busy")  # of VMs, by their traffic
METRICS = {
    "kubevirt_vmi_storage_iops_read_total": 1,
    "kubevirt_vmi_storage_iops_write_total": 2,
    "kubevirt_vmi_storage_read_traffic_bytes_total": 1e6,
    "kubevirt_vmi_storage_write_traffic_bytes_total": 3e6,
}
RATES = {"idle": 0, "quiet": 1, "busy": 10}  # multiples of these per second


def samples() -> list[dict[str, Any]]:
    return [
        {
            "metric": {"namespace": "default", "name": name, "drive": "vda", "metric": metric},
            "value": [0, str(rate * factor)],
        }
        for name, factor in RATES.items()
        for metric, rate in METRICS.items()
    ]


def vector(result: Any) -> Object:
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


def script(server: ApiServer, content: Object | bytes | None = None, code: int = 200) -> str:
    """Give the next queries of Prometheus this response, by default the samples, and return the URL of the server."""
    server._scripts["list", "query"].clear()
    server.script("list", "query", *[body(vector(samples()) if content is None else content, code)] * 10)
    return server.url


@pytest.fixture
def run(server: ApiServer, tmp_path: Path) -> Callable[..., Result]:
    server.put(migration_crd(), kubevirt(), node("node-a"), node("node-b"), *installation())
    for name in NAMES:
        server.put(*storage(name), vm(name), migratable(name), vm_pod(name, "node-b", claims=[name]))
    kubeconfig = server.kubeconfig(tmp_path)
    return lambda *arguments: run_cli(*arguments, "--kubeconfig", kubeconfig)


def test_report_and_recolocate_begin_with_the_vm_that_makes_most_traffic(run: Any, server: ApiServer) -> None:
    prometheus = "--prometheus", script(server)
    found = json.loads(run("report", "-o", "json", *prometheus, "--prometheus-token", "sec\nret\n").stdout)
    query = server.last("list", "query")
    assert (query.headers["authorization"], query.query) == ("Bearer secret", {"query": traffic.query()})
    assert [(vm["name"], vm["traffic"]) for vm in found["vms"]] == [
        ("busy", {"operations": 30.0, "bytes": 40_000_000}),
        ("quiet", {"operations": 3.0, "bytes": 4_000_000}),
        ("idle", {"operations": 0.0, "bytes": 0}),
    ]
    words = "33 operations and 44.0 MB per second cross the network; 1 of the 2 VMs make 90% of it"
    assert found["summary"]["traffic"] == {
        "operations": 33.0, "bytes": 44_000_000, "vms": 2, "makers": 1, "text": words
    }  # fmt: skip
    table = run("report", *prometheus).stdout
    assert words in " ".join(table.split())
    rows = [line.split() for line in table.splitlines() if line.startswith(NAMES)]
    assert [(row[0], row[-3:-1]) for row in rows] == [
        ("busy", ["30", "40.0"]), ("quiet", ["3", "4.0"]), ("idle", ["0", "0.0"])
    ]  # fmt: skip
    lines = run("recolocate", *prometheus, "-o", "json").stdout.splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["busy", "quiet", "idle"]
    rows = [line.split() for line in run("recolocate", *prometheus).stdout.splitlines()]
    planned = [(row[1], *row[5:7]) for row in rows if row[:1] == ["default"]]
    assert planned == [("busy", "30", "40.0"), ("quiet", "3", "4.0"), ("idle", "0", "0.0")]


@pytest.mark.parametrize(
    ("options", "moved", "left_out"),
    [
        (["--min-iops", "3"], ["busy", "quiet"], 1),
        (["--min-throughput", "5"], ["busy"], 2),
        (["--min-iops", "31", "--min-throughput", "4"], ["busy", "quiet"], 1),
        (["--min-throughput", "40", "quiet", "busy"], ["busy"], 1),
    ],
)
def test_recolocate_moves_only_what_is_worth_it(
    run: Any, server: ApiServer, options: list[str], moved: list[str], left_out: int
) -> None:
    found = run("recolocate", "--prometheus", script(server), "-o", "json", *options)
    assert [json.loads(line)["name"] for line in found.stdout.splitlines()] == moved
    assert f"have less disk traffic over the network: {left_out}\n" in found.stderr


def test_the_page_of_all_vms_has_the_last_day_and_reads_it_in_one_more_query(run: Any, server: ApiServer) -> None:
    prometheus = "--prometheus", script(server)
    values = [[1_700_000_000, "3"], [1_700_000_900, "2"]]
    server.script("list", "query_range", *[body(vector([{"metric": {}, "values": values}]))] * 2)
    page = run("report", "-A", "-o", "html", *prometheus).stdout
    assert '"history":{"apart":[[1700000000,3],[1700000900,2]]}' in page
    query = server.last("list", "query_range").query
    assert (query["query"], query["step"]) == (history.QUERY, "900")
    assert int(query["end"]) - int(query["start"]) == 24 * 60 * 60
    assert time.time() - int(query["end"]) < 1800
    for options in (["-n", "default", "-o", "html"], ["-A", "-o", "json"], ["-A"]):
        assert run("report", *options, *prometheus).exit_code == 0
    assert [request.plural for request in server.requests].count("query_range") == 1


def test_without_traffic_a_limit_on_it_is_refused(run: Any, server: ApiServer) -> None:
    refused = run("recolocate", "--min-iops", "9")
    assert (refused.exit_code, "--min-throughput require --prometheus" in refused.stderr) == (2, True)
    prometheus = script(server, vector([]))
    refused = run("recolocate", "--min-throughput", "9", "--yes", "--prometheus", prometheus)
    assert (refused.exit_code, "so no VM can be selected" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("status", "content", "problem"),
    [
        (401, b"Unauthorized", "status 401: no response of Prometheus' API; specify --prometheus-token"),
        (403, b"{}", "status 403: no response of Prometheus' API; the token lacks the right to query"),
        (302, b"", "status 302: no response of Prometheus' API"),
        (422, b'{"status": "error", "error": "query timed out"}', "status 422: query timed out"),
        (200, b"<html>", "status 200: no response of Prometheus' API"),
        (200, vector([]), "it has no kubevirt_vmi_storage_iops_read_total of the last 10m"),
    ],
)
def test_without_data_the_order_stays_and_one_line_says_why(
    run: Any, server: ApiServer, status: int, content: Object | bytes, problem: str
) -> None:
    result = run("report", "--prometheus", script(server, content, status))
    assert result.exit_code == 0
    assert result.stderr == f"Warning: no traffic from Prometheus {server.url}: {problem}\n"
    assert result.stdout == run("report").stdout
    wrong = run("report", "--prometheus", "prometheus:9090")
    assert (wrong.exit_code, "expected a URL such as http://" in wrong.stderr) == (2, True)
    (port,) = free_ports(1)
    unreachable = run("recolocate", "--prometheus", f"http://{LOOPBACK}:{port}")
    assert f"Prometheus http://{LOOPBACK}:{port}: cannot reach it: " in unreachable.stderr
    assert unreachable.exit_code == 0


class UnusableAnswers(BaseHTTPRequestHandler):
    """A packed answer, an endless one, and one that trickles, by the query."""

    received: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        """Answer, until the client closes the connection, for 10 s at most."""
        self.received.append(self.headers["Authorization"])
        kind = self.path.rpartition("=")[2]
        content = {"packed": gzip.compress(b'{"status": "success"}'), "endless": b"x" * 65536, "trickling": b" "}[kind]
        self.send_response(200)
        if kind == "packed":
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        end = time.monotonic() + 10
        with suppress(OSError):
            self.wfile.write(content)
            while kind != "packed" and time.monotonic() < end:
                time.sleep(0.1 if kind == "trickling" else 0)
                self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.mark.parametrize(
    ("kind", "timeout", "problem"),
    [
        ("packed", 30, "no response of Prometheus' API"),
        ("endless", 30, "its response exceeds 64 MiB"),
        ("trickling", 1, "its response takes longer than 1 s"),
    ],
)
def test_a_packed_endless_or_trickling_answer_of_prometheus_is_an_error(
    kind: str, timeout: float, problem: str
) -> None:
    """Two of them took 1 GB, and the last one for ever. The password of the URL goes to Prometheus only."""
    UnusableAnswers.received.clear()
    with ThreadingHTTPServer((LOOPBACK, 0), UnusableAnswers) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://user:s3cret@{LOOPBACK}:{server.server_port}"
        begun = time.monotonic()
        try:
            with pytest.raises(BadInput, match=problem):
                ask(url, "", kind, timeout=timeout)
        finally:
            server.shutdown()
        assert time.monotonic() - begun < 8
    assert UnusableAnswers.received == ["Basic dXNlcjpzM2NyZXQ="]


@pytest.mark.needs("openssl")
def test_the_certificate_of_prometheus_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=prometheus", "-addext", f"subjectAltName=IP:{LOOPBACK}"]
    request = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(certificate), *subject]
    subprocess.run([needs.find("openssl"), *request], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with ApiServer(context) as prometheus:
        with pytest.raises(BadInput, match="certificate verify failed"):
            ask(script(prometheus), "", "up")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert ask(prometheus.url, "", "up") == samples()


@pytest.mark.needs("prometheus", "promtool")
def test_a_real_prometheus_computes_the_rates(run: Any, tmp_path: Path) -> None:
    now, lines = int(time.time()), list[str]()
    for metric, rate in METRICS.items():
        family = metric.removesuffix("_total")
        lines.append(f"# TYPE {family} counter")
        for name, factor in RATES.items():
            labels = f'namespace="default",name="{name}",node="node-b",drive="{name}"'
            lines += [f"{metric}{{{labels}}} {rate * factor * at} {now - 600 + at}" for at in range(0, 600, 30)]
    lines.append("# TYPE kubevirt_scheduler_vms gauge")
    for pod, opted_in, number in (("a", "true", 4), ("b", "true", 4), ("a", "false", 1)):
        labels = f'pod="{pod}",state="Apart",opted_in="{opted_in}"'
        lines += [f"kubevirt_scheduler_vms{{{labels}}} {number} {now - back}" for back in range(3 * 3600, 0, -60)]
    (tmp_path / "metrics").write_text("\n".join([*lines, "# EOF\n"]))
    (tmp_path / "prometheus.yaml").write_text("{}")
    blocks = ["tsdb", "create-blocks-from", "openmetrics", "metrics", "data"]
    subprocess.run([needs.find("promtool"), *blocks], cwd=tmp_path, check=True, capture_output=True)
    (port,) = free_ports(1)
    options = {
        "config.file": "prometheus.yaml",
        "storage.tsdb.path": "data",
        "web.listen-address": f"{LOOPBACK}:{port}",
    }
    command = [needs.find("prometheus"), *(f"--{name}={value}" for name, value in options.items())]
    url = f"http://{LOOPBACK}:{port}"
    with running(Process("prometheus", command, f"{url}/-/ready", tmp_path)):
        found = json.loads(run("report", "-o", "json", "--prometheus", url).stdout)
        points = history.read_history(ask(url, "", history.QUERY, history.DAY, history.STEP))
    assert {count for _, count in points} == {5}
    assert 11 <= len(points) <= 13
    assert [vm["name"] for vm in found["vms"]] == ["busy", "quiet", "idle"]
    traffic_of_busy = found["vms"][0]["traffic"]
    assert traffic_of_busy["operations"] == pytest.approx(30, rel=0.05)
    assert traffic_of_busy["bytes"] == pytest.approx(40e6, rel=0.05)
