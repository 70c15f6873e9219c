"""Ctrl-C in the middle of a scenario leaves nothing behind in the cluster. A process receives it."""

from __future__ import annotations

import signal
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest

from tests.live.cluster import Cluster
from tests.live.namespace import LABEL
from tests.support.paths import ROOT

pytestmark = pytest.mark.controlplane


def test_a_drain_that_is_interrupted_leaves_nothing_behind(cluster: Cluster, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-s", f"--override-ini=cache_dir={tmp_path}"]
    command += ["tests/live/test_scenarios.py", "-k", "drained"]
    environment = dict(cluster.environment) | {"LIVE": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        begin = list(takewhile(lambda line: "draining" not in line, process.stdout))
        process.send_signal(signal.SIGINT)  # at once: a drain takes seconds
        end = process.stdout.read()
    assert process.returncode == pytest.ExitCode.INTERRUPTED, "".join([*begin, end])
    assert "| interrupted |" in end
    assert "deleting live-" in end  # so there was a namespace
    assert cluster.items("namespaces", "-l", LABEL) == []
    assert cluster.items("pv") == []
    assert [each["metadata"]["name"] for each in cluster.items("nodes") if "unschedulable" in each["spec"]] == []
