"""In random clusters, a VM moves if and only if the guard admits its target pod on the node of its storage."""

from copy import deepcopy
from typing import Any

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.support.builders import HOSTNAME, REQUIRED, Object
from tests.support.fleet import admits, inventory, vm
from tests.support.migrations import migratable
from tests.support.random_clusters import clusters, pods, storage
from webhook.fleet.move import Move, VmView, plan_move
from webhook.fleet.states import assess
from webhook.placement.affinity import CO_SCHEDULED_NODE, with_node
from webhook.placement.settings import Settings


@st.composite
def fleets(draw: st.DrawFn) -> tuple[Object, Object, Object, str, str]:
    """Draw a VM's pod, a cluster, the VM's storage, and two nodes: that of the storage, and that of the VM."""
    cluster = draw(clusters().filter(lambda each: len(each["nodes"]) > 1))
    target, source = draw(st.permutations([each["metadata"]["name"] for each in cluster["nodes"]]))[:2]
    return draw(pods()), cluster, draw(storage(target)), target, source


def running(pod: Object, node: str, *, pinned: bool) -> Object:
    """Return the pod as it runs on a node, with or without the webhook's pin to that node."""
    found = deepcopy(pod)
    found["metadata"] |= {"name": "virt-launcher-vm1-abcde", "namespace": "default", "uid": "uid-of-pod"}
    if pinned:
        found["metadata"]["annotations"] |= {CO_SCHEDULED_NODE: node}
        found["spec"]["affinity"] = with_node(found["spec"].get("affinity"), node, pin=True)
    found["spec"]["nodeName"] = node
    return found | {"status": {"phase": "Running"}}


def target_pod(pod: Object, hostname: str) -> Object:
    """Return the target pod of a migration as KubeVirt creates it."""
    found = deepcopy(pod)
    own = {"labelSelector": {"matchLabels": {"kubevirt.io/created-by": "uid-of-vm1"}}, "topologyKey": HOSTNAME}
    anti_affinity = found["spec"].setdefault("affinity", {}).setdefault("podAntiAffinity", {})
    anti_affinity[REQUIRED] = [*(anti_affinity.get(REQUIRED) or []), own]
    found["spec"]["nodeSelector"] = {HOSTNAME: hostname} | found["spec"].get("nodeSelector", {})
    return found


def hostname_of(cluster: Object, node: str) -> Any:
    (labels,) = [each["metadata"]["labels"] for each in cluster["nodes"] if each["metadata"]["name"] == node]
    return labels.get(HOSTNAME)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(fleet=fleets(), pinned=st.booleans())
def test_a_vm_moves_if_and_only_if_its_target_pod_can_be_scheduled(
    fleet: tuple[Object, Object, Object, str, str], pinned: bool
) -> None:
    pod, cluster, disk, target, source = fleet
    current = running(pod, source, pinned=pinned)
    existing = [*cluster["pods"], disk["pod"], current]
    vmi = migratable(node=source, spec={"affinity": pod["spec"].get("affinity")})
    found = inventory(*cluster["nodes"], *existing, disk["pvc"], disk["pv"], vm(), vmi)
    (machine,) = found.machines(Settings())
    status = assess(machine, found.store, Settings())
    result = plan_move(VmView(status, found.surroundings(Settings())), found.store)
    hostname = hostname_of(cluster, target)
    event("moves" if isinstance(result, Move) else result.word)
    source_node = found.store.node(source)
    may_leave = source_node is None or source_node.ready is not False
    admitted = may_leave and hostname and admits(found.store, target_pod(pod, hostname), target)
    assert isinstance(result, Move) == bool(admitted), result
