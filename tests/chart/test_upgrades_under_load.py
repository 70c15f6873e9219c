"""Ten upgrades in a row while VMs start: none fails, and none starts unseen.

With `failurePolicy: Ignore`, as installed: what the webhook misses, nobody else would notice. No kubelet runs here, so
the rollouts are played by chart_release.py; the wait before SIGTERM is the chart's own.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.controlplane.plane import ControlPlane
from tests.support.helm_release import PATIENT, Release, Replicas
from tests.support.longhorn import Longhorn
from tests.support.measured import Measured
from tests.support.scenario import World
from tests.support.vm_starts import failed_open, vms_starting

pytestmark = pytest.mark.controlplane

# Each with --reuse-values, so that nothing changes but what is named; and how many replicas are to be replaced.
UPGRADES = (
    ("--set=webhook.timeoutSeconds=9", 0),
    ("--set=settings.affinityMode=preferred", 2),
    ("--set=webhook.excludedNamespaces={backup}", 0),
    ("--set=settings.steering=false", 2),  # a webhook selects nobody
    ("--set=service.annotations.team=storage", 0),
    ("--set=settings.steering=true", 2),  # and share-managers again
    ("--set=dashboard.enabled=true", 0),
    ("--set=settings.schedulerNames.old=default-scheduler", 2),  # and so another matchCondition
    ("--set=podDisruptionBudget.enabled=false", 0),
    ("--reset-values", 2),
)


@pytest.fixture
def replicas(plane: ControlPlane, longhorn: Longhorn) -> Iterator[Replicas]:
    del longhorn  # its custom resource is there
    release = Release(plane, "chart-upgrades").install(PATIENT)
    try:
        with Replicas(release) as replicas:
            plane.wait(release.is_called, 20, "the caBundle of both webhooks")
            yield replicas
    finally:
        release.uninstall()


def test_ten_upgrades_in_a_row_fail_no_creation_and_miss_none(
    plane: ControlPlane, longhorn: Longhorn, replicas: Replicas, measured: Measured
) -> None:
    world = World(plane, longhorn, None)
    try:
        plane.wait(lambda: world.decision("no-such-claim"), 20, "a decision")
        before = failed_open(plane)
        with vms_starting(world) as creations:
            replaced = []
            for change, _ in UPGRADES:
                replicas.release.upgrade(change, "--reuse-values" if "set=" in change else PATIENT)
                replaced.append(replicas.reconcile())
            statuses = replicas.statuses()
            last = creations.count
            plane.wait(lambda: creations.count > last + 10, 20, "VMs after the last replica has ended")
        missed = failed_open(plane) - before
    finally:
        world.close()
    measured(
        f"ten upgrades, {sum(replaced)} replicas replaced: of {creations.count} creations "
        f"{len(creations.failed)} failed, {len(creations.missed)} were not seen (the API server counts {missed:g})"
    )
    assert replaced == [count for _, count in UPGRADES]
    assert creations.failed == []
    # None may be: a bundle is never empty, an old replica answers until nobody calls it, a new one is ready before.
    assert (creations.missed, missed) == ([], 0)
    assert statuses == [0] * sum(replaced)
    assert replicas.complaints() == []
