"""Random fleets: what `drain-check`, `report` and `recolocate` say of each VM happens on the real control plane.

FLEETS is their number for each version of Longhorn, FIRST_FLEET the first seed: FLEETS=300 follows 600 fleets.
"""

from __future__ import annotations

import os
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import mean

import pytest

from tests.support import crds
from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.live_view import LiveView, ViewedPlane
from tests.support.longhorn import Longhorn
from tests.support.measured import Measured
from tests.support.migrations import migration_crd
from tests.support.playground.simulation import KUBEVIRTS
from tests.support.random_drains.fleet import Cluster, Fleet
from tests.support.random_drains.follow import follow
from tests.support.scenario import Scenario
from tests.support.webhook_process import Webhook

pytestmark = pytest.mark.controlplane

FLEETS = int(os.environ.get("FLEETS", "30"))
FIRST = int(os.environ.get("FIRST_FLEET", "0"))
AT_ONCE = int(os.environ.get("FLEETS_AT_ONCE", "8"))
REMOUNT_DELAY = 1.0  # seconds; in a cluster, 5
SETTING: Object = {"apiVersion": "longhorn.io/v1beta2", "kind": "Setting"}


@pytest.fixture(params=[("v1.11.3", "None"), ("v1.12.0", "LiveMigrate")], ids=["keeps pods", "deletes pods"])
def cluster(
    request: pytest.FixtureRequest, plane: ControlPlane, longhorn: Longhorn, kubeconfig: Path
) -> Iterator[Cluster]:
    version, strategy = request.param
    with ExitStack() as stack:
        options = {"longhorn_namespace": longhorn.namespace}
        webhook = stack.enter_context(Webhook(plane, f"random{version[-3]}", kubeconfig, options)).register()
        setting = SETTING | {"metadata": {"name": "current-longhorn-version"}, "value": version}
        plane.request("POST", longhorn.settings, setting)
        stack.callback(plane.request, "DELETE", f"{longhorn.settings}/current-longhorn-version")
        stack.callback(setattr, longhorn, "deletes_consumers", longhorn.deletes_consumers)
        longhorn.deletes_consumers = version == "v1.12.0"
        stack.callback(setattr, longhorn.remounts, "delay", longhorn.remounts.delay)
        longhorn.remounts.delay = REMOUNT_DELAY
        crds.install(plane, crds.crd("KubeVirt"), migration_crd())
        plane.create_namespace(f"kubevirt-{version[-3]}")
        kind = {"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": {"name": "kubevirt"}}
        path = KUBEVIRTS.replace("namespaces/kubevirt/", f"namespaces/kubevirt-{version[-3]}/")
        plane.request("POST", path, kind | {"spec": {"configuration": {"evictionStrategy": strategy}}})
        stack.callback(plane.request, "DELETE", f"{path}/kubevirt")
        installed = stack.enter_context(closing(Scenario(plane, longhorn, None)))
        webhook.show_installed(*installed.add_nodes(1))
        view = stack.enter_context(LiveView(plane))
        stack.enter_context(longhorn.reading(ViewedPlane(plane, view)))
        yield Cluster(plane, longhorn, webhook, view, strategy)


def test_each_vm_fares_as_was_said(cluster: Cluster, request: pytest.FixtureRequest, measured: Measured) -> None:
    counts, wrong = Counter[str](), dict[int, str]()
    seconds = list[float]()

    def try_fleet(seed: int) -> None:
        began = time.monotonic()
        try:
            with Fleet(cluster, seed) as fleet:
                if problems := follow(fleet, counts):
                    wrong[seed] = "\n".join([f"seed {seed}: {fleet.design}", *problems, *fleet.log, *fleet.errors()])
        except Exception:  # noqa: BLE001 (the other fleets go on)
            wrong[seed] = f"seed {seed}: {traceback.format_exc()}"
        seconds.append(time.monotonic() - began)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(try_fleet, range(FIRST, FIRST + FLEETS)))
    # With several fleets at once, a busy machine can be quiet for longer than `settle` waits, although a step goes on.
    for seed in (doubtful := sorted(wrong)):
        measured(f"{request.node.callspec.id}: followed again alone: {wrong.pop(seed).splitlines()[:4]}")
        try_fleet(seed)
    measured(f"{request.node.callspec.id}: {FLEETS} fleets, {mean(seconds):.0f} s each, again {doubtful}: {counts}")
    assert not wrong, f"{len(wrong)} of {FLEETS} fleets\n\n" + "\n\n".join(wrong.values())
