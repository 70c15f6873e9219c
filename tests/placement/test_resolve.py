"""A claim resolves to the node of its share-manager, and the claims of a VM elect one node."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.builders import (
    PREFERRED,
    REQUIRED,
    ZONE,
    Object,
    apply_injection,
    catalog,
    claim,
    decision_for,
    fact_of,
    injection_for,
    labeled_namespace,
    node,
    pod,
    share_manager,
    share_manager_pod,
    storage,
    storage_class,
    virt_launcher,
    volume,
)
from webhook.catalog.pod_tables import MAX_MOUNTING
from webhook.catalog.store import Store
from webhook.placement.objects.facts import Pod
from webhook.placement.objects.pod import MAX_CLAIMS, Manifest
from webhook.placement.reasons import ClaimFinding, Outcome, Reason, Source
from webhook.placement.resolve import MAX_USERS, resolve, resolve_all
from webhook.placement.settings import OptIn, Settings
from webhook.placement.votes import Choice, choose
from webhook.placement.wording import NO_ACTION, advice

CLAIM_AND_PV = [claim(), volume()]


def resolved(*objects: Object) -> ClaimFinding:
    return resolve("disk1", "default", catalog(*objects), Settings())


MIGRATABLE = {"migratable": "true"}
DYING_POD = share_manager_pod(node="node-b", deleting=True)
LOST_POD = share_manager_pod(node="node-b", phase="Unknown")
READ_ONLY, ONE_WRITER = claim(modes=["ReadOnlyMany"]), claim(modes=["ReadWriteOnce"])
# Each row: the objects, the volume that they lead to, and why it has no node.
WITHOUT_NODE = {
    "no claim": ([], None, Reason.CLAIM_NOT_FOUND),
    "an unbound claim": ([claim(volume="")], None, Reason.CLAIM_NOT_BOUND),
    "a PV without a handle": ([claim(), volume(handle="")], None, Reason.NOT_LONGHORN),
    # Another reason would tell how another tenant's PV is made.
    "a victim's PV": ([claim(), volume(namespace="victim"), share_manager()], None, Reason.CLAIM_NOT_BOUND),
    "a victim's migratable PV": (
        [claim(), volume(namespace="victim", parameters=MIGRATABLE)],
        None,
        Reason.CLAIM_NOT_BOUND,
    ),
    "a victim's PV without a handle": ([claim(), volume(namespace="victim", handle="")], None, Reason.CLAIM_NOT_BOUND),
    "an unknown PV, resolved by its name": ([claim()], "pvc-disk1", Reason.NO_SHARE_MANAGER),
    **{
        f"state {state!r}": ([*CLAIM_AND_PV, share_manager(state=state)], "vol-disk1", Reason.SHARE_MANAGER_STARTING)
        for state in ("starting", "", None)
    },
    "an unbound pod": ([*CLAIM_AND_PV, share_manager_pod()], "vol-disk1", Reason.SHARE_MANAGER_STARTING),
    # Longhorn moves the owner of a running share-manager away from a cordoned node. In a drain, its pod dies there.
    **{
        f"a running ShareManager, {name}": (
            [*CLAIM_AND_PV, pod, share_manager()],
            "vol-disk1",
            Reason.SHARE_MANAGER_STARTING,
        )
        for name, pod in (("unbound", share_manager_pod()), ("terminating", DYING_POD), ("phase Unknown", LOST_POD))
    },
    "migratable": ([claim(), volume(parameters=MIGRATABLE)], None, Reason.NO_SHARE_MANAGER_EVER),
    "a Block claim of another driver": (
        [claim(volumeMode="Block"), volume(driver="rbd.csi.ceph.com", parameters=MIGRATABLE)],
        None,
        Reason.NOT_LONGHORN,
    ),
    "ReadOnlyMany": ([READ_ONLY, volume()], None, Reason.CLAIM_NOT_RWX),
    "unbound, ReadOnlyMany": ([claim(modes=["ReadOnlyMany"], volume="")], None, Reason.CLAIM_NOT_RWX),
    "ReadWriteOnce": ([ONE_WRITER, volume()], None, Reason.CLAIM_NOT_RWX),
}


@pytest.mark.parametrize(("objects", "handle", "reason"), WITHOUT_NODE.values(), ids=WITHOUT_NODE)
def test_a_claim_without_a_node_has_a_reason(objects: list[Object], handle: str | None, reason: Reason) -> None:
    finding = resolved(*objects)
    assert (finding.volume, finding.node, finding.source, finding.reason) == (handle, None, None, reason)


OF_CLASS = {"storageClassName": "longhorn-rwx"}
WAITING_CLASS = {"provisioner": "driver.longhorn.io", "volumeBindingMode": "WaitForFirstConsumer"}


@pytest.mark.parametrize(
    ("objects", "sentence"),
    [
        ([], "was never created"),
        *(([share_manager(state=state)], "is stopped") for state in ("stopped", "stopping", "Running", "tomorrow's")),
        # Longhorn passes the state `error` in each replacement of a share-manager, and in each drain.
        *(([share_manager(state=state)], "is being replaced") for state in ("error", "unknown")),
        ([share_manager(state="error"), share_manager_pod(node="node-b", deleting=True)], "is being replaced"),
        *(
            ([share_manager(state=s, owner=o)], "has no owner yet")
            for s, o in (("running", ""), ("", ""), (None, None))
        ),
        ([share_manager_pod(), share_manager(deleting=True)], "is being deleted"),
    ],
)
def test_a_share_manager_without_a_pod_is_a_cold_start(objects: list[Object], sentence: str) -> None:
    injection = injection_for(virt_launcher(), *CLAIM_AND_PV, *objects)
    (finding,) = injection.decision.claims
    assert (finding.reason, finding.detail) == (Reason.NO_SHARE_MANAGER, sentence)
    assert (injection.decision.reason, injection.warnings) == (Reason.COLD_START, ())
    assert (
        f"the share-manager of claim disk1, which {sentence}, follows it if it can run there"
        in injection.decision.message
    )
    assert advice(injection.decision) == (NO_ACTION,)


MANAGER_POD = pod("longhorn-manager-x7k2p", "longhorn-system", node="node-c")


@pytest.mark.parametrize(
    "objects",
    [
        [MANAGER_POD, share_manager()],  # its pod has failed: the caches hold no finished pods
        *([DYING_POD, share_manager(state=state)] for state in ("running", "starting")),
        [LOST_POD, share_manager()],
    ],
    ids=["no pod", "terminating, running", "terminating, starting", "phase Unknown"],
)
def test_a_share_manager_that_is_being_replaced_follows_the_vm(objects: list[Object]) -> None:
    cluster = [*CLAIM_AND_PV, *objects, node()]
    decision = decision_for(virt_launcher(), *cluster)
    assert decision.claims[0].reason is Reason.SHARE_MANAGER_STARTING  # the review waits for its next pod
    assert (decision.outcome, decision.reason) == (Outcome.UNCHANGED, Reason.COLD_START)
    assert "the share-manager of claim disk1, which is being replaced, follows it" in decision.message
    assert "ShareManagerStarting" not in decision.message
    # It follows the opted-in VM that already runs. Its owner is an interim one.
    user = virt_launcher("vm2", node="node-b", labels={"kubevirt.io/created-by": "another"})
    decision = decision_for(virt_launcher(), *cluster, user, node("node-b"))
    assert (decision.outcome, decision.node) == (Outcome.PREFERRED, "node-b")
    assert decision.reason is Reason.SHARE_MANAGER_STARTING


@pytest.mark.parametrize(
    ("manifests", "reason"),
    [
        ([storage_class(**WAITING_CLASS)], Reason.NO_SHARE_MANAGER),
        ([storage_class(**WAITING_CLASS, parameters={"migratable": "true"})], Reason.CLAIM_NOT_BOUND),
        ([storage_class(**WAITING_CLASS | {"provisioner": "rbd.csi.ceph.com"})], Reason.CLAIM_NOT_BOUND),
        ([storage_class(**WAITING_CLASS | {"volumeBindingMode": "Immediate"})], Reason.NO_SHARE_MANAGER),
        ([], Reason.CLAIM_NOT_BOUND),
    ],
    ids=["Longhorn's", "a migratable volume", "another driver", "Immediate", "an unknown StorageClass"],
)
def test_a_first_start_with_a_claim_that_longhorn_will_provision_is_cold(
    manifests: list[Object], reason: Reason
) -> None:
    spec: Object = OF_CLASS | {"volume": ""}
    decision = decision_for(virt_launcher(), claim(**spec), *manifests)
    cold = reason is Reason.NO_SHARE_MANAGER
    assert decision.claims[0].reason is reason
    assert decision.reason is (Reason.COLD_START if cold else Reason.NO_SHARE_MANAGER)
    assert (
        "disk1, which starts with the claim's first consumer, follows it if it can run there" in decision.message
    ) is cold
    # Without ReadWriteMany, or in the mode Block, the volume will have no share-manager.
    for other in ({"modes": ["ReadWriteOnce"]}, {"modes": ["ReadOnlyMany"]}, {"volumeMode": "Block"}):
        assert decision_for(virt_launcher(), claim(**spec, **other), *manifests).reason is Reason.NO_SHARE_MANAGER


RUNNING_POD = share_manager_pod(node="node-b")
OF_ANOTHER_NAMESPACE = share_manager_pod(namespace="default", node="node-b")
SERVED = {
    "the pod's node": ([RUNNING_POD], "node-b", Source.SHARE_MANAGER_POD),
    "the owner of a running ShareManager": ([share_manager()], "node-a", Source.SHARE_MANAGER),
    "a pod in another namespace": ([OF_ANOTHER_NAMESPACE, share_manager()], "node-a", Source.SHARE_MANAGER),
    **{  # the caches have no finished pods
        f"the pod is {phase}": (
            [share_manager_pod(node="node-b", phase=phase), share_manager()],
            "node-a",
            Source.SHARE_MANAGER,
        )
        for phase in ("Succeeded", "Failed")
    },
}


@pytest.mark.parametrize(("objects", "serving_node", "source"), SERVED.values(), ids=SERVED)
def test_a_claim_resolves_to_the_node_of_its_share_manager(
    objects: list[Object], serving_node: str, source: Source
) -> None:
    assert resolved(*CLAIM_AND_PV, *objects) == ClaimFinding("disk1", "vol-disk1", serving_node, source)


def test_a_claim_that_is_not_rwx_counts_if_a_share_manager_serves_it() -> None:
    # ReadWriteOnce: of a static PV that has ReadWriteMany, too, or of a Longhorn volume with accessMode rwx.
    for found in (READ_ONLY, ONE_WRITER):
        finding = resolved(found, volume(), share_manager("vol-disk1"), share_manager("pvc-disk1"))
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


@pytest.mark.parametrize("server", [{"node": "node-b"}, {}], ids=["served", "starting"])
@pytest.mark.parametrize("by", ["namespace", "StorageClass", "annotation"])
def test_a_claim_that_a_pool_shares_decides_only_for_vms_with_their_own_annotation(by: str, server: Object) -> None:
    """12 of 12 VMs that boot from a containerDisk started on the node of the claim that they share."""
    opted_in = {"namespace": labeled_namespace(), "StorageClass": storage_class()}.get(by, node("node-c"))
    shared = [claim("drivers", **OF_CLASS), volume("drivers"), share_manager_pod("vol-drivers", **server)]
    objects = [*shared, user_of_drivers("vmi-2", node="node-b", opt_in=None), opted_in, node("node-b")]
    pod = virt_launcher(claims=["drivers"], opt_in="true" if by == "annotation" else None)
    decision = decision_for(pod, *objects, opt_in=OptIn.NAMESPACE, steering=False)
    decides = Reason.CO_SCHEDULED if server else Reason.NO_SHARE_MANAGER
    assert decision.reason is (decides if by == "annotation" else Reason.SHARED_CLAIM_ONLY)
    if by != "annotation":
        assert (decision.outcome, decision.node, decision.conflict) == (Outcome.UNCHANGED, None, False)
        assert f"co-schedule-claim: drivers (opted in by its {by})" in decision.message
    pod["metadata"]["annotations"]["kubevirt-scheduler/co-schedule-claim"] = "drivers"
    assert decision_for(pod, *objects, opt_in=OptIn.NAMESPACE, steering=False).reason is decides


def test_the_state_of_a_vtpm_does_not_decide_for_a_vm_of_a_pool() -> None:
    objects = [*storage("drivers", "node-b"), *STATE, USER, labeled_namespace(), node("node-b")]
    for claims, named in ((["state"], "state"), (["state", "drivers"], "drivers")):
        decision = decision_for(virt_launcher(claims=claims, opt_in=None), *objects, opt_in=OptIn.NAMESPACE)
        assert decision.reason is Reason.SHARED_CLAIM_ONLY
        assert f"co-schedule-claim: {named}" in decision.message


ZONES = [{"matchLabelExpressions": [{"key": ZONE, "values": ["zone-a", "zone-b"]}]}]
LIMITED = storage_class(parameters={"shareManagerNodeSelector": " disk:ssd; rack : 7"}, allowedTopologies=ZONES)


def test_at_a_cold_start_the_vm_prefers_the_nodes_where_the_share_manager_may_run() -> None:
    objects = [claim(**OF_CLASS), claim("disk2", **OF_CLASS), claim("disk3"), LIMITED]
    user = {"weight": 1, "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}
    both: list[Object] = [{}, {"nodeAffinity": {PREFERRED: [user]}}]
    for affinity in both:
        pod = virt_launcher(claims=["disk1", "disk2", "disk3"], affinity=affinity)
        injection = injection_for(pod, *objects)
        assert (injection.decision.outcome, injection.decision.node) == (Outcome.UNCHANGED, None)
        labels = f"disk in (ssd),rack in (7),{ZONE} in (zone-a,zone-b)"
        assert f"the VM prefers nodes that match {labels}" in injection.decision.message
        patched = apply_injection(pod, injection)
        *own, term = patched["spec"]["affinity"]["nodeAffinity"][PREFERRED]
        assert own == [user] * bool(affinity)
        expected = [("disk", ["ssd"]), ("rack", ["7"]), (ZONE, ["zone-a", "zone-b"])]
        expressions = [{"key": key, "operator": "In", "values": values} for key, values in expected]
        assert term == {"weight": 100, "preference": {"matchExpressions": expressions}}
        assert REQUIRED not in patched["spec"]["affinity"]["nodeAffinity"]
        assert injection_for(patched, *objects).patch is None
    served = injection_for(virt_launcher(), *objects, share_manager_pod("pvc-disk1", node="node-a"))
    assert ZONE not in str(served.patch)


def test_a_cold_start_names_no_preference_that_the_vms_node_selector_excludes() -> None:
    for selector, excluded in (({"disk": "hdd"}, True), ({"disk": "ssd", ZONE: "zone-b"}, False)):
        decision = decision_for(virt_launcher(nodeSelector=selector), claim(**OF_CLASS), LIMITED)
        assert ("the VM prefers nodes" in decision.message) is not excluded
        assert ("the VM's nodeSelector excludes nodes that match disk in (ssd)" in decision.message) is excluded


INVALID_SELECTORS = [
    "",
    " ",
    "disk",
    "disk:ssd;",
    "disk:ssd:x",
    "disk:ssd;rack",
    "-:ssd",
    "a/b/c:x",
    "disk:s sd",
    "/disk:x",
]


@pytest.mark.parametrize("selector", INVALID_SELECTORS)
def test_a_selector_that_longhorn_or_the_api_server_rejects_limits_nothing(selector: str) -> None:
    limited = storage_class(parameters={"shareManagerNodeSelector": selector})
    decision = decision_for(virt_launcher(), claim(**OF_CLASS), limited)
    assert (decision.reason, decision.claims[0].limits) == (Reason.COLD_START, ())


def test_a_shared_claim_beside_block_disks_is_named_with_the_line_that_lets_it_decide() -> None:
    objects = [*BLOCK, *storage("drivers", "node-b"), USER, node("node-b")]
    pod = virt_launcher(claims=["own", "drivers"])
    assert "kubevirt-scheduler/co-schedule-claim: drivers" in decision_for(pod, *objects).message
    pod["metadata"]["annotations"]["kubevirt-scheduler/co-schedule-claim"] = "drivers"
    assert decision_for(pod, *objects).outcome is Outcome.PINNED
    pod["metadata"]["annotations"]["kubevirt-scheduler/co-schedule-claim"] = "own"
    assert decision_for(pod, *objects).reason is Reason.NO_SHARE_MANAGER


def test_an_unknown_claim_name_warns_and_leaves_the_vote_to_all() -> None:
    annotations = {"kubevirt-scheduler/co-schedule-claim": "dsik1"}
    injection = injection_for(virt_launcher(annotations=annotations), *storage(), node())
    assert injection.decision.node == "node-a"
    (warning,) = injection.warnings
    assert "co-schedule-claim: the VM mounts no claim 'dsik1', so it has no effect" in warning


def test_claims_are_resolved_in_volume_order_and_once() -> None:
    store = catalog(claim("b"), volume("b"), *storage("a", "node-a"))
    findings = resolve_all(Manifest.of(virt_launcher(claims=["b", "a", "gone", "b"]), "default"), store, Settings())
    assert [(finding.claim, finding.node, finding.reason) for finding in findings] == [
        ("b", None, Reason.NO_SHARE_MANAGER),
        ("a", "node-a", None),
        ("gone", None, Reason.CLAIM_NOT_FOUND),
    ]


def test_a_cold_start_names_the_claims_whose_share_managers_follow_and_the_other_ones() -> None:
    cold = "the share-manager of claim disk1, which was never created, follows it if it can run there"
    for second, message in (
        ([claim("disk2", volumeMode="Block")], cold),
        ([claim("disk2")], "the share-managers of claims disk1, disk2 follow it if they can run there"),
        ([claim("disk2", volume="")], f"{cold}; no node serves claim disk2 (ClaimNotBound)"),
    ):  # fmt: skip
        decision = decision_for(virt_launcher(claims=["disk1", "disk2"]), *CLAIM_AND_PV, *second, node())
        assert decision.reason is Reason.COLD_START
        assert decision.message == f"the VM starts on any node, and {message}"
    decision = decision_for(virt_launcher(), *CLAIM_AND_PV, steering=False)
    words = "the VM and the share-manager of claim disk1, which was never created, start on any node"
    assert (decision.reason, decision.message) == (Reason.COLD_START, words)


def test_only_128_claims_of_a_pod_are_followed() -> None:
    """6,800 claims, in a review of 512 KiB, took 76 ms."""
    many = [f"c{number}" for number in range(MAX_CLAIMS + 1)]
    assert [
        each.claim for each in resolve_all(Manifest.of(virt_launcher(claims=many), "default"), catalog(), Settings())
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

    store = Store(fact for each in manifests if (fact := fact_of(each)))
    mounting_pods = store.mounting_pods

    def count_pods(namespace: str, claim: str) -> Iterator[Pod]:
        nonlocal asked
        for each in mounting_pods(namespace, claim):
            asked += 1
            yield each

    store.mounting_pods = count_pods
    resolve_all(Manifest.of(virt_launcher(claims=names, labels=same_vmi), "default"), store, Settings())
    assert MAX_USERS < asked < MAX_USERS + 2 * MAX_MOUNTING


# The election of one node


IS_STARTING = Reason.SHARE_MANAGER_STARTING


def elected(votes: str) -> Choice | None:
    """Choose from the claims' nodes. A `?` marks a claim whose share-manager is starting, a `+` one without a vote."""
    findings = [
        ClaimFinding("x", node=vote[0], reason=IS_STARTING if "?" in vote else None, decides="+" not in vote)
        for vote in votes.split()
    ]
    return choose(findings)


@pytest.mark.parametrize(
    ("votes", "choice"),
    [
        ("", None),
        ("a a", Choice("a")),
        ("a b b", Choice("b", ("a",))),
        ("b a", Choice("b", ("a",))),
        ("c a b b a", Choice("a", ("b", "c"))),
        ("a+", None),
        ("b+ b+ a", Choice("a")),
        ("a?", Choice("a", certain=False)),
        ("a? a", Choice("a")),
        ("b a? a?", Choice("a", ("b",), certain=False)),
        ("a? b", Choice("a", ("b",), certain=False)),
    ],
)
def test_the_claims_with_a_vote_elect_the_node_of_most_and_a_tie_goes_to_the_first(
    votes: str, choice: Choice | None
) -> None:
    assert elected(votes) == choice
