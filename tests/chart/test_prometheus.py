"""The chart's alerts and dashboard in a real Prometheus, which scrapes a real webhook and a real API server."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from tests.support import needs
from tests.support.controlplane.api import LOOPBACK
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.process import Process, free_ports, running
from tests.support.helm_chart import CHART, NAME, NAMESPACE, Object, find_one, render
from tests.support.longhorn import Longhorn
from tests.support.scenario import Scenario
from tests.support.webhook_process import Webhook

pytestmark = [pytest.mark.controlplane, pytest.mark.needs("prometheus")]

DASHBOARD = json.loads((CHART / "dashboards" / "kubevirt-scheduler.json").read_text())
QUERIES = {
    f"{panel['title']}, {target['refId']}": target["expr"]
    for panel in DASHBOARD["panels"]
    for target in panel.get("targets", ())
}
VARIABLES = {"$namespace": ".*", "$service": ".*", "$node": ".*", "$__rate_interval": "1m"}
DURATION = "kubevirt_scheduler_decision_duration_seconds_count"
# These panels show nothing until something goes wrong, or until a VM runs.
MAY_BE_EMPTY = "apiserver_", "> 0", "node_vms{"
INTERVAL = "1s"


class Prometheus:
    """Prometheus' HTTP API."""

    def __init__(self, port: int) -> None:
        self._url = f"http://{LOOPBACK}:{port}/api/v1"
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of a response. Raises urllib.error.HTTPError, for example for an invalid query."""
        with self._opener.open(f"{self._url}/{path}?{urllib.parse.urlencode(parameters)}", timeout=20) as response:
            return json.load(response)["data"]

    def query(self, expression: str) -> list[Object]:
        """Return the samples of an instant query."""
        found: list[Object] = self.get("query", query=expression)["result"]
        return found

    def rules(self) -> list[Object]:
        """Return the state of each alert."""
        return [rule for group in self.get("rules")["groups"] for rule in group["rules"]]

    def healthy_targets(self) -> list[str]:
        """Return the jobs whose last scrape succeeded."""
        return sorted(each["labels"]["job"] for each in self.get("targets")["activeTargets"] if each["health"] == "up")


@contextmanager
def prometheus(plane: ControlPlane, metrics: tuple[str, int], labels: Object, rules: Object) -> Iterator[Prometheus]:
    """Run Prometheus with the rules. `metrics` is the webhook's plain port, `labels` are those of its Service."""
    program = needs.find("prometheus")
    folder = plane.folder / "prometheus"
    folder.mkdir()
    (port,) = free_ports(1)
    api_server = urllib.parse.urlsplit(plane.url)
    scraped: list[Object] = [
        {
            "job_name": "webhook",
            "static_configs": [{"targets": ["{}:{}".format(*metrics)], "labels": labels | {"pod": "a"}}],
        },
        {
            "job_name": "apiserver",
            "scheme": "https",
            "tls_config": {"insecure_skip_verify": True},
            "authorization": {"credentials": plane.token},
            "static_configs": [{"targets": [api_server.netloc]}],
        },
    ]
    config = {
        "global": {"scrape_interval": INTERVAL, "evaluation_interval": INTERVAL, "scrape_timeout": INTERVAL},
        "rule_files": ["rules.yaml"],
        "scrape_configs": scraped,
    }
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    options = {
        "config.file": "prometheus.yaml",
        "storage.tsdb.path": "data",
        "web.listen-address": f"{LOOPBACK}:{port}",
    }
    command = [program, *(f"--{name}={value}" for name, value in options.items())]
    with running(Process("prometheus", command, f"http://{LOOPBACK}:{port}/-/ready", folder)):
        yield Prometheus(port)


@pytest.fixture(scope="module")
def monitored(plane: ControlPlane, longhorn: Longhorn, webhook: Webhook) -> Iterator[Prometheus]:
    """Prometheus with the chart's alerts, after the webhook has decided on a pod that is created."""
    scenario = Scenario(plane, longhorn, webhook)
    scenario.create(scenario.vm_pod("vm1"))
    rules = find_one(render({"prometheusRule": {"enabled": True}}), "PrometheusRule")["spec"]
    labels = {"namespace": NAMESPACE, "service": NAME}
    with prometheus(plane, (LOOPBACK, webhook._http), labels, rules) as running:
        plane.wait(lambda: running.healthy_targets() == ["apiserver", "webhook"], 30, "two scraped targets")
        plane.wait(lambda: all(rule["health"] == "ok" for rule in running.rules()), 30, "evaluated alerts")
        # Rates need two scrapes, and the duration of a decision that happened between them.
        scenario.create(scenario.vm_pod("vm2"))
        plane.wait(lambda: running.query(f"rate({DURATION}[1m]) > 0"), 30, "a rate")
        yield running
    scenario.close()


def test_prometheus_evaluates_each_alert_and_a_healthy_webhook_fires_no_critical_one(monitored: Prometheus) -> None:
    rules = monitored.rules()
    assert len(rules) > 20
    assert {rule["health"] for rule in rules} == {"ok"}
    critical = [rule for rule in rules if rule["labels"]["severity"] == "critical"]
    # Other tests stop webhooks and API servers, so a call may have failed earlier on this plane.
    assert {rule["name"] for rule in critical if rule["state"] == "firing"} <= {"KubevirtSchedulerRejected"}


def test_each_query_of_the_dashboard_runs_and_returns_data(monitored: Prometheus) -> None:
    empty = []
    for panel, query in QUERIES.items():
        expression = query
        for variable, value in VARIABLES.items():
            expression = expression.replace(variable, value)
        if not monitored.query(expression) and not any(part in expression for part in MAY_BE_EMPTY):
            empty.append(panel)
    assert empty == []
