"""A real Prometheus, from the Debian package `prometheus`, that scrapes a webhook and the API server."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml

from tests.support import needs
from tests.support.controlplane.api import LOOPBACK
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.process import Process, free_ports, running

Object = dict[str, Any]
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
