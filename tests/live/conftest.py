"""The cluster of the scenarios: the playground's in `make test`, and that of KUBECONFIG in `make test-live`."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.live.cluster import Cluster, CommandError, real_cluster
from tests.live.namespace import Namespace, wait_deleted
from tests.support.paths import CHART
from tests.support.playground.process import environment_of, playground

IS_REAL = os.environ.get("LIVE") == "1"
VERSIONS = pytest.StashKey[str]()
INSTALL = ("kubevirt-scheduler", str(CHART), "--namespace=kubevirt-scheduler", "--create-namespace", "--wait")
OPTIONS = {"STORAGE_CLASS": "longhorn", "SETTLE": "2", "PATIENCE": "120", "GOGC": "off"}
OUTCOMES = ("failed", "skipped", "passed")  # the worst one of a scenario's three phases counts


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if IS_REAL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it ends a run as Ctrl-C does
        try:
            cluster = real_cluster()
            request.config.stash[VERSIONS] = cluster.versions()
        except (CommandError, LookupError) as error:
            pytest.exit(f"the scenarios need KubeVirt, Longhorn and the webhook: {error!r}", returncode=2)
        yield cluster
        wait_deleted(cluster)
        return
    variables = tmp_path_factory.mktemp("playground") / "variables"
    with playground(variables):
        cluster = Cluster(environment_of(variables) | OPTIONS)
        cluster.run("helm", "install", *INSTALL, "--set=image.repository=registry.example/kubevirt-scheduler")
        yield cluster


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    print(f"\n{title(request.node.nodeid)}", flush=True)
    with Namespace(cluster) as namespace:
        yield namespace


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Add to the report of a failed scenario what is in its namespace."""
    report = yield
    if report.failed and call.when == "call" and (namespace := getattr(item, "funcargs", {}).get("namespace")):
        report.sections.append((f"namespace {namespace.name}", namespace.describe()))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print a table that an issue can quote."""
    if not IS_REAL:
        return
    rows: dict[str, list[pytest.TestReport]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                rows.setdefault(report.nodeid, []).append(report)
    terminalreporter.section("for an issue")
    terminalreporter.line(config.stash.get(VERSIONS, ""))
    terminalreporter.line("\n| scenario | result | seconds | seen |\n| --- | --- | ---: | --- |")
    for nodeid, reports in rows.items():
        result = min((each.outcome for each in reports), key=OUTCOMES.index)
        if result == "passed" and "call" not in {each.when for each in reports}:
            result = "interrupted"
        seconds = sum(each.duration for each in reports)
        terminalreporter.line(f"| {title(nodeid)} | {result} | {seconds:.0f} | {'; '.join(seen(reports))} |")


def title(nodeid: str) -> str:
    return nodeid.rpartition("::test_")[2].replace("_", " ")


def seen(reports: list[pytest.TestReport]) -> Iterator[str]:
    for report in reports:
        if report.outcome == "skipped":
            yield report.longrepr[2].removeprefix("Skipped: ")  # type: ignore[index]
        elif report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            yield (crash.message if crash else report.longreprtext).strip().partition("\n")[0]
        elif report.when == "call":
            yield from (str(value) for name, value in report.user_properties if name == "seen")
