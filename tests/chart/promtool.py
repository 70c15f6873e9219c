"""Prometheus' own parser and evaluator of rules, `promtool`, from the Debian package `prometheus`."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.support import needs

Object = dict[str, Any]
RULES = "rules.yaml"


class PromtoolError(Exception):
    """The output of a failed promtool."""


def check_rules(folder: Path, rules: Object) -> None:
    """Parse the `spec` of a PrometheusRule, and write it into the folder. Raises PromtoolError."""
    (folder / RULES).write_text(yaml.safe_dump(rules))
    _promtool(folder, "check", "rules", RULES)


def firing_alerts(folder: Path, alert: Mapping[str, str], series: Mapping[str, str], at: str, count: int) -> None:
    """Play series, one value a minute, after `check_rules`. Raises PromtoolError if another number of alerts fires."""
    labels = ",".join(f'{name}="{value}"' for name, value in alert.items())
    expected = [{"labels": "{}", "value": count}] if count else []
    query = {"expr": f'count(ALERTS{{alertstate="firing",{labels}}})', "eval_time": at, "exp_samples": expected}
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [query],
    }
    played = {"rule_files": [RULES], "evaluation_interval": "1m", "tests": [test]}
    (folder / "test.yaml").write_text(yaml.safe_dump(played))
    _promtool(folder, "test", "rules", "test.yaml")


def _promtool(folder: Path, *arguments: str) -> str:
    command = [needs.find("promtool"), *arguments]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    if result.returncode:
        raise PromtoolError(result.stdout + result.stderr)
    return result.stdout
