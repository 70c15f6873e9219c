"""The Filter rules of kube-scheduler 1.36, written down as naively as we can: what the node guard is checked against.

Objects are plain dicts; nothing is shared with the product. The comment on a rule names its file upstream: `plugins/`
is pkg/scheduler/framework/plugins, `corev1/` is component-helpers/scheduling/corev1. Not judged: host ports, spread,
resource claims, volumes per node, zone labels of volumes, resizes in place, tolerations that compare numbers.
"""

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from math import ceil
from typing import Any

Object = dict[str, Any]
Objects = Sequence[Object]
Placed = list[tuple[Object, Object]]
Amounts = dict[str, Fraction]

DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:[eE]([+-]?[0-9]+)|([A-Za-z]*))")
COUNTED = re.compile(r"cpu|memory|ephemeral-storage|hugepages-.*|.*/.*")
POD_LEVEL = re.compile(r"cpu|memory|hugepages-.*")
INTEGER = re.compile(r"[+-]?[0-9]+")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")


def feasible_nodes(
    pod: Object, nodes: Objects, pods: Objects, pvs: Objects = (), namespace: str = "default"
) -> set[str]:
    """Name the nodes on which the default scheduler's filters admit `pod`; `pvs` are those of the pod's own claims."""
    newcomer = {**pod, "metadata": {**pod["metadata"], "namespace": pod["metadata"].get("namespace") or namespace}}
    # pkg/scheduler/scheduler.go NewInformerFactory: finished pods are not watched, terminating ones count.
    alive = [other for other in pods if (other.get("status") or {}).get("phase") not in ("Succeeded", "Failed")]
    by_name = {node["metadata"]["name"]: node for node in nodes}
    placed = [(other, by_name[name]) for other in alive if (name := other["spec"].get("nodeName")) in by_name]
    return {
        name
        for name, node in by_name.items()
        if is_ready(node)
        and has_only_tolerated_taints(newcomer, node)
        and matches_node_affinity(newcomer, node)
        and all(is_reached_by(pv, node) for pv in pvs)
        and has_room(newcomer, node, [other for other, its_node in placed if its_node is node])
        and meets_anti_affinity(newcomer, node, placed)
        and meets_own_affinity(newcomer, node, placed)
    }


def labels_of(thing: Object) -> dict[str, str]:
    return thing["metadata"].get("labels") or {}


# Not a filter: pkg/controller/nodelifecycle taints a node that is not ready.
def is_ready(node: Object) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or []
    return all(condition["status"] == "True" for condition in conditions if condition["type"] == "Ready")


# plugins/tainttoleration/taint_toleration.go, plugins/nodeunschedulable/node_unschedulable.go: a cordon is a taint too
def has_only_tolerated_taints(pod: Object, node: Object) -> bool:
    spec = node.get("spec") or {}
    cordon = [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}] if spec.get("unschedulable") else []
    taints = cordon + (spec.get("taints") or [])
    return all(is_tolerated(taint, pod) for taint in taints if taint["effect"] in ("NoSchedule", "NoExecute"))


# api/core/v1/toleration.go ToleratesTaint
def is_tolerated(taint: Object, pod: Object) -> bool:
    return any(
        toleration.get("effect") in (None, "", taint["effect"])
        and toleration.get("key") in (None, "", taint["key"])
        and toleration.get("operator") in (None, "", "Equal", "Exists")
        and (toleration.get("operator") == "Exists" or (toleration.get("value") or "") == (taint.get("value") or ""))
        for toleration in pod["spec"].get("tolerations") or []
    )


# plugins/nodeaffinity/node_affinity.go
def matches_node_affinity(pod: Object, node: Object) -> bool:
    selected = selected_by({"matchLabels": pod["spec"].get("nodeSelector")}, labels_of(node))
    return selected and matches_any_term(required(pod, "nodeAffinity"), labels_of(node), node["metadata"]["name"])


# component-helpers/storage/volume/helpers.go CheckNodeAffinity: it knows only the labels of the node, not its name
def is_reached_by(pv: Object, node: Object) -> bool:
    return matches_any_term((pv["spec"].get("nodeAffinity") or {}).get("required"), labels_of(node), name=None)


