"""Random fleets: what `drain-check -o json` says of each VM is what its drain then does on the real control plane.

FLEETS is their number for each version of Longhorn, FIRST_FLEET the first seed: FLEETS=300 follows 600 fleets.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.support import crds
from tests.support.controlplane.api import Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.longhorn import Longhorn
from tests.support.measured import Measured
from tests.support.playground.simulation import KUBEVIRTS
from tests.support.random_drains import Fleet, follow
from tests.support.scenario import Scenario
from tests.support.webhook_process import Webhook

pytestmark = pytest.mark.controlplane

FLEETS = int(os.environ.get("FLEETS", "12"))
FIRST = int(os.environ.get("FIRST_FLEET", "0"))
AT_ONCE = int(os.environ.get("FLEETS_AT_ONCE", "6"))
SETTING: Object = {"apiVersion": "longhorn.io/v1beta2", "kind": "Setting"}


@pytest.fixture(params=[("v1.11.3", "None"), ("v1.12.0", "LiveMigrate")], ids=["keeps pods", "deletes pods"])
def cluster(
    request: pytest.FixtureRequest, plane: ControlPlane, longhorn: Longhorn, kubeconfig: Path
) -> Iterator[tuple[Webhook, str, str]]:
    version, strategy = request.param
    with ExitStack() as stack:
        options = {"longhorn_namespace": longhorn.namespace}
        webhook = stack.enter_context(Webhook(plane, f"random{version[-3]}", kubeconfig, options)).register()
        setting = SETTING | {"metadata": {"name": "current-longhorn-version"}, "value": version}
        plane.request("POST", longhorn.settings, setting)
        stack.callback(plane.request, "DELETE", f"{longhorn.settings}/current-longhorn-version")
        stack.callback(setattr, longhorn, "deletes_consumers", longhorn.deletes_consumers)
        longhorn.deletes_consumers = version == "v1.12.0"
        crds.install(plane, crds.crd("KubeVirt"))
        plane.create_namespace(f"kubevirt-{version[-3]}")
        kind = {"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": {"name": "kubevirt"}}
        path = KUBEVIRTS.replace("namespaces/kubevirt/", f"namespaces/kubevirt-{version[-3]}/")
        plane.request("POST", path, kind | {"spec": {"configuration": {"evictionStrategy": strategy}}})
        stack.callback(plane.request, "DELETE", f"{path}/kubevirt")
        installed = stack.enter_context(closing(Scenario(plane, longhorn, None)))
        webhook.show_installed(*installed.add_nodes(1))
        yield webhook, strategy, version


def test_each_vm_fares_as_drain_check_said(
    cluster: tuple[Webhook, str, str], plane: ControlPlane, longhorn: Longhorn, measured: Measured
) -> None:
    webhook, strategy, version = cluster
    counts, wrong = Counter[str](), dict[int, str]()

    def drain(seed: int) -> None:
        deletes = version == "v1.12.0"
        with Fleet(plane, longhorn, webhook, seed, default=strategy, deletes=deletes) as fleet:
            problems = follow(fleet)
            counts.update(fleet.counts)
            if problems:
                wrong.append("\n".join([f"seed {seed}: {fleet.design}", *problems, *fleet.log]))

    seeds = range(FIRST, FIRST + FLEETS)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(drain, seeds))
    # With several fleets at once, a busy machine can be quiet for longer than `settle` waits, although a step goes on.
    for seed in (doubtful := list(wrong)):
        del wrong[seed]
        drain(seed)
    measured(f"followed again alone, with Longhorn {version}: the fleets of the seeds {doubtful}")
    measured(f"{FLEETS} fleets with Longhorn {version}: {dict(sorted(counts.items()))}")
    assert not wrong, f"{len(wrong)} of {FLEETS} fleets\n\n" + "\n\n".join(wrong.values())
