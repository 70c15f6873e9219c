"""A claim resolves to the node of its share-manager, and the claims of a VM elect one node."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.builders import (
    READERS,
    Object,
    catalog,
    claim,
    decision_for,
    injection_for,
    node,
    share_manager,
    share_manager_pod,
    storage,
    virt_launcher,
    volume,
)
from webhook.cluster.caches.pod_tables import MAX_MOUNTING
from webhook.cluster.caches.store import Store
from webhook.placement.objects.claims import MAX_CLAIMS
from webhook.placement.objects.facts import Pod
from webhook.placement.objects.pod import Manifest
from webhook.placement.reasons import ClaimFinding, Outcome, Reason, Source
from webhook.placement.resolve import MAX_USERS, resolve, resolve_all
from webhook.placement.settings import Settings

CLAIM_AND_PV = [claim(), volume()]


def resolved(*objects: Object) -> ClaimFinding:
    return resolve("disk1", "default", catalog(*objects), Settings())


@pytest.mark.parametrize(
    ("objects", "handle", "reason"),
    [
        pytest.param([], None, Reason.CLAIM_NOT_FOUND, id="a missing claim"),
        pytest.param([claim(volume="")], None, Reason.CLAIM_NOT_BOUND, id="an unbound claim"),
        pytest.param([claim(), volume(handle="")], None, Reason.NOT_LONGHORN, id="a PV without a handle"),
        pytest.param(
            [claim(), volume(namespace="victim"), share_manager()],
            None,
            Reason.CLAIM_NOT_BOUND,
            id="a PV of another namespace's claim",
        ),
        pytest.param(CLAIM_AND_PV, "vol-disk1", Reason.NO_SHARE_MANAGER, id="no share-manager"),
        pytest.param([claim()], "pvc-disk1", Reason.NO_SHARE_MANAGER, id="an unknown PV is resolved by its name"),
        *(
            pytest.param(
                [*CLAIM_AND_PV, share_manager(state=s)], "vol-disk1", Reason.SHARE_MANAGER_STOPPED, id=f"state {s}"
            )
            for s in ("stopped", "stopping", "Running", "tomorrow's")
        ),
        *(
            pytest.param(
                [*CLAIM_AND_PV, share_manager(state=s)], "vol-disk1", Reason.SHARE_MANAGER_FAILED, id=f"state {s}"
            )
            for s in ("error", "unknown")
        ),
        *(
            pytest.param(
                [*CLAIM_AND_PV, share_manager(state=s)], "vol-disk1", Reason.SHARE_MANAGER_STARTING, id=f"state {s!r}"
            )
            for s in ("starting", "", None)
        ),
        *(
            pytest.param(
                [*CLAIM_AND_PV, share_manager_pod(), *managers],
                "vol-disk1",
                Reason.SHARE_MANAGER_STARTING,
                id=f"an unbound share-manager pod, {len(managers)} ShareManager",
            )
            for managers in ([], [share_manager()])
        ),
        pytest.param(
            [*CLAIM_AND_PV, share_manager_pod(), share_manager(deleting=True)],
            "vol-disk1",
            Reason.SHARE_MANAGER_STOPPED,
            id="an unbound share-manager pod of a ShareManager being deleted",
        ),
        pytest.param(
            [claim(), volume(parameters={"migratable": "true"})],
            None,
            Reason.NO_SHARE_MANAGER_EVER,
            id="a migratable volume",
        ),
        pytest.param(
            [claim(volumeMode="Block"), volume(driver="rbd.csi.ceph.com", parameters={"migratable": "true"})],
            None,
            Reason.NOT_LONGHORN,
            id="a Block claim of another driver",
        ),
        *(
            pytest.param(objects, None, Reason.CLAIM_NOT_RWX, id=f"{name} without a share-manager")
            for name, objects in (
                ("ReadOnlyMany", [claim(modes=["ReadOnlyMany"]), volume()]),
                ("an unbound ReadOnlyMany claim", [claim(modes=["ReadOnlyMany"], volume="")]),
                ("share: true", [claim(modes=["ReadWriteOnce"]), volume(parameters={"share": "true"})]),
            )
        ),
        *(
            pytest.param(
                [*CLAIM_AND_PV, share_manager(state=state, owner=owner)],
                "vol-disk1",
                Reason.SHARE_MANAGER_UNASSIGNED,
                id=f"owner {owner!r} in state {state!r}",
            )
            for state, owner in (("running", ""), ("starting", None), ("", ""), (None, None))
        ),
    ],
)
def test_a_claim_without_a_node_has_a_reason(objects: list[Object], handle: str | None, reason: Reason) -> None:
    finding = resolved(*objects)
    assert (finding.volume, finding.node, finding.source, finding.reason) == (handle, None, None, reason)


RUNNING_POD = share_manager_pod(node="node-b")


@pytest.mark.parametrize(
    ("objects", "serving_node", "source"),
    [
        pytest.param([RUNNING_POD], "node-b", Source.SHARE_MANAGER_POD, id="the pod's node"),
        pytest.param([share_manager()], "node-a", Source.SHARE_MANAGER, id="the owner of a running ShareManager"),
        *(
            pytest.param(
                [share_manager_pod(node="node-b", phase=phase), share_manager()],
                "node-a",
                Source.SHARE_MANAGER,
                id=f"the owner while the pod is {phase}",
            )
            for phase in ("Succeeded", "Failed", "Unknown")
        ),
        pytest.param(
            [share_manager_pod(node="node-b", deleting=True), share_manager()],
            "node-a",
            Source.SHARE_MANAGER,
            id="the owner while the pod is terminating",
        ),
        pytest.param(
            [share_manager_pod(namespace="default", node="node-b"), share_manager()],
            "node-a",
            Source.SHARE_MANAGER,
            id="the owner beside a pod in another namespace",
        ),
    ],
)
def test_a_claim_resolves_to_the_node_of_its_share_manager(
    objects: list[Object], serving_node: str, source: Source
) -> None:
    assert resolved(*CLAIM_AND_PV, *objects) == ClaimFinding("disk1", "vol-disk1", serving_node, source)


@pytest.mark.parametrize(
    "objects",
    [
        pytest.param([claim(modes=["ReadOnlyMany"]), volume()], id="ReadOnlyMany"),
        pytest.param([claim(modes=["ReadWriteOnce"]), volume(parameters={"share": "true"})], id="share: true"),
    ],
)
def test_a_claim_that_is_not_rwx_counts_if_a_share_manager_serves_it(objects: list[Object]) -> None:
    finding = resolved(*objects, share_manager("vol-disk1"), share_manager("pvc-disk1"))
    assert (finding.node, finding.source, finding.reason) == ("node-a", Source.SHARE_MANAGER, None)


STARTING = [*CLAIM_AND_PV, share_manager(state="starting", owner="interim")]
OTHER_VM = virt_launcher("vm2", node="node-b", labels={"kubevirt.io/created-by": "vmi-2"})


@pytest.mark.parametrize(
    ("others", "overrides"),
    [
        ([], {}),
        ([OTHER_VM], {"steering": False}),
        ([virt_launcher("vm2", opt_in=None, node="node-b")], {}),
        ([virt_launcher("vm2")], {}),
    ],
    ids=["no other VM", "steering off", "a VM that is not opted in", "an unbound VM"],
)
def test_a_starting_share_manager_without_a_vm_to_follow_gives_no_node(others: list[Object], overrides: Object) -> None:
    decision = decision_for(virt_launcher(), *STARTING, *others, node("node-b"), node("interim"), **overrides)
    assert (decision.outcome, decision.reason, decision.node) == (Outcome.UNCHANGED, Reason.NO_SHARE_MANAGER, None)
    assert decision.claims[0].reason is Reason.SHARE_MANAGER_STARTING


DRIVERS_FIRST = virt_launcher(claims=["drivers", "disk1"], labels={"kubevirt.io/created-by": "vmi-1"})


def user_of_drivers(vmi: str, **rest: Any) -> Object:
    return virt_launcher(f"{vmi}-pod", claims=["drivers"], labels={"kubevirt.io/created-by": vmi}, **rest)


@pytest.mark.parametrize(
    ("user", "target", "conflict"),
    [
        pytest.param(user_of_drivers("vmi-2", node="node-c"), "node-a", False, id="a claim of another VM has no vote"),
        pytest.param(user_of_drivers("vmi-2", opt_in=None), "node-a", False, id="the other VM need not be opted in"),
        pytest.param(user_of_drivers("vmi-1", node="node-c"), "node-b", True, id="the VM's own pod is no other VM"),
        pytest.param(
            user_of_drivers("vmi-2", node="node-c", deleting=True), "node-b", True, id="a terminating pod is no user"
        ),
    ],
)
def test_a_claim_that_other_vms_mount_has_no_vote_beside_a_disk_of_the_vm(
    user: Object, target: str, conflict: bool
) -> None:
    objects = [*storage("drivers", "node-b"), *storage(), user, node(), node("node-b")]
    decision = decision_for(DRIVERS_FIRST, *objects)
    assert (decision.outcome, decision.node, decision.conflict) == (Outcome.PINNED, target, conflict)


def named(claim_name: str) -> Object:
    annotations = {"kubevirt-scheduler/co-schedule-claim": claim_name}
    return virt_launcher(claims=["disk1", "disk2", "disk3"], annotations=annotations)


COLD, BLOCK = [claim("own"), volume("own")], [claim("own", volumeMode="Block"), volume("own")]
RWO = [claim("own", modes=["ReadWriteOnce"]), volume("own", driver="local")]
STATE = [claim("state", labels={"persistent-state-for": "vm1"}), *storage("state", "node-b")[1:]]
USER = user_of_drivers("vmi-2", node="node-b")
# The ISO behind a static PV, which the claim of another namespace names.
STATIC = [
    claim("copy", namespace="other", volume="static"),
    volume("copy", namespace="other", name="static", handle="vol-drivers"),
    virt_launcher("other", namespace="other", claims=["copy"], node="node-b"),
]


@pytest.mark.parametrize(
    ("claims", "objects", "expected"),
    [
        pytest.param(["own", "drivers"], [*COLD, USER], Reason.COLD_START, id="a cold disk and a shared ISO"),
        pytest.param(["own", "drivers"], [*COLD, *STATIC], Reason.COLD_START, id="an ISO behind two PVs"),
        pytest.param(["own", "drivers"], [*BLOCK, USER], Reason.SHARED_CLAIM_ONLY, id="a Block disk and a shared ISO"),
        pytest.param(["own", "drivers"], [*RWO, USER], Reason.SHARED_CLAIM_ONLY, id="an RWO disk and a shared ISO"),
        pytest.param(["own", "state"], [*BLOCK], Reason.NO_SHARE_MANAGER, id="a Block disk and a vTPM"),
        pytest.param(["drivers"], [USER], "node-b", id="only a shared claim"),
        pytest.param(["own", "drivers"], COLD, "node-b", id="an ISO that no other VM mounts"),
    ],
)
def test_only_the_claims_of_the_highest_rank_decide(claims: list[str], objects: list[Object], expected: str) -> None:
    pod = virt_launcher(claims=claims, labels={"kubevirt.io/created-by": "vmi-1"})
    found = [*objects, *storage("drivers", "node-b"), *STATE, node("node-b"), node("node-c")]
    decision = decision_for(pod, *found)
    assert (decision.node or decision.reason) == expected
    assert decision.conflict is False


def test_a_shared_claim_beside_block_disks_is_named_with_the_line_that_lets_it_decide() -> None:
    objects = [*BLOCK, *storage("drivers", "node-b"), USER, node("node-b")]
    pod = virt_launcher(claims=["own", "drivers"])
    assert "kubevirt-scheduler/co-schedule-claim: drivers" in decision_for(pod, *objects).message
    pod["metadata"]["annotations"]["kubevirt-scheduler/co-schedule-claim"] = "drivers"
    assert decision_for(pod, *objects).outcome is Outcome.PINNED
    pod["metadata"]["annotations"]["kubevirt-scheduler/co-schedule-claim"] = "own"
    assert decision_for(pod, *objects).reason is Reason.NO_SHARE_MANAGER


def test_a_named_claim_without_a_node_gives_no_other_claim_a_vote() -> None:
    objects = [*storage(), *storage("disk2", "node-b"), claim("disk3"), node("node-b"), node()]
    injection = injection_for(named("disk3"), *objects)
    assert (injection.decision.reason, injection.decision.node) == (Reason.COLD_START, None)
    assert injection.decision.message == "the VM starts on any node, and the share-manager of claim disk3 follows it"
    assert injection.warnings == ()


def test_an_unknown_claim_name_warns_and_leaves_the_vote_to_all() -> None:
    injection = injection_for(named("dsik1"), *storage(), node())
    assert injection.decision.node == "node-a"
    (warning,) = injection.warnings
    assert "co-schedule-claim: the VM mounts no claim 'dsik1', so it has no effect" in warning


def test_claims_are_resolved_in_volume_order_and_once() -> None:
    store = catalog(claim("b"), volume("b"), *storage("a", "node-a"))
    findings = resolve_all(Manifest(virt_launcher(claims=["b", "a", "gone", "b"]), "default"), store, Settings())
    assert [(finding.claim, finding.node, finding.reason) for finding in findings] == [
        ("b", None, Reason.NO_SHARE_MANAGER),
        ("a", "node-a", None),
        ("gone", None, Reason.CLAIM_NOT_FOUND),
    ]


def test_a_cold_start_names_the_claims_whose_share_managers_follow_and_the_failed_ones() -> None:
    for second, message in (
        ([claim("disk2", volumeMode="Block")], "the share-manager of claim disk1 follows it"),
        ([claim("disk2")], "the share-managers of claims disk1, disk2 follow it"),
        ([claim("disk2"), share_manager("pvc-disk2", state="error")],
         "the share-manager of claim disk1 follows it; no node serves claim disk2 (ShareManagerFailed)"),
    ):  # fmt: skip
        decision = decision_for(virt_launcher(claims=["disk1", "disk2"]), *CLAIM_AND_PV, *second, node())
        assert decision.reason is Reason.COLD_START
        assert decision.message == f"the VM starts on any node, and {message}"


def test_without_steering_a_cold_start_says_that_the_share_manager_starts_anywhere() -> None:
    decision = decision_for(virt_launcher(), *CLAIM_AND_PV, steering=False)
    assert decision.reason is Reason.COLD_START
    assert decision.message == "the VM and the share-manager of claim disk1 start on any node"


def test_only_128_claims_of_a_pod_are_followed() -> None:
    """6,800 claims, in a review of 512 KiB, took 76 ms."""
    many = [f"c{number}" for number in range(MAX_CLAIMS + 1)]
    assert [
        each.claim for each in resolve_all(Manifest(virt_launcher(claims=many), "default"), catalog(), Settings())
    ] == many[:-1]
    decision = decision_for(virt_launcher(claims=["disk1", *many[:-1]]), *storage(), node())
    assert (decision.outcome, decision.reason) == (Outcome.PREFERRED, Reason.UNJUDGED)


@pytest.mark.parametrize("state", ["running", "starting"])
def test_a_namespace_full_of_pods_that_mount_the_claims_costs_a_review_little(state: str) -> None:
    """3,000 pods of one VMI that mount 100 claims took 425 ms; with a share-manager that starts, 11 ms a claim."""
    names, same_vmi = [f"c{number}" for number in range(50)], {"kubevirt.io/created-by": "vmi-1"}
    pods = [virt_launcher(f"copy-{number}", claims=names, labels=same_vmi, node="node-b") for number in range(300)]
    manifests = [each for name in names for each in (claim(name), volume(name))]
    manifests += [share_manager("vol-c0", state=state), node("node-b"), *pods]
    asked = 0

    store = Store(fact for each in manifests if (fact := READERS[each["kind"]](each)))
    mounting_pods = store.mounting_pods

    def count_pods(namespace: str, claim: str) -> Iterator[Pod]:
        nonlocal asked
        for pod in mounting_pods(namespace, claim):
            asked += 1
            yield pod

    store.mounting_pods = count_pods
    resolve_all(Manifest(virt_launcher(claims=names, labels=same_vmi), "default"), store, Settings())
    assert MAX_USERS < asked < MAX_USERS + 2 * MAX_MOUNTING