# corev1/nodeaffinity/nodeaffinity.go: a term that is empty or does not parse matches nothing; no name, no matchFields
def matches_any_term(selector: Object | None, labels: dict[str, str], name: str | None) -> bool:
    return selector is None or any(
        (term.get("matchExpressions") or term.get("matchFields"))
        and all(parses(wanted) and matches(wanted, labels) for wanted in term.get("matchExpressions") or [])
        and all(
            wanted["operator"] in ("In", "NotIn")
            and len(wanted.get("values") or []) == 1
            and (name is None or matches(wanted, {"metadata.name": name}))
            for wanted in term.get("matchFields") or []
        )
        for term in filter(None, selector.get("nodeSelectorTerms") or [])
    )


# apimachinery/pkg/labels/selector.go NewRequirement
def parses(wanted: Object) -> bool:
    operator, values = wanted["operator"], wanted.get("values") or []
    right_count = {"In": len(values) > 0, "NotIn": len(values) > 0, "Exists": not values, "DoesNotExist": not values}
    one_integer = len(values) == 1 and INTEGER.fullmatch(values[0]) is not None
    return right_count.get(operator, one_integer) and all(LABEL_VALUE.fullmatch(value) for value in values)


# apimachinery/pkg/labels/selector.go Requirement.Matches
def matches(wanted: Object, labels: dict[str, str]) -> bool:
    operator, values, found = wanted["operator"], wanted.get("values") or [], labels.get(wanted["key"])
    if operator in ("Gt", "Lt"):
        if found is None or not INTEGER.fullmatch(found):
            return False
        return int(found) > int(values[0]) if operator == "Gt" else int(found) < int(values[0])
    there, listed = found is not None, found in values
    return {"In": listed, "NotIn": not listed, "Exists": there, "DoesNotExist": not there}[operator]


# plugins/noderesources/fit.go fitsRequest. Ours: no allocatable is room for all, no `pods` in it room for any number.
def has_room(pod: Object, node: Object, others: Objects) -> bool:
    allocatable = amounts((node.get("status") or {}).get("allocatable"))
    if not allocatable:
        return True
    capacity, used = counted(allocatable), [effective_requests(other) for other in others]
    return len(others) + 1 <= allocatable.get("pods", len(others) + 1) and all(
        amount <= capacity.get(name, 0) - sum(theirs.get(name, 0) for theirs in used)
        for name, amount in effective_requests(pod).items()
        if amount > 0
    )


# component-helpers/resource/helpers.go PodRequests
def effective_requests(pod: Object) -> dict[str, int]:
    containers, sidecars, starting = Amounts(), Amounts(), Amounts()
    for container in pod["spec"].get("containers") or []:
        containers = combined(sum, containers, requests_of(container))
    for container in pod["spec"].get("initContainers") or []:
        starting = combined(max, starting, combined(sum, sidecars, requests_of(container)))
        if container.get("restartPolicy") == "Always":
            sidecars = combined(sum, sidecars, requests_of(container))
    total = combined(max, combined(sum, containers, sidecars), starting)
    total |= pod_level_requests(pod["spec"].get("resources") or {}, total)
    return counted(combined(sum, total, amounts(pod["spec"].get("overhead"))))


# pkg/apis/core/v1/defaults.go SetDefaults_Pod: a request that is absent is the limit
def requests_of(container: Object) -> Amounts:
    resources = container.get("resources") or {}
    return amounts(resources.get("limits")) | amounts(resources.get("requests"))


# pkg/apis/core/v1/defaults.go defaultPodRequests: the same for the pod, cpu and memory if no container has them
def pod_level_requests(resources: Object, of_containers: Amounts) -> Amounts:
    limits = amounts(resources.get("limits")).items()
    stand_ins = {name: limit for name, limit in limits if name.startswith("hugepages-") or name not in of_containers}
    asked = stand_ins | amounts(resources.get("requests"))
    return {name: amount for name, amount in asked.items() if POD_LEVEL.fullmatch(name)}


# pkg/scheduler/framework/types.go Resource.Add, util/utils.go IsScalarResourceName: milli cpu, rounded up once per pod
def counted(total: Amounts) -> dict[str, int]:
    units = {name: amount * 1000 if name == "cpu" else amount for name, amount in total.items()}
    return {name: ceil(amount) for name, amount in units.items() if COUNTED.fullmatch(name)}


