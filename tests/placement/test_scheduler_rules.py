"""What judges the node guard is judged here: worked examples, in the sense of the scheduler's own tables."""

from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.support.random_clusters import HOSTNAME, REQUIRED, ZONE, universes
from tests.support.scheduler_oracle import effective_requests, feasible_nodes, quantity

Object = dict[str, Any]

KVM = "devices.kubevirt.io/kvm"
GI = 2**30


def a_node(name: str = "node-a", *, taints: Any = (), allocatable: Any = None, **labels: str) -> Object:
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    return {
        "metadata": {"name": name, "labels": {key.replace("_", "/"): value for key, value in labels.items()}},
        "spec": {"taints": list(taints)},
        "status": status | ({} if allocatable is None else {"allocatable": allocatable}),
    }


def a_place(name: str, zone: str) -> Object:
    node = a_node(name)
    node["metadata"]["labels"] = {HOSTNAME: name, ZONE: zone}
    return node


def a_pod(node: str | None = None, *, labels: Object | None = None, namespace: str = "default", **spec: Any) -> Object:
    bound = {} if node is None else {"nodeName": node}
    return {"metadata": {"namespace": namespace, "labels": labels or {}}, "spec": spec | bound}


def asking(requests: Object, node: str | None = None, **spec: Any) -> Object:
    return a_pod(node, containers=[{"resources": {"requests": requests}}], **spec)


def finished(pod: Object, phase: str = "Succeeded") -> Object:
    return pod | {"status": {"phase": phase}}


def with_terms(*terms: Object | None) -> Object:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}


def wanting(key: str, operator: str, *values: str) -> Object:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def naming(operator: str, *names: str) -> Object:
    return {"matchFields": [{"key": "metadata.name", "operator": operator, "values": list(names)}]}


def beside(selector: Object | None, key: str = HOSTNAME, **more: Any) -> Object:
    return {"labelSelector": selector, "topologyKey": key} | more


def together(*terms: Object) -> Object:
    return {"podAffinity": {REQUIRED: list(terms)}}


def apart(*terms: Object) -> Object:
    return {"podAntiAffinity": {REQUIRED: list(terms)}}


def table(*rows: tuple[Any, ...]) -> pytest.MarkDecorator:
    """Make a parametrization of rows whose first column is the sentence."""
    names = "this, that, expected" if len(rows[0]) > 3 else "this, expected"
    return pytest.mark.parametrize(names, [pytest.param(*row[1:], id=row[0]) for row in rows])


WEB, DB = {"app": "web"}, {"app": "db"}
IS_WEB = {"matchLabels": WEB}
# Two nodes in the east, one in the west, one that has neither label.
PLACES = [a_place("e1", "east"), a_place("e2", "east"), a_place("w1", "west"), a_node("bare")]
EVERYWHERE = {"e1", "e2", "w1", "bare"}


# -- the node's state --------------------------------------------------------------------------------------------------


@table(
    ("a node without conditions is ready", [], True),
    ("a node whose Ready is True is ready", [{"type": "Ready", "status": "True"}], True),
    ("a node whose Ready is False is not", [{"type": "Ready", "status": "False"}], False),
    ("a node whose Ready is Unknown is not", [{"type": "Ready", "status": "Unknown"}], False),
    ("no other condition matters", [{"type": "MemoryPressure", "status": "True"}], True),
)
def test_a_node_must_be_ready(this: list[Object], expected: bool) -> None:
    node = a_node() | {"status": {"conditions": this}}
    assert feasible_nodes(a_pod(), [node], []) == ({"node-a"} if expected else set())


CORDON = "node.kubernetes.io/unschedulable"


@table(
    ("no toleration", [], False),
    ("its taint tolerated", [{"key": CORDON, "operator": "Exists", "effect": "NoSchedule"}], True),
    ("its taint tolerated for every effect", [{"key": CORDON, "operator": "Exists"}], True),
    ("its taint, which has no value, equalled", [{"key": CORDON, "effect": "NoSchedule"}], True),
    ("everything tolerated", [{"operator": "Exists"}], True),
    ("its taint tolerated for another effect", [{"key": CORDON, "operator": "Exists", "effect": "NoExecute"}], False),
    ("another taint tolerated", [{"key": "dedicated", "operator": "Exists"}], False),
)
def test_a_cordoned_node_takes_only_what_tolerates_being_unschedulable(this: list[Object], expected: bool) -> None:
    node = a_node() | {"spec": {"unschedulable": True}}
    assert feasible_nodes(a_pod(tolerations=this), [node], []) == ({"node-a"} if expected else set())


VM = {"key": "dedicated", "value": "vm", "effect": "NoSchedule"}
GONE = {"key": "gone", "effect": "NoExecute"}


