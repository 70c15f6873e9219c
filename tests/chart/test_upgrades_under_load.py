"""Four upgrades in a row while VMs start: no creation fails, and the webhook sees every VM.

The release uses `failurePolicy: Ignore`, the default, so a missed VM causes no error. No kubelet runs here:
helm_release.py simulates the rollouts. The wait before SIGTERM is the chart's own.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.controlplane.plane import ControlPlane
from tests.support.helm_release import LONG_TIMEOUT, Release, Replicas
from tests.support.longhorn import Longhorn
from tests.support.measured import Measured
from tests.support.pod_stream import PodStream, fail_open_count
from tests.support.scenario import Scenario

pytestmark = pytest.mark.controlplane

# The option of each upgrade, and how many replicas the upgrade replaces. `--reuse-values` keeps all other values.
UPGRADES = (
    ("--set=webhook.timeoutSeconds=9,podDisruptionBudget.enabled=false", 0),
    # One webhook then matches no pod, and the names change the matchConditions of the other.
    ("--set=settings.steering=false,settings.schedulerNames.old=default-scheduler", 2),
    ("--set=service.annotations.team=storage,dashboard.enabled=true", 0),
    ("--reset-values", 2),
)


@pytest.fixture
def replicas(plane: ControlPlane, longhorn: Longhorn) -> Iterator[Replicas]:
    del longhorn  # only its CRDs are needed
    release = Release(plane, "chart-upgrades").install(LONG_TIMEOUT)
    try:
        with Replicas(release) as replicas:
            plane.wait(release.has_ca_bundle, 20, "the caBundle of both webhooks")
            yield replicas
    finally:
        release.uninstall()


def test_four_upgrades_in_a_row_fail_no_creation_and_miss_no_vm(
    plane: ControlPlane, plain_scenario: Scenario, replicas: Replicas, measured: Measured
) -> None:
    plane.wait(lambda: plain_scenario.decision("no-such-claim"), 20, "a decision")
    before = fail_open_count(plane)
    with PodStream.of_scenario(plain_scenario) as stream:
        replaced = []
        for change, _ in UPGRADES:
            replicas.release.upgrade(change, "--reuse-values" if "set=" in change else LONG_TIMEOUT)
            replaced.append(replicas.reconcile())
        exit_codes = replicas.exit_codes()
        last = stream.count
        plane.wait(lambda: stream.count > last + 10, 20, "VMs after the last replica has exited")
    missed = fail_open_count(plane) - before
    measured(
        f"four upgrades, {sum(replaced)} replicas replaced: of {stream.count} creations "
        f"{len(stream.failed)} failed, {len(stream.missed)} were not seen (the API server counts {missed:g})"
    )
    assert replaced == [count for _, count in UPGRADES]
    assert stream.failed == []
    # No VM may be missed: the bundle is never empty, a new replica is ready before an old one stops, and an old one
    # answers until no more calls reach it.
    assert (stream.missed, missed) == ([], 0)
    assert exit_codes == [0] * sum(replaced)
    assert replicas.error_lines() == []