def amounts(resources: Object | None) -> Amounts:
    return {name: quantity(value) for name, value in (resources or {}).items()}


def combined(how: Callable[[list[Fraction]], Any], left: Amounts, right: Amounts) -> Amounts:
    return {name: how([left.get(name, Fraction(0)), right.get(name, Fraction(0))]) for name in left | right}


# apimachinery/pkg/api/resource/quantity.go, pkg/apis/core/v1/defaults.go SetDefaults_ResourceList: rounded up to milli
def quantity(value: str | float) -> Fraction:
    """Read a Kubernetes quantity: "1500m" is 3/2, "1Ki" 1024, "2e3" 2000, "1E" 10 to the 18th."""
    found = QUANTITY.fullmatch(str(value))
    assert found, f"not a quantity: {value!r}"
    number, exponent, suffix = found.groups()
    scale = Fraction(2) ** BINARY[suffix] if suffix in BINARY else Fraction(10) ** int(exponent or DECIMAL[suffix])
    return Fraction(ceil(Fraction(number) * scale * 1000), 1000)


# plugins/interpodaffinity/filtering.go satisfyPodAntiAffinity, satisfyExistingPodsAntiAffinity
def meets_anti_affinity(pod: Object, node: Object, placed: Placed) -> bool:
    return not any(
        selects(term, owner, target) and same_topology(term, node, its_node)
        for other, its_node in placed
        for owner, target in ((pod, other), (other, pod))
        for term in required(owner, "podAntiAffinity") or []
    )


# plugins/interpodaffinity/filtering.go satisfyPodAffinity: only a pod that all the terms select counts, for any of them
def meets_own_affinity(pod: Object, node: Object, placed: Placed) -> bool:
    terms = required(pod, "podAffinity") or []
    peers = [its_node for other, its_node in placed if all(selects(term, pod, other) for term in terms)]
    if all(any(same_topology(term, node, peer) for peer in peers) for term in terms):
        return True
    # The first pod of a group that wants to be together: nobody else is there, and it is itself what it looks for.
    alone = not any(term["topologyKey"] in labels_of(peer) for term in terms for peer in peers)
    return alone and all(selects(term, pod, pod) and term["topologyKey"] in labels_of(node) for term in terms)


def required(pod: Object, kind: str) -> Any:
    return ((pod["spec"].get("affinity") or {}).get(kind) or {}).get("requiredDuringSchedulingIgnoredDuringExecution")


def same_topology(term: Object, node: Object, other: Object) -> bool:
    value = labels_of(node).get(term["topologyKey"])
    return value is not None and value == labels_of(other).get(term["topologyKey"])


# kube-scheduler/framework/types.go AffinityTerm.Matches, getNamespacesFromPodAffinityTerm
def selects(term: Object, owner: Object, target: Object) -> bool:
    assert term.get("namespaceSelector") in (None, {}), "what labels a namespace has is not known here"
    named, all_of_them = term.get("namespaces") or [], term.get("namespaceSelector") == {}
    here, there = (thing["metadata"].get("namespace") or "default" for thing in (owner, target))
    meant = all_of_them or there in (named or [here])
    return meant and selected_by(merged_selector(term, owner), labels_of(target))


# pkg/registry/core/pod/strategy.go applyMatchLabelKeysAndMismatchLabelKeys: at creation, so a stored pod has it already
def merged_selector(term: Object, owner: Object) -> Object | None:
    if term.get("labelSelector") is None:
        return None
    labels, expressions = labels_of(owner), term["labelSelector"].get("matchExpressions") or []
    stored = [(wanted["key"], wanted["operator"]) for wanted in expressions if owner["spec"].get("nodeName")]
    merged = [
        {"key": key, "operator": operator, "values": [labels[key]]}
        for field, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn"))
        for key in term.get(field) or []
        if key in labels and (key, operator) not in stored
    ]
    return {**term["labelSelector"], "matchExpressions": expressions + merged}


# apimachinery/pkg/apis/meta/v1/helpers.go LabelSelectorAsSelector: null matches nothing, empty everything
def selected_by(selector: Object | None, labels: dict[str, str]) -> bool:
    return (
        selector is not None
        and all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items())
        and all(matches(wanted, labels) for wanted in selector.get("matchExpressions") or [])
    )