@table(
    ("an untainted node takes anything", [], [], True),
    ("a NoSchedule taint keeps out", [VM], [], False),
    ("a NoExecute taint keeps out", [GONE], [], False),
    ("a PreferNoSchedule taint does not", [VM | {"effect": "PreferNoSchedule"}], [], True),
    ("the same key, value and effect tolerate", [VM], [VM | {"operator": "Equal"}], True),
    ("no operator means Equal", [VM], [VM], True),
    ("another value does not", [VM], [VM | {"value": "db"}], False),
    ("no value is not any value", [VM], [{"key": "dedicated", "effect": "NoSchedule"}], False),
    ("another effect does not", [VM], [VM | {"effect": "NoExecute"}], False),
    ("no effect is any effect", [VM], [{"key": "dedicated", "value": "vm"}], True),
    ("an empty effect is any effect", [VM], [{"key": "dedicated", "value": "vm", "effect": ""}], True),
    ("Exists asks for no value", [VM], [{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}], True),
    ("Exists of another key does not", [VM], [{"key": "gone", "operator": "Exists"}], False),
    ("an empty operator means Equal", [VM], [VM | {"operator": ""}], True),
    ("no operator compares numbers", [VM | {"value": "5"}], [VM | {"operator": "Gt", "value": "5"}], False),
    ("no key and Exists tolerate everything", [VM, GONE], [{"operator": "Exists"}], True),
    ("an empty key and Exists tolerate everything", [VM, GONE], [{"key": "", "operator": "Exists"}], True),
    ("no key tolerates one effect", [VM, GONE], [{"operator": "Exists", "effect": "NoSchedule"}], False),
    ("every taint must be tolerated", [VM, GONE], [VM], False),
    ("each taint by a toleration of its own", [VM, GONE], [VM, GONE], True),
)
def test_taints_and_tolerations(this: list[Object], that: list[Object], expected: bool) -> None:
    assert feasible_nodes(a_pod(tolerations=that), [a_node(taints=this)], []) == ({"node-a"} if expected else set())


# -- node affinity -----------------------------------------------------------------------------------------------------

SSD, HDD = wanting("disk", "In", "ssd"), wanting("disk", "In", "hdd")


@table(
    ("no node selector", None, True),
    ("an empty node selector", {}, True),
    ("its label", {"disk": "ssd"}, True),
    ("both its labels", {"disk": "ssd", "rank": "2"}, True),
    ("another value", {"disk": "hdd"}, False),
    ("a label that it has not", {"disk": "ssd", "gpu": "yes"}, False),
    ("an empty value is not an absent label", {"gpu": ""}, False),
)
def test_the_node_selector_must_match_whole(this: Object | None, expected: bool) -> None:
    node = a_node(disk="ssd", rank="2")
    assert feasible_nodes(a_pod(nodeSelector=this), [node], []) == ({"node-a"} if expected else set())


@table(
    ("In matches one of its values", wanting("disk", "In", "hdd", "ssd"), True),
    ("In does not match another", wanting("disk", "In", "hdd"), False),
    ("In does not match an absent label", wanting("gpu", "In", "yes"), False),
    ("NotIn does not match its value", wanting("disk", "NotIn", "hdd", "ssd"), False),
    ("NotIn matches another", wanting("disk", "NotIn", "hdd"), True),
    ("NotIn matches an absent label", wanting("gpu", "NotIn", "yes"), True),
    ("Exists matches any value", wanting("disk", "Exists"), True),
    ("Exists does not match an absent label", wanting("gpu", "Exists"), False),
    ("DoesNotExist matches an absent label", wanting("gpu", "DoesNotExist"), True),
    ("DoesNotExist does not match a present one", wanting("disk", "DoesNotExist"), False),
    ("Gt matches a smaller bound", wanting("rank", "Gt", "1"), True),
    ("Gt does not match its own bound", wanting("rank", "Gt", "2"), False),
    ("Lt matches a greater bound", wanting("rank", "Lt", "10"), True),
    ("Lt does not match its own bound", wanting("rank", "Lt", "2"), False),
    ("Gt compares numbers, not letters", wanting("rank", "Gt", "10"), False),
    ("Gt does not match a label that is no number", wanting("disk", "Gt", "1"), False),
    ("Lt does not match an absent label", wanting("gpu", "Lt", "1"), False),
    ("Gt takes no bound that is no number", wanting("rank", "Gt", "x"), False),
    ("Gt takes no two bounds", wanting("rank", "Gt", "0", "1"), False),
    ("Gt takes no bound that no label could have", wanting("rank", "Gt", "-1"), False),
    ("In takes no empty list", wanting("disk", "In"), False),
    ("NotIn takes no empty list", wanting("disk", "NotIn"), False),
    ("Exists takes no values", wanting("disk", "Exists", "ssd"), False),
    ("metadata.name In matches the node", naming("In", "node-a"), True),
    ("metadata.name In matches no other", naming("In", "node-b"), False),
    ("metadata.name NotIn does not match the node", naming("NotIn", "node-a"), False),
    ("metadata.name NotIn matches another", naming("NotIn", "node-b"), True),
    ("metadata.name takes exactly one value", naming("In", "node-a", "node-b"), False),
    ("metadata.name takes no Exists", naming("Exists", "node-a"), False),
    ("metadata.name is not the hostname label", wanting(HOSTNAME, "In", "node-a"), False),
    (
        "expressions in a term are ANDed",
        {"matchExpressions": [SSD["matchExpressions"][0], HDD["matchExpressions"][0]]},
        False,
    ),
    ("fields in a term are ANDed", {"matchFields": naming("In", "node-a")["matchFields"] * 2}, True),
    ("expressions and fields are ANDed", SSD | naming("In", "node-b"), False),
    ("expressions and fields that both match", SSD | naming("In", "node-a"), True),
    ("an empty term matches nothing", {}, False),
    ("a null term matches nothing", None, False),
    ("a term of empty lists matches nothing", {"matchExpressions": [], "matchFields": []}, False),
    ("a term of nulls matches nothing", {"matchExpressions": None, "matchFields": None}, False),
)
def test_one_required_term(this: Object | None, expected: bool) -> None:
    nodes = [a_node(disk="ssd", rank="2")]
    assert feasible_nodes(a_pod(affinity=with_terms(this)), nodes, []) == ({"node-a"} if expected else set())


