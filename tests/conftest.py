"""What all tests share: one control plane with Longhorn's part and the webhook, and how tests spread over workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.controlplane import build
from tests.support.controlplane.plane import ControlPlane
from tests.support.longhorn import Longhorn
from tests.support.measured import FIGURE, Measured
from tests.support.scenario import World
from tests.support.webhook_process import NAMESPACE, Webhook, grant

# No property here is about time: by default an example that takes 0.2 s fails, and so it does where a machine stalls.
settings.register_profile(
    "unhurried",
    settings.get_profile(settings.get_current_profile_name()),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("unhurried")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Send every test that shares the control plane to one worker: two workers would start two."""
    for item in items:
        if "plane" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("control plane"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the figures that tests have measured."""
    reports = [report for found in terminalreporter.stats.values() for report in found]
    figures = [
        (report.nodeid, value)
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, value in report.user_properties
        if name == FIGURE
    ]
    if figures:
        terminalreporter.section("measured")
    for test, figure in figures:
        terminalreporter.line(f"{test.partition('::')[0]}: {figure}")


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Measured:
    """Print a figure at the end of the run."""
    return lambda figure: request.node.user_properties.append((FIGURE, figure))


@pytest.fixture(scope="session")
def plane(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    # The first run on a machine builds for minutes, and its progress is to be seen.
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        build.binaries()
    with ControlPlane(tmp_path_factory.mktemp("plane")) as plane:
        plane.create_namespace(NAMESPACE)
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
    """The webhook's own ServiceAccount, with the rights that it documents and no others."""
    return plane.write_kubeconfig(plane.folder / "webhook-kubeconfig", grant(plane, "webhook"))


@pytest.fixture(scope="session")
def webhook(plane: ControlPlane, longhorn: Longhorn, kubeconfig: Path) -> Iterator[Webhook]:
    """The webhook with its default settings, registered."""
    with Webhook(plane, "webhook", kubeconfig, {"longhorn_namespace": longhorn.namespace}) as webhook:
        yield webhook.register()


@pytest.fixture(scope="session")
def guardless(plane: ControlPlane, kubeconfig: Path) -> Iterator[Webhook]:
    """A second webhook, with the node guard off, that sees VMs only."""
    with Webhook(plane, "guardless", kubeconfig, {"node_guard": "false"}) as guardless:
        yield guardless.register(share_managers=False)


@pytest.fixture
def world(plane: ControlPlane, longhorn: Longhorn, webhook: Webhook) -> Iterator[World]:
    """A namespace of its own, whose VMs the webhook sees."""
    world = World(plane, longhorn, webhook)
    yield world
    world.close()
