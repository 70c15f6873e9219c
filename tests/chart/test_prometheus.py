"""The chart's alerts and dashboard in a real Prometheus, which scrapes a real webhook and a real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.chart.prometheus import Prometheus, prometheus
from tests.support.controlplane.api import LOOPBACK
from tests.support.controlplane.plane import ControlPlane
from tests.support.helm_chart import CHART, NAME, NAMESPACE, find_one, render
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


@pytest.mark.parametrize("panel", QUERIES)
def test_each_query_of_the_dashboard_runs_and_returns_data(monitored: Prometheus, panel: str) -> None:
    expression = QUERIES[panel]
    for variable, value in VARIABLES.items():
        expression = expression.replace(variable, value)
    samples = monitored.query(expression)
    if not any(part in expression for part in MAY_BE_EMPTY):
        assert samples


def test_a_created_pod_is_one_start_and_a_dry_run_is_none(
    monitored: Prometheus, plane: ControlPlane, longhorn: Longhorn, webhook: Webhook
) -> None:
    starts = 'sum(kubevirt_scheduler_decisions_total{subject="vm",action="inject",mode="required"})'

    def count(expression: str) -> float:
        return sum(float(sample["value"][1]) for sample in monitored.query(expression))

    before, dry_runs = count(starts), count("kubevirt_scheduler_dry_runs_total")
    scenario = Scenario(plane, longhorn, webhook)
    scenario.dry_run(scenario.vm_pod("vm1"))
    # The scenario has waited for the webhook with dry runs of its own.
    plane.wait(lambda: count("kubevirt_scheduler_dry_runs_total") > dry_runs, 20, "a counted dry run")
    assert count(starts) == before
    scenario.create(scenario.vm_pod("vm3"))
    plane.wait(lambda: count(starts) == before + 1, 20, "a counted start")
    scenario.close()
