"""The Grafana dashboard: its layout and its variables. `test_alerts` parses its queries, `test_called` their names."""

from __future__ import annotations

import json
import re
from itertools import combinations
from typing import Any

import pytest

from tests.support.helm_chart import CHART, alert_rules, find_one, render

DASHBOARD: dict[str, Any] = json.loads((CHART / "dashboards" / "kubevirt-scheduler.json").read_text())
ROWS = [each for each in DASHBOARD["panels"] if each["type"] == "row"]
FOLDED = [each for row in ROWS for each in row["panels"]]
SHOWN = [each for each in DASHBOARD["panels"] if each["type"] != "row"]
PANELS = SHOWN + FOLDED
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
VARIABLES = {each["name"]: each for each in DASHBOARD["templating"]["list"]}


def test_panels_have_distinct_ids_and_do_not_overlap() -> None:
    assert len({each["id"] for each in ROWS + PANELS}) == len(ROWS + PANELS)
    cells = [{(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
             for at in (each["gridPos"] for each in ROWS + SHOWN)]  # fmt: skip
    assert not any(one & other for one, other in combinations(cells, 2))
    assert max(x for each in cells for x, _ in each) < 24


def test_variables_select_the_namespace_of_the_webhook_the_release_and_the_node() -> None:
    assert set(VARIABLES) == {"datasource", "namespace", "service", "node"}
    assert all(each["label"] for each in VARIABLES.values())
    for query in (each for each in QUERIES if "apiserver_" not in each):
        assert query.count('namespace=~"$namespace",service=~"$service"') == query.count("{")
    assert all('node=~"$node"' in query for query in QUERIES if "node_vms{" in query)


def test_counts_are_per_hour_and_rates_follow_the_scrape_interval() -> None:
    for panel in PANELS:
        ranges = {
            found
            for target in panel["targets"]
            for found in re.findall(r"(\w+)\(\w+\{[^}]*\}\[([^]]+)\]", target["expr"])
        }
        assert ranges <= {("rate", "$__rate_interval"), ("increase", "1h")}
        # With a step of one hour, no start counts in two bars.
        assert (panel.get("interval") == "1h") is (("increase", "1h") in ranges)


def test_a_gauge_that_every_replica_exports_for_the_whole_fleet_is_not_added_up() -> None:
    for query in QUERIES:
        for before in re.findall(r"(.*?)kubevirt_scheduler_(?:node_)?vms\{", query):
            assert re.search(r"max( by \((state|node)\) )?\($", before)


@pytest.mark.controlplane  # Helm is built together with the control plane
def test_each_alert_has_a_panel_that_names_it_and_links_to_its_runbook_if_the_address_is_known() -> None:
    page = "https://docs.example/runbooks/"
    objects = render({"dashboard": {"enabled": True}, "prometheusRule": {"enabled": True, "runbookUrl": page}})
    shown = json.loads(find_one(objects, "ConfigMap")["data"]["kubevirt-scheduler.json"])
    assert [each["url"] for each in shown.pop("links")] == [page]
    panels = shown["panels"] + [inner for row in shown["panels"] for inner in row.get("panels", ())]
    linked = [link["url"] for panel in panels for link in panel.pop("links", ())]
    assert set(linked) == {rule["annotations"]["runbook_url"] for rule in alert_rules(objects)}
    assert shown == DASHBOARD  # otherwise unchanged
