"""At a cold start, a VM prefers the nodes that have the data of its disk; at any other moment, a replica has no say."""

from typing import Any

import pytest

from tests.support.builders import (
    PREFERRED,
    REQUIRED,
    Object,
    apply_injection,
    claim,
    injection_for,
    node,
    node_terms,
    share_manager,
    storage,
    storage_class,
    virt_launcher,
    volume,
    without_injection,
)
from tests.support.fleet import longhorn_volume, replica
from webhook.placement.reasons import Outcome, Reason
from webhook.placement.settings import Action, ReplicaLocality

NODES = [node(name, labels={"disk": disk}) for name, disk in (("node-a", "ssd"), ("node-b", "ssd"), ("node-c", "hdd"))]
STOPPED = [claim(), volume(), share_manager(state="stopped"), *NODES]
REPLICAS = [replica("node-b"), replica("node-a"), replica("node-gone")]
TEXT = "and the share-manager of claim disk1, which is stopped, follows it if it can run there"
BOTH = ["node-a", "node-b"]


def preferred(pod: Object, *manifests: Object, **settings: Any) -> list[str]:
    """Return the nodes that the injected pod prefers for their replicas."""
    injection = injection_for(pod, *manifests, **settings)
    assert (injection.decision.reason, injection.decision.outcome) == (Reason.COLD_START, Outcome.UNCHANGED)
    found = apply_injection(pod, injection)
    affinity = found["spec"].get("affinity", {}).get("nodeAffinity", {})
    assert REQUIRED not in affinity
    nodes = list(injection.decision.replica_nodes)
    if settings.get("action") is not Action.OBSERVE:
        terms = [{"key": "metadata.name", "operator": "In", "values": [name]} for name in nodes]
        assert affinity.get(PREFERRED, []) == [{"weight": 50, "preference": {"matchFields": [term]}} for term in terms]
        assert apply_injection(found, injection_for(found, *manifests, **settings)) == found
        assert without_injection(found)["spec"].get("affinity", {"nodeAffinity": {}}) == {"nodeAffinity": {}}
    return nodes


def volume_of(locality: str, replicas: int = 3) -> Object:
    return longhorn_volume(locality=locality, replicas=replicas)


@pytest.mark.parametrize(
    ("locality", "replicas", "setting", "expected"),
    [
        ("best-effort", 3, "bestEffort", BOTH),
        ("disabled", 3, "bestEffort", []),
        ("disabled", 1, "bestEffort", BOTH),
        ("strict-local", 1, "bestEffort", BOTH),
        ("disabled", 3, "always", BOTH),
        ("best-effort", 3, "never", []),
    ],
)
def test_the_data_locality_and_the_setting_decide(
    locality: str, replicas: int, setting: str, expected: list[str]
) -> None:
    manifests = [*STOPPED, *REPLICAS, volume_of(locality, replicas)]
    assert preferred(virt_launcher(claims=["disk1"]), *manifests, replica_locality=ReplicaLocality(setting)) == expected


@pytest.mark.parametrize("settings", [{"steering": False}, {"action": Action.OBSERVE}])
def test_without_steering_and_in_observe_mode_no_node_is_preferred(settings: Object) -> None:
    manifests = [*STOPPED, *REPLICAS, volume_of("best-effort")]
    assert preferred(virt_launcher(claims=["disk1"]), *manifests, **settings) == []


@pytest.mark.parametrize(
    "other",
    [
        replica("node-c", failedAt="2026-08-01T12:00:00Z"),
        replica("node-c", healthyAt=""),
        replica("node-c", deleting=True),
        replica("node-c", volume="vol-other"),
    ],
    ids=["failed", "rebuilding", "deleted", "of another volume"],
)
def test_only_a_healthy_replica_of_the_volume_counts(other: Object) -> None:
    manifests = [*STOPPED, replica("node-b"), other, volume_of("best-effort")]
    assert preferred(virt_launcher(claims=["disk1"]), *manifests) == ["node-b"]


def test_a_node_that_the_guard_refuses_is_not_preferred_unless_it_is_off() -> None:
    full = [node("node-b", unschedulable=True) if one["metadata"]["name"] == "node-b" else one for one in STOPPED]
    manifests = [*full, *REPLICAS, volume_of("best-effort")]
    assert preferred(virt_launcher(claims=["disk1"]), *manifests) == ["node-a"]
    assert preferred(virt_launcher(claims=["disk1"]), *manifests, node_guard=False) == BOTH


def test_only_nodes_that_the_storage_class_admits_for_the_share_manager_are_preferred() -> None:
    limited = storage_class("ssd", parameters={"shareManagerNodeSelector": "disk:ssd"})
    stopped = [claim(storageClassName="ssd"), volume(), share_manager(state="stopped"), *NODES, limited]
    manifests = [*stopped, replica("node-b"), replica("node-c"), volume_of("best-effort")]
    injection = injection_for(virt_launcher(claims=["disk1"]), *manifests)
    assert injection.decision.replica_nodes == ("node-b",)
    assert injection.decision.message == (
        "the VM prefers nodes that match disk in (ssd), because the share-manager of claim disk1, which is stopped, "
        "can only run there; it prefers node-b, which has a replica of claim disk1"
    )
    terms = apply_injection(virt_launcher(claims=["disk1"]), injection)["spec"]["affinity"]["nodeAffinity"][PREFERRED]
    assert [term["weight"] for term in terms] == [100, 50]


def test_the_sentence_names_the_nodes_and_the_user_s_terms_stay() -> None:
    mine = node_terms({"matchExpressions": [{"key": "disk", "operator": "Exists"}]})
    pod = virt_launcher(claims=["disk1"], affinity=mine)
    injection = injection_for(pod, *STOPPED, *REPLICAS, volume_of("best-effort"))
    assert (
        injection.decision.message == f"the VM prefers node-a and node-b, which have a replica of claim disk1, {TEXT}"
    )
    assert (
        apply_injection(pod, injection)["spec"]["affinity"]["nodeAffinity"][REQUIRED] == mine["nodeAffinity"][REQUIRED]
    )


def test_of_several_disks_the_nodes_that_have_the_most_are_preferred() -> None:
    second = [claim("disk2"), volume("disk2"), share_manager("vol-disk2", state="stopped")]
    data = [volume_of("best-effort"), longhorn_volume("vol-disk2"), *REPLICAS, replica("node-b", "vol-disk2")]
    assert preferred(virt_launcher(claims=["disk1", "disk2"]), *STOPPED, *second, *data) == ["node-b"]
    elsewhere = [volume_of("best-effort"), longhorn_volume("vol-disk2", "disabled"), replica("node-c", "vol-disk2")]
    assert preferred(virt_launcher(claims=["disk1", "disk2"]), *STOPPED, *second, *elsewhere, *REPLICAS) == BOTH


def test_a_replica_has_no_say_for_a_volume_that_is_served_or_unknown() -> None:
    served = injection_for(
        virt_launcher(claims=["disk1"]), *storage(), *NODES, replica("node-b"), volume_of("best-effort")
    )
    assert (served.decision.node, served.decision.replica_nodes) == ("node-a", ())
    assert preferred(virt_launcher(claims=["disk1"]), *STOPPED, *REPLICAS) == []