@table(
    ("no affinity", None, True),
    ("null node affinity", {"nodeAffinity": None}, True),
    ("no required part", {"nodeAffinity": {}}, True),
    ("a null required part", {"nodeAffinity": {REQUIRED: None}}, True),
    ("a null list of terms matches nothing", {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": None}}}, False),
    ("an empty list of terms matches nothing", with_terms(), False),
    ("terms are ORed", with_terms(HDD, SSD), True),
    ("no term matches", with_terms(HDD, wanting("gpu", "Exists")), False),
    ("an empty term beside one that matches", with_terms({}, SSD), True),
    ("an empty term beside one that does not", with_terms(HDD, {}, None), False),
    ("a term that does not parse beside one that matches", with_terms(wanting("disk", "In"), SSD), True),
)
def test_the_list_of_required_terms(this: Object | None, expected: bool) -> None:
    nodes = [a_node(disk="ssd")]
    assert feasible_nodes(a_pod(affinity=this), nodes, []) == ({"node-a"} if expected else set())


def test_node_selector_and_required_terms_are_both_needed() -> None:
    nodes = [a_node("a", disk="ssd", rank="1"), a_node("b", disk="ssd", rank="2"), a_node("c", disk="hdd", rank="1")]
    assert feasible_nodes(a_pod(nodeSelector={"rank": "1"}, affinity=with_terms(SSD)), nodes, []) == {"a"}


# -- volumes -----------------------------------------------------------------------------------------------------------


@table(
    ("a volume without node affinity", {}, {"node-a", "node-b"}),
    ("null node affinity", {"nodeAffinity": None}, {"node-a", "node-b"}),
    ("a null required part", {"nodeAffinity": {"required": None}}, {"node-a", "node-b"}),
    ("a label", {"nodeAffinity": {"required": {"nodeSelectorTerms": [SSD]}}}, {"node-a"}),
    (
        "terms are ORed here too",
        {"nodeAffinity": {"required": {"nodeSelectorTerms": [SSD, HDD]}}},
        {"node-a", "node-b"},
    ),
    ("an empty term matches nothing", {"nodeAffinity": {"required": {"nodeSelectorTerms": [{}]}}}, set()),
    # The scheduler asks this of a node that has labels and no name, and then does not look at fields.
    (
        "a node's name is not looked at",
        {"nodeAffinity": {"required": {"nodeSelectorTerms": [naming("In", "node-x")]}}},
        {"node-a", "node-b"},
    ),
)
def test_a_volume_reaches_the_nodes_of_its_affinity(this: Object, expected: set[str]) -> None:
    nodes = [a_node("node-a", disk="ssd"), a_node("node-b", disk="hdd")]
    assert feasible_nodes(a_pod(), nodes, [], [{"spec": this}]) == expected


def test_every_volume_must_reach_the_node() -> None:
    pvs = [{"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}} for term in (SSD, HDD)]
    assert feasible_nodes(a_pod(), [a_node(disk="ssd"), a_node("node-b", disk="hdd")], [], pvs) == set()


# -- requests ----------------------------------------------------------------------------------------------------------


QUANTITIES: dict[Any, Any] = (
    {"0": 0, "2": 2, 2: 2, 0.5: Fraction(1, 2), "+3": 3, ".5": Fraction(1, 2), "5.": 5, "1500m": Fraction(3, 2)}
    | {"1k": 1000, "2M": 2 * 10**6, "3G": 3 * 10**9, "1T": 10**12, "1P": 10**15, "1E": 10**18}
    | {"1Ki": 1024, "1.5Ki": 1536, "512Mi": 2**29, "1Gi": GI, "1Ti": 2**40, "1Pi": 2**50, "1Ei": 2**60}
    | {"2e3": 2000, "2E3": 2000, "12e-1": Fraction(6, 5)}
    | {"1u": Fraction(1, 1000), "1500u": Fraction(2, 1000), "1n": Fraction(1, 1000), "1000001n": Fraction(2, 1000)}
)


@pytest.mark.parametrize(("text", "expected"), QUANTITIES.items())
def test_a_quantity_is_exact_to_a_thousandth_and_rounded_up(text: Any, expected: Any) -> None:
    assert quantity(text) == expected


@pytest.mark.parametrize("text", ["", "x", "1 Gi", "Mi", "1.2.3", "--1"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(AssertionError, match="not a quantity"):
        quantity(text)


def a_container(*, limits: Object | None = None, restart: str | None = None, **requests: str) -> Object:
    resources = {"requests": requests} | ({} if limits is None else {"limits": limits})
    return {"resources": resources} | ({} if restart is None else {"restartPolicy": restart})


def a_sidecar(cpu: str) -> Object:
    return a_container(cpu=cpu, restart="Always")


ONE, TWO, THREE, FOUR = (a_container(cpu=cpu) for cpu in "1234")
MANY = {"requests": {KVM: "1", "ephemeral-storage": "1", "cpu": "2"}}
HUGE = a_container(limits={"hugepages-2Mi": "2Mi"})


@table(
    ("nothing", {}, {}),
    ("containers without resources", {"containers": [{}, {"resources": {}}, {"resources": {"requests": None}}]}, {}),
    ("containers are summed", {"containers": [a_container(cpu="100m"), ONE]}, {"cpu": 1100}),
    ("init containers run one by one", {"containers": [ONE], "initContainers": [TWO, THREE]}, {"cpu": 3000}),
    ("and before the containers", {"containers": [TWO, TWO], "initContainers": [THREE]}, {"cpu": 4000}),
    (
        "each resource has its own maximum",
        {"containers": [a_container(cpu="2", memory="1")], "initContainers": [a_container(cpu="1", memory="5")]},
        {"cpu": 2000, "memory": 5},
    ),
    ("a sidecar runs beside the containers", {"containers": [ONE], "initContainers": [a_sidecar("2")]}, {"cpu": 3000}),
    (
        "and beside the init containers after it",
        {"containers": [ONE], "initContainers": [a_sidecar("2"), THREE]},
        {"cpu": 5000},
    ),
    (
        "but not beside those before it",
        {"containers": [ONE], "initContainers": [THREE, a_sidecar("2")]},
        {"cpu": 3000},
    ),
    (
        "an init container between two sidecars",
        {"containers": [ONE], "initContainers": [a_sidecar("1"), FOUR, a_sidecar("2")]},
        {"cpu": 5000},
    ),
    (
        "sidecars are summed",
        {"containers": [ONE], "initContainers": [a_sidecar("1"), a_sidecar("2"), FOUR]},
        {"cpu": 7000},
    ),
    (
        "an init container that restarts on failure is no sidecar",
        {"containers": [ONE], "initContainers": [a_container(cpu="2", restart="OnFailure")]},
        {"cpu": 2000},
    ),
    (
        "overhead comes on top of the greatest need",
        {"containers": [ONE], "initContainers": [TWO], "overhead": {"cpu": "250m"}},
        {"cpu": 2250},
    ),
    (
        "a limit stands for an absent request",
        {"containers": [a_container(limits={"cpu": "2", KVM: "1"}, cpu="1")]},
        {"cpu": 1000, KVM: 1},
    ),
    (
        "a limit does not stand for a request of zero",
        {"containers": [a_container(limits={"cpu": "2"}, cpu="0")]},
        {"cpu": 0},
    ),
    (
        "the pod's own request replaces those of its containers",
        {"containers": [a_container(cpu="1", memory="7")], "resources": {"requests": {"cpu": "3"}}},
        {"cpu": 3000, "memory": 7},
    ),
    (
        "and of its init containers, and overhead comes on top",
        {"initContainers": [TWO], "resources": {"requests": {"cpu": "1"}}, "overhead": {"cpu": "1m"}},
        {"cpu": 1001},
    ),
    (
        "the pod's own limit stands for a request that no container has",
        {"containers": [ONE], "resources": {"limits": {"cpu": "4", "memory": "9"}}},
        {"cpu": 1000, "memory": 9},
    ),
    (
        "but for huge pages always",
        {"containers": [HUGE], "resources": {"limits": {"hugepages-2Mi": "4Mi"}}},
        {"hugepages-2Mi": 4 * 2**20},
    ),
    ("no other resource is the pod's own", {"containers": [ONE], "resources": MANY}, {"cpu": 2000}),
    ("cpu is counted in milli, rounded up", {"containers": [a_container(cpu="1.0001")]}, {"cpu": 1001}),
    ("cpu is rounded for each container", {"containers": [a_container(cpu="1u"), a_container(cpu="1u")]}, {"cpu": 2}),
    ("memory is rounded for the pod", {"containers": [a_container(memory="500m")] * 2}, {"memory": 1}),
    ("half a byte is a byte", {"containers": [a_container(memory="1.5")]}, {"memory": 2}),
    ("what no node counts is not counted", {"containers": [a_container(storage="1")]}, {}),
)
def test_what_a_pod_effectively_asks_for(this: Object, expected: Object) -> None:
    assert effective_requests(a_pod(**this)) == expected


# -- room --------------------------------------------------------------------------------------------------------------

SMALL = {"cpu": "2", "memory": "2Gi", "pods": "10", KVM: "2"}


ALL_CPU, SOME_CPU = asking({"cpu": "2"}), asking({"cpu": "1"})
TAKING_ALL = asking({"cpu": "2"}, "node-a")


@table(
    ("a pod that asks for nothing", asking({}), [], True),
    ("exactly all", asking({"cpu": "2", "memory": "2Gi"}), [], True),
    ("a milli more than all", asking({"cpu": "2001m"}), [], False),
    ("a byte more than all", asking({"memory": str(2 * GI + 1)}), [], False),
    ("exactly the rest", SOME_CPU, [asking({"cpu": "700m"}, "node-a"), asking({"cpu": ".3"}, "node-a")], True),
    ("others that ask for something else", ALL_CPU, [asking({"memory": "1Gi"}, "node-a"), a_pod("node-a")], True),
    ("a milli more than the rest", asking({"cpu": "1001m"}), [asking({"cpu": "1"}, "node-a")], False),
    ("what others ask for elsewhere", ALL_CPU, [asking({"cpu": "2"}, "node-b")], True),
    ("what a pod asks for that is not bound", ALL_CPU, [asking({"cpu": "2"})], True),
    ("what a finished pod asked for", ALL_CPU, [finished(TAKING_ALL)], True),
    ("what a failed pod asked for", ALL_CPU, [finished(TAKING_ALL, "Failed")], True),
    ("what a pod asks for that is bound and Pending", ALL_CPU, [finished(TAKING_ALL, "Pending")], False),
    ("only what is asked for is compared", asking({"memory": "1Gi"}), [TAKING_ALL, TAKING_ALL], True),
    ("zero is not compared", asking({"cpu": "0", "example.com/gpu": "0"}), [TAKING_ALL, TAKING_ALL], True),
    ("a device that is there", asking({KVM: "1"}), [asking({KVM: "1"}, "node-a")], True),
    ("a device that is taken", asking({KVM: "1"}), [asking({KVM: "2"}, "node-a")], False),
    ("a device that the node has not", asking({"example.com/gpu": "1"}), [], False),
    ("disk of which the node has none", asking({"ephemeral-storage": "1"}), [], False),
    ("huge pages of which the node has none", asking({"hugepages-2Mi": "2Mi"}), [], False),
    ("the others' sidecars count", SOME_CPU, [a_pod("node-a", initContainers=[a_sidecar("1001m")])], False),
    ("the others' overhead counts", SOME_CPU, [asking({"cpu": "1"}, "node-a", overhead={"cpu": "1m"})], False),
    ("two halves of a byte", asking({"memory": str(2 * GI - 1)}), [asking({"memory": "500m"}, "node-a")] * 2, False),
)
def test_room(this: Object, that: list[Object], expected: bool) -> None:
    nodes = [a_node(allocatable=SMALL)]
    assert feasible_nodes(this, nodes, that) == ({"node-a"} if expected else set())


@table(
    ("the last place", {"pods": "3"}, True),
    ("no place", {"pods": "2"}, False),
    ("no places stated", {"cpu": "1"}, True),
    ("nothing stated", None, True),
    ("nothing of what is asked for stated", {"memory": "1Gi"}, False),
)
def test_places_for_pods(this: Object | None, expected: bool) -> None:
    others = [
        a_pod("node-a"),
        a_pod("node-a"),
        a_pod("node-b"),
        a_pod(),
        finished(a_pod("node-a"), "Failed"),
    ]
    asked = asking({"cpu": "1"}) if this in (None, {"memory": "1Gi"}) else asking({})
    assert feasible_nodes(asked, [a_node(allocatable=this)], others) == ({"node-a"} if expected else set())


def test_a_terminating_pod_takes_its_room_until_it_is_gone() -> None:
    leaving = asking({"cpu": "2"}, "node-a")
    leaving["metadata"]["deletionTimestamp"] = "2026-08-01T12:00:00Z"
    assert feasible_nodes(asking({"cpu": "1"}), [a_node(allocatable=SMALL)], [leaving]) == set()


# -- pod anti-affinity -------------------------------------------------------------------------------------------------


@table(
    ("nobody is there", [], EVERYWHERE),
    ("not on the node of a match", [a_pod("e1", labels=WEB)], EVERYWHERE - {"e1"}),
    ("on the node of another", [a_pod("e1", labels=DB)], EVERYWHERE),
    ("a match in another namespace", [a_pod("e1", labels=WEB, namespace="other")], EVERYWHERE),
    ("a match that is not bound", [a_pod(labels=WEB)], EVERYWHERE),
    ("a match that has finished", [finished(a_pod("e1", labels=WEB))], EVERYWHERE),
    ("a match on a node that is gone", [a_pod("e9", labels=WEB)], EVERYWHERE),
    ("a match where the topology key is missing", [a_pod("bare", labels=WEB)], EVERYWHERE),
)
def test_a_pods_own_anti_affinity(this: list[Object], expected: set[str]) -> None:
    assert feasible_nodes(a_pod(affinity=apart(beside(IS_WEB))), PLACES, this) == expected


@table(
    ("nobody is there", [], EVERYWHERE),
    ("it keeps a match off its node", [a_pod("e1", affinity=apart(beside(IS_WEB)))], EVERYWHERE - {"e1"}),
    ("it keeps a match off its zone", [a_pod("e1", affinity=apart(beside(IS_WEB, ZONE)))], {"w1", "bare"}),
    ("it lets others be", [a_pod("e1", affinity=apart(beside({"matchLabels": DB})))], EVERYWHERE),
    ("it speaks of its own namespace", [a_pod("e1", namespace="other", affinity=apart(beside(IS_WEB)))], EVERYWHERE),
    (
        "or of those that it names",
        [a_pod("e1", namespace="other", affinity=apart(beside(IS_WEB, namespaces=["default"])))],
        EVERYWHERE - {"e1"},
    ),
    ("it is not bound", [a_pod(affinity=apart(beside(IS_WEB)))], EVERYWHERE),
    ("it has finished", [finished(a_pod("e1", affinity=apart(beside(IS_WEB))), "Failed")], EVERYWHERE),
    ("its own node lacks the topology key", [a_pod("bare", affinity=apart(beside(IS_WEB, ZONE)))], EVERYWHERE),
    ("any of its terms is enough", [a_pod("e1", affinity=apart(beside(None), beside(IS_WEB)))], EVERYWHERE - {"e1"}),
    (
        "two of them",
        [a_pod("e1", affinity=apart(beside(IS_WEB))), a_pod("w1", affinity=apart(beside({}, ZONE)))],
        {"e2", "bare"},
    ),
    ("its affinity is its own affair", [a_pod("e1", affinity=together(beside({"matchLabels": DB})))], EVERYWHERE),
)
def test_the_anti_affinity_of_a_pod_that_is_there(this: list[Object], expected: set[str]) -> None:
    assert feasible_nodes(a_pod(labels=WEB), PLACES, this) == expected


def test_anti_affinity_holds_from_both_sides() -> None:
    shy, plain = a_pod(labels=WEB, affinity=apart(beside(IS_WEB, ZONE))), a_pod(labels=WEB)
    there = {"nodeName": "e1"}
    assert feasible_nodes(shy, PLACES, [plain | {"spec": there}]) == {"w1", "bare"}
    assert feasible_nodes(plain, PLACES, [shy | {"spec": shy["spec"] | there}]) == {"w1", "bare"}


def test_two_vms_that_share_a_disk_and_not_a_node_take_two_nodes() -> None:
    vm = a_pod(labels=WEB, affinity=apart(beside(IS_WEB)))
    assert feasible_nodes(vm, PLACES, []) == EVERYWHERE
    assert feasible_nodes(vm, PLACES, [vm | {"spec": vm["spec"] | {"nodeName": "e1"}}]) == EVERYWHERE - {"e1"}


# -- pod affinity ------------------------------------------------------------------------------------------------------

AT_WEB, IN_ZONE_OF_WEB = beside(IS_WEB), beside(IS_WEB, ZONE)


@table(
    ("nobody is there", [AT_WEB], [], set()),
    ("on the node of a match", [AT_WEB], [a_pod("e1", labels=WEB)], {"e1"}),
    ("in the zone of a match", [IN_ZONE_OF_WEB], [a_pod("e1", labels=WEB)], {"e1", "e2"}),
    ("by any of the matches", [AT_WEB], [a_pod("e1", labels=WEB), a_pod("w1", labels=WEB)], {"e1", "w1"}),
    ("a match in another namespace", [AT_WEB], [a_pod("e1", labels=WEB, namespace="other")], set()),
    ("a match that is not bound", [AT_WEB], [a_pod(labels=WEB)], set()),
    ("a match that has finished", [AT_WEB], [finished(a_pod("e1", labels=WEB), "Failed")], set()),
    ("a match where the topology key is missing", [AT_WEB], [a_pod("bare", labels=WEB)], set()),
    ("every term must be met", [AT_WEB, IN_ZONE_OF_WEB], [a_pod("e1", labels=WEB)], {"e1"}),
    (
        "one pod must match every term",
        [AT_WEB, beside({"matchLabels": DB})],
        [a_pod("e1", labels=WEB), a_pod("e1", labels=DB)],
        set(),
    ),
    ("a topology key that no node has", [AT_WEB, beside(IS_WEB, "rack")], [a_pod("e1", labels=WEB)], set()),
)
def test_a_pods_own_affinity(this: list[Object], that: list[Object], expected: set[str]) -> None:
    assert feasible_nodes(a_pod(affinity=together(*this)), PLACES, that) == expected


def test_two_terms_may_be_met_by_two_pods_that_each_match_both() -> None:
    def racked(name: str, zone: str, rack: str) -> Object:
        node = a_place(name, zone)
        node["metadata"]["labels"]["rack"] = rack
        return node

    nodes = [racked("a", "east", "1"), racked("b", "west", "2"), racked("c", "east", "2")]
    pods = [a_pod("a", labels=WEB), a_pod("b", labels=WEB)]
    pod = a_pod(affinity=together(IN_ZONE_OF_WEB, beside(IS_WEB, "rack")))
    assert feasible_nodes(pod, nodes, pods) == {"a", "b", "c"}


WEB_AT_W1 = a_pod("w1", labels=WEB)
ANYWHERE_WITH_KEY = {"e1", "e2", "w1"}


@table(
    ("it may start anywhere with the topology key", [AT_WEB], [], ANYWHERE_WITH_KEY),
    ("the second must join it", [AT_WEB], [WEB_AT_W1], {"w1"}),
    ("others are no reason to wait", [AT_WEB], [a_pod("w1", labels=DB)], ANYWHERE_WITH_KEY),
    ("one in another namespace", [AT_WEB], [a_pod("w1", labels=WEB, namespace="other")], ANYWHERE_WITH_KEY),
    ("one where no topology key is", [AT_WEB], [a_pod("bare", labels=WEB)], ANYWHERE_WITH_KEY),
    ("one that has finished", [AT_WEB], [finished(WEB_AT_W1)], ANYWHERE_WITH_KEY),
    ("it must match all its terms itself", [AT_WEB, beside({"matchLabels": DB})], [], set()),
    ("it must match its own namespace", [beside(IS_WEB, namespaces=["other"])], [], set()),
    ("every topology key must be there", [AT_WEB, beside(IS_WEB, "rack")], [], set()),
)
def test_the_first_pod_of_a_group(this: list[Object], that: list[Object], expected: set[str]) -> None:
    assert feasible_nodes(a_pod(labels=WEB, affinity=together(*this)), PLACES, that) == expected


def test_a_pod_that_is_there_by_one_topology_key_of_two_ends_the_exception_for_the_first() -> None:
    racked = a_place("racked", "west")
    racked["metadata"]["labels"]["rack"] = "1"
    first = a_pod(labels=WEB, affinity=together(IN_ZONE_OF_WEB, beside(IS_WEB, "rack")))
    assert feasible_nodes(first, [*PLACES, racked], []) == {"racked"}
    assert feasible_nodes(first, [*PLACES, racked], [a_pod("bare", labels=WEB)]) == {"racked"}
    assert feasible_nodes(first, [*PLACES, racked], [a_pod("e1", labels=WEB)]) == set()


def test_affinity_and_anti_affinity_are_both_needed() -> None:
    pods = [a_pod("e1", labels=WEB), a_pod("e2", labels=DB)]
    affinity = together(IN_ZONE_OF_WEB) | apart(beside({"matchLabels": DB}))
    assert feasible_nodes(a_pod(affinity=affinity), PLACES, pods) == {"e1"}


# -- whom a term means -------------------------------------------------------------------------------------------------


def wanting_all(*expressions: tuple[str, str, list[str]]) -> Object:
    return {"matchExpressions": [dict(zip(("key", "operator", "values"), each, strict=True)) for each in expressions]}


@table(
    ("a null selector means nobody", beside(None), False),
    ("an empty selector means everybody", beside({}), True),
    ("a selector of nulls means everybody", beside({"matchLabels": None, "matchExpressions": None}), True),
    ("labels", beside(IS_WEB), True),
    ("labels are ANDed", beside({"matchLabels": WEB | {"tier": "back"}}), False),
    ("labels and expressions are ANDed", beside(IS_WEB | wanting_all(("tier", "In", ["back"]))), False),
    ("In", beside(wanting_all(("app", "In", ["db", "web"]))), True),
    ("NotIn", beside(wanting_all(("app", "NotIn", ["db"]))), True),
    ("NotIn of an absent label", beside(wanting_all(("gpu", "NotIn", ["yes"]))), True),
    ("Exists", beside(wanting_all(("tier", "Exists", []))), True),
    ("DoesNotExist", beside(wanting_all(("tier", "DoesNotExist", []))), False),
    ("the namespace named", beside(IS_WEB, namespaces=["other", "default"]), True),
    ("another namespace named", beside(IS_WEB, namespaces=["other"]), False),
    ("no namespaces named: the pod's own", beside(IS_WEB, namespaces=[]), True),
    ("null namespaces: the pod's own", beside(IS_WEB, namespaces=None, namespaceSelector=None), True),
    ("an empty namespace selector: all", beside(IS_WEB, namespaces=["other"], namespaceSelector={}), True),
    ("the same value of a label key", beside({}, matchLabelKeys=["app"]), True),
    ("another value of a label key", beside({}, matchLabelKeys=["tier"]), False),
    ("a label key that the pod itself has not is ignored", beside({}, matchLabelKeys=["gpu"]), True),
    ("a mismatch of the same value", beside({}, mismatchLabelKeys=["app"]), False),
    ("a mismatch of another value", beside({}, mismatchLabelKeys=["tier"]), True),
    ("label keys beside a null selector still mean nobody", beside(None, matchLabelKeys=["app"]), False),
)
def test_whom_a_term_means(this: Object, expected: bool) -> None:
    target = a_pod("e1", labels={"app": "web", "tier": "front"})
    pod = a_pod(labels={"app": "web", "tier": "back"}, affinity=apart(this))
    assert feasible_nodes(pod, [PLACES[0]], [target]) == (set() if expected else {"e1"})


def test_a_stored_pods_label_keys_keep_the_values_that_they_had_at_its_creation() -> None:
    merged = wanting_all(("tier", "In", ["front"]))
    there = a_pod("e1", labels={"tier": "changed since"}, affinity=apart(beside(merged, matchLabelKeys=["tier"])))
    assert feasible_nodes(a_pod(labels={"tier": "front"}), [PLACES[0]], [there]) == set()
    assert feasible_nodes(a_pod(labels={"tier": "changed since"}), [PLACES[0]], [there]) == {"e1"}


def test_a_stored_pod_whose_label_keys_are_not_merged_yet_is_read_as_the_api_server_would_store_it() -> None:
    there = a_pod("e1", labels={"tier": "front"}, affinity=apart(beside({}, matchLabelKeys=["tier"])))
    assert feasible_nodes(a_pod(labels={"tier": "front"}), [PLACES[0]], [there]) == set()
    assert feasible_nodes(a_pod(labels={"tier": "back"}), [PLACES[0]], [there]) == {"e1"}


def test_a_pod_at_admission_has_the_namespace_of_its_request() -> None:
    pod = {"metadata": {"generateName": "virt-launcher-vm1-"}, "spec": {"affinity": apart(AT_WEB)}}
    there = [a_pod("e1", labels=WEB, namespace="vms")]
    assert feasible_nodes(pod, PLACES, there, namespace="vms") == EVERYWHERE - {"e1"}
    assert feasible_nodes(pod, PLACES, there) == EVERYWHERE


def test_a_namespace_in_the_pod_itself_goes_before_that_of_its_request() -> None:
    there = [a_pod("e1", labels=WEB, namespace="vms")]
    pod = a_pod(namespace="vms", affinity=apart(AT_WEB))
    assert feasible_nodes(pod, PLACES, there, namespace="default") == EVERYWHERE - {"e1"}


def test_a_namespace_selector_that_looks_at_labels_is_not_judged() -> None:
    pod = a_pod(affinity=apart(beside(IS_WEB, namespaceSelector={"matchLabels": {"team": "a"}})))
    with pytest.raises(AssertionError, match="not known here"):
        feasible_nodes(pod, PLACES, [a_pod("e1", labels=WEB)])


def test_null_is_read_as_absent() -> None:
    node = {"metadata": {"name": "node-a", "labels": None}, "spec": None, "status": None}
    tainted = a_node("node-b", taints=[VM])
    unset = {"status": {"conditions": None, "allocatable": None}, "spec": {"taints": None}}
    there = a_pod("node-a", containers=None, initContainers=None, overhead=None, resources=None)
    pod = a_pod(labels=None, tolerations=None, nodeSelector=None, affinity=None)
    assert feasible_nodes(pod, [node, tainted, a_node("node-c") | unset], [there]) == {"node-a", "node-c"}
    term: Object = {"matchExpressions": [{"key": "disk", "operator": "Exists", "values": None}], "matchFields": None}
    nodes = [a_node(disk="ssd"), node | {"metadata": {"name": "node-b", "labels": None}}]
    assert feasible_nodes(a_pod(affinity=with_terms(term)), nodes, []) == {"node-a"}


# -- the worlds that we draw -------------------------------------------------------------------------------------------


def test_a_cluster_without_nodes_has_none_that_is_feasible() -> None:
    assert feasible_nodes(a_pod(), [], [a_pod("node-a")]) == set()


def test_the_drawn_worlds_are_interesting() -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=300, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(universes())
    def look(world: Object) -> None:
        feasible = feasible_nodes(world["pod"], world["nodes"], world["pods"], [world["pv"]])
        seen["there" if world["node"] in feasible else "elsewhere" if feasible else "nowhere"] += 1

    look()
    shares = {where: count / seen.total() for where, count in seen.items()}
    assert all(shares[where] > 0.15 for where in ("there", "elsewhere", "nowhere")), shares
