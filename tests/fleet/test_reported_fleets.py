"""Fleets for which the tools once said what did not happen, as somebody found by following it. Here in small."""

from tests.fleet.test_advice import said
from tests.fleet.test_drain import KEEPS, NODES, drain, on, site
from tests.support.builders import Object, node_terms, share_manager_pod, storage, storage_class
from tests.support.fleet import status, vm
from webhook.fleet.drain import commands, order_drain
from webhook.fleet.simulation.events import words_of

ONLY_HERE = node_terms(
    {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-a"]}]}
)
NAMES = ("web-1", "web-2")


def limited(name: str) -> list[Object]:
    """Build the storage of a StorageClass that allows its share-managers on node-a only."""
    return [*storage(name)[:2], share_manager_pod(f"vol-{name}", node="node-a", affinity=ONLY_HERE)]


def test_vms_whose_share_managers_have_no_other_node_are_stopped_started_and_brought_back() -> None:
    """Said: "Restarts", and an order without a step that brings them back. They had no disk until `uncordon`."""
    fleet = [each for name in NAMES for each in (*limited(name), *on("node-a", name, name=name, strategy=""))]
    hangs = "Restarts, then I/O hangs until uncordon"
    found = drain(*NODES, *fleet, longhorn=KEEPS)
    assert {each.status.machine.name: words_of(each.events) for each in found.vms} == dict.fromkeys(NAMES, hangs)
    ordered = order_drain(site(*NODES, *fleet, longhorn=KEEPS), ["node-a"])
    assert [command for command, _ in commands(ordered)] == [
        "kubectl cordon node-a",
        *(f"virtctl stop {name} -n default" for name in NAMES),
        "kubectl drain node-a --ignore-daemonsets --delete-emptydir-data",
        "kubectl uncordon node-a",
        *(f"virtctl start {name} -n default" for name in NAMES),
        "kubevirt-scheduler recolocate web-1 web-2 -n default --yes",
    ]
    assert {words_of(each.events) for each in ordered.vms} == {"Stops until it is started, then may migrate"}


def test_a_share_manager_does_not_follow_a_vm_that_was_opted_in_after_its_start() -> None:
    """Said: "its share-manager follows it if it migrates first". KubeVirt copies no annotation to a running pod."""
    opted_in_later = [vm(), *on("node-a", "disk1", opt_in=False)[1:]]
    (found,) = drain(*NODES, *storage(), *opted_in_later).vms
    assert found.status.opted_in
    assert found.why == "to node-b or 1 more; its share-manager may start on any node"
    assert found.place == "MayBeApart"


def test_no_advice_is_to_create_a_claim_that_the_vm_itself_makes() -> None:
    """Said: "Create the claim". CDI adopts an empty claim of that name as the finished disk."""
    disk = {"name": "d0", "dataVolume": {"name": "vm1-root"}}
    found = status(*NODES, storage_class("longhorn"), vm(volumes=[disk]))
    assert said(found, *NODES) == "Claim vm1-root does not exist yet: kubectl describe datavolume vm1-root -n default."
