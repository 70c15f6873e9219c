"""Shared fixtures: a control plane with a fake Longhorn and the webhook, one of each for every xdist worker."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support import needs
from tests.support.controlplane import build
from tests.support.controlplane.plane import ControlPlane
from tests.support.kubevirt import install_crds
from tests.support.longhorn import Longhorn
from tests.support.measured import FIGURE, Measured
from tests.support.paths import ROOT
from tests.support.run_summary import write_summary
from tests.support.scenario import Scenario
from tests.support.webhook_process import NAMESPACE, Webhook, create_service_account

# Hypothesis fails an example that takes 0.2 s by default. No property here is about time, and machines stall.
settings.register_profile(
    "no-deadline",
    settings.get_profile(settings.get_current_profile_name()),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("no-deadline")

# `cluster` tests some lines of the pure rooms as well.
MEASURED_ROOMS = {"catalog", "certs", "cluster", "fleet", "placement"}

# xdist sets it, and the commands take it for the width of a terminal.
os.environ.pop("COLUMNS", None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the measured rooms, then with the files of the control plane: short files keep all workers busy then.

    A line that fills a cache runs once in a worker, so it must not run first in a test during which coverage pauses.
    """
    long = {item.path for item in items if item.get_closest_marker("controlplane")}
    items.sort(key=lambda item: (room_of(item) not in MEASURED_ROOMS, item.path not in long))


def room_of(item: pytest.Item) -> str:
    """The folder of a test."""
    return item.path.relative_to(ROOT / "tests").parts[0]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Pause coverage, which doubles the time of a test, for one that isn't to cover the pure rooms.

    The marker `no_cover` of pytest-cov pauses it for the call only: the fixtures, and pytest itself, take longer.
    """
    plugin = item.config.pluginmanager.getplugin("_cov")
    if not plugin or (room_of(item) in MEASURED_ROOMS and not item.get_closest_marker("hypothesis")):
        return (yield)
    plugin.cov_controller.pause()
    try:
        return (yield)
    finally:
        plugin.cov_controller.resume()


@pytest.hookimpl(tryfirst=True)  # before the fixtures of the test
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test if a program that it declares is missing. Under CI, fail it."""
    needs.declared = frozenset(name for mark in item.iter_markers("needs") for name in mark.args)
    missing = "; ".join(needs.advice(name) for name in sorted(needs.declared) if needs.is_missing(name))
    if missing and needs.under_ci():
        pytest.fail(missing, pytrace=False)
    if missing:
        pytest.skip(missing)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the reader of a run wants to know at its end."""
    reports = [report for found in terminalreporter.stats.values() for report in found]
    write_summary(reports, terminalreporter.line, terminalreporter.section)


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Measured:
    """A callable that records a figure, for printing at the end of the run."""
    return lambda figure: request.node.user_properties.append((FIGURE, figure))


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Pause the collector: a finalizer that it runs at the recursion limit fails, and pytest fails the test."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="session")
def plane(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    # The first run on a machine builds for minutes, so show its progress.
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        build.binaries()
    with ControlPlane(tmp_path_factory.mktemp("plane")) as plane:
        plane.create_namespace(NAMESPACE)
        # Always, so that no test depends on the tests before it: a webhook looks for missing CRDs only sometimes.
        install_crds(plane)
        yield plane


@pytest.fixture(scope="session")
def longhorn(plane: ControlPlane) -> Iterator[Longhorn]:
    longhorn = Longhorn(plane)
    longhorn.install()
    longhorn.start()
    yield longhorn
    longhorn.stop()


@pytest.fixture(scope="session")
def kubeconfig(plane: ControlPlane) -> Path:
    """A kubeconfig for the webhook's ServiceAccount, which has exactly the documented rights."""
    return plane.write_kubeconfig(plane.folder / "webhook-kubeconfig", create_service_account(plane, "webhook"))


@pytest.fixture(scope="session")
def webhook(plane: ControlPlane, longhorn: Longhorn, kubeconfig: Path) -> Iterator[Webhook]:
    """A registered webhook with default settings."""
    with Webhook(plane, "webhook", kubeconfig, {"longhorn_namespace": longhorn.namespace}) as webhook:
        yield webhook.register()


@pytest.fixture
def plain_scenario(plane: ControlPlane, longhorn: Longhorn) -> Iterator[Scenario]:
    """A namespace for this test only, for which no webhook is registered."""
    with closing(Scenario(plane, longhorn, None)) as scenario:
        yield scenario


@pytest.fixture
def scenario(plane: ControlPlane, longhorn: Longhorn, webhook: Webhook) -> Iterator[Scenario]:
    """A namespace for this test only, whose VMs the webhook handles."""
    with closing(Scenario(plane, longhorn, webhook)) as scenario:
        yield scenario
