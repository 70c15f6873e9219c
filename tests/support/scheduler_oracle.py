"""A reference model of kube-scheduler 1.36's Filter rules, as simple as possible, to test the node guard against.

Objects are plain dicts, and the model shares no code with the product. The comment on a rule names its upstream file:
`plugins/` is pkg/scheduler/framework/plugins, `corev1/` is component-helpers/scheduling/corev1.

Not modeled: host ports, topology spread, resource claims, volumes per node, zone labels of volumes, in-place resizes,
and tolerations that compare numbers.
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
SCHEDULER_RESOURCES = re.compile(r"cpu|memory|ephemeral-storage|hugepages-.*|.*/.*")
POD_LEVEL_RESOURCES = re.compile(r"cpu|memory|hugepages-.*")
INTEGER = re.compile(r"[+-]?[0-9]+")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")


def feasible_nodes(
    pod: Object, nodes: Objects, pods: Objects, pvs: Objects = (), namespace: str = "default"
) -> set[str]:
    """Return the names of the nodes that the default scheduler's filters admit; `pvs` are the PVs of the pod."""
    new_pod = {**pod, "metadata": {**pod["metadata"], "namespace": pod["metadata"].get("namespace") or namespace}}
    # pkg/scheduler/scheduler.go NewInformerFactory: the scheduler ignores finished pods and counts terminating pods.
    active_pods = [other for other in pods if (other.get("status") or {}).get("phase") not in ("Succeeded", "Failed")]
    by_name = {node["metadata"]["name"]: node for node in nodes}
    placed = [(other, by_name[name]) for other in active_pods if (name := other["spec"].get("nodeName")) in by_name]
    return {
        name
        for name, node in by_name.items()
        if is_ready(node)
        and has_only_tolerated_taints(new_pod, node)
        and matches_node_affinity(new_pod, node)
        and all(volume_reaches(pv, node) for pv in pvs)
        and fits_resources(new_pod, node, [other for other, other_node in placed if other_node is node])
        and satisfies_pod_anti_affinity(new_pod, node, placed)
        and satisfies_pod_affinity(new_pod, node, placed)
    }


def labels_of(manifest: Object) -> dict[str, str]:
    return manifest["metadata"].get("labels") or {}


# Not a Filter rule: pkg/controller/nodelifecycle taints a node that is not ready.
def is_ready(node: Object) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or []
    return all(condition["status"] == "True" for condition in conditions if condition["type"] == "Ready")


# plugins/tainttoleration/taint_toleration.go, plugins/nodeunschedulable/node_unschedulable.go: a cordon acts as a taint
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
    node_selector_matches = selected_by({"matchLabels": pod["spec"].get("nodeSelector")}, labels_of(node))
    return node_selector_matches and matches_any_term(
        required(pod, "nodeAffinity"), labels_of(node), node["metadata"]["name"]
    )


# component-helpers/storage/volume/helpers.go CheckNodeAffinity: passes the node's labels and not its name
def volume_reaches(pv: Object, node: Object) -> bool:
    return matches_any_term((pv["spec"].get("nodeAffinity") or {}).get("required"), labels_of(node), name=None)


# corev1/nodeaffinity/nodeaffinity.go: an empty or invalid term matches nothing; a null name skips matchFields
def matches_any_term(selector: Object | None, labels: dict[str, str], name: str | None) -> bool:
    return selector is None or any(
        (term.get("matchExpressions") or term.get("matchFields"))
        and all(
            is_valid(requirement) and matches(requirement, labels) for requirement in term.get("matchExpressions") or []
        )
        and all(
            requirement["operator"] in ("In", "NotIn")
            and len(requirement.get("values") or []) == 1
            and (name is None or matches(requirement, {"metadata.name": name}))
            for requirement in term.get("matchFields") or []
        )
        for term in filter(None, selector.get("nodeSelectorTerms") or [])
    )


# apimachinery/pkg/labels/selector.go NewRequirement
def is_valid(requirement: Object) -> bool:
    operator, values = requirement["operator"], requirement.get("values") or []
    valid_count = {"In": len(values) > 0, "NotIn": len(values) > 0, "Exists": not values, "DoesNotExist": not values}
    one_integer = len(values) == 1 and INTEGER.fullmatch(values[0]) is not None
    return valid_count.get(operator, one_integer) and all(LABEL_VALUE.fullmatch(value) for value in values)


# apimachinery/pkg/labels/selector.go Requirement.Matches
def matches(requirement: Object, labels: dict[str, str]) -> bool:
    operator, values, value = requirement["operator"], requirement.get("values") or [], labels.get(requirement["key"])
    if operator in ("Gt", "Lt"):
        if value is None or not INTEGER.fullmatch(value):
            return False
        return int(value) > int(values[0]) if operator == "Gt" else int(value) < int(values[0])
    present, listed = value is not None, value in values
    return {"In": listed, "NotIn": not listed, "Exists": present, "DoesNotExist": not present}[operator]


# plugins/noderesources/fit.go fitsRequest. Our addition: absent allocatable or `pods` means unlimited.
def fits_resources(pod: Object, node: Object, others: Objects) -> bool:
    allocatable = amounts((node.get("status") or {}).get("allocatable"))
    if not allocatable:
        return True
    capacity, used = in_scheduler_units(allocatable), [effective_requests(other) for other in others]
    return len(others) + 1 <= allocatable.get("pods", len(others) + 1) and all(
        amount <= capacity.get(name, 0) - sum(requests.get(name, 0) for requests in used)
        for name, amount in effective_requests(pod).items()
        if amount > 0
    )


# component-helpers/resource/helpers.go PodRequests
def effective_requests(pod: Object) -> dict[str, int]:
    containers, sidecars, init_peak = Amounts(), Amounts(), Amounts()
    for container in pod["spec"].get("containers") or []:
        containers = combined(sum, containers, requests_of(container))
    for container in pod["spec"].get("initContainers") or []:
        init_peak = combined(max, init_peak, combined(sum, sidecars, requests_of(container)))
        if container.get("restartPolicy") == "Always":
            sidecars = combined(sum, sidecars, requests_of(container))
    total = combined(max, combined(sum, containers, sidecars), init_peak)
    total |= pod_level_requests(pod["spec"].get("resources") or {}, total)
    return in_scheduler_units(combined(sum, total, amounts(pod["spec"].get("overhead"))))


# pkg/apis/core/v1/defaults.go SetDefaults_Pod: an absent request defaults to the limit
def requests_of(container: Object) -> Amounts:
    resources = container.get("resources") or {}
    return amounts(resources.get("limits")) | amounts(resources.get("requests"))


# pkg/apis/core/v1/defaults.go defaultPodRequests: the pod's limit is its default, for cpu and memory if no container
# requests them
def pod_level_requests(resources: Object, container_requests: Amounts) -> Amounts:
    limits = amounts(resources.get("limits")).items()
    defaults = {
        name: limit for name, limit in limits if name.startswith("hugepages-") or name not in container_requests
    }
    requests = defaults | amounts(resources.get("requests"))
    return {name: amount for name, amount in requests.items() if POD_LEVEL_RESOURCES.fullmatch(name)}


# pkg/scheduler/framework/types.go Resource.Add, util/utils.go IsScalarResourceName: milli cpu, rounded up per pod
def in_scheduler_units(total: Amounts) -> dict[str, int]:
    scaled = {name: amount * 1000 if name == "cpu" else amount for name, amount in total.items()}
    return {name: ceil(amount) for name, amount in scaled.items() if SCHEDULER_RESOURCES.fullmatch(name)}


def amounts(resources: Object | None) -> Amounts:
    return {name: quantity(value) for name, value in (resources or {}).items()}


def combined(operation: Callable[[list[Fraction]], Any], left: Amounts, right: Amounts) -> Amounts:
    return {name: operation([left.get(name, Fraction(0)), right.get(name, Fraction(0))]) for name in left | right}


# apimachinery/pkg/api/resource/quantity.go, pkg/apis/core/v1/defaults.go SetDefaults_ResourceList: rounds up to 1/1000
def quantity(value: str | float) -> Fraction:
    """Parse a Kubernetes quantity: "1500m" is 3/2, "1Ki" is 1024, "2e3" is 2000, "1E" is 10 to the 18th.

    Raises AssertionError if the value is not a quantity.
    """
    match = QUANTITY.fullmatch(str(value))
    assert match, f"not a quantity: {value!r}"
    number, exponent, suffix = match.groups()
    scale = Fraction(2) ** BINARY[suffix] if suffix in BINARY else Fraction(10) ** int(exponent or DECIMAL[suffix])
    return Fraction(ceil(Fraction(number) * scale * 1000), 1000)


# plugins/interpodaffinity/filtering.go satisfyPodAntiAffinity, satisfyExistingPodsAntiAffinity
def satisfies_pod_anti_affinity(pod: Object, node: Object, placed: Placed) -> bool:
    return not any(
        selects(term, owner, target) and same_topology(term, node, other_node)
        for other, other_node in placed
        for owner, target in ((pod, other), (other, pod))
        for term in required(owner, "podAntiAffinity") or []
    )


# plugins/interpodaffinity/filtering.go satisfyPodAffinity: a pod counts for a term only if all terms select the pod
def satisfies_pod_affinity(pod: Object, node: Object, placed: Placed) -> bool:
    terms = required(pod, "podAffinity") or []
    peers = [other_node for other, other_node in placed if all(selects(term, pod, other) for term in terms)]
    if all(any(same_topology(term, node, peer) for peer in peers) for term in terms):
        return True
    # The first pod of a group: no existing pod matches, and the pod's terms select the pod itself.
    is_first = not any(term["topologyKey"] in labels_of(peer) for term in terms for peer in peers)
    return is_first and all(selects(term, pod, pod) and term["topologyKey"] in labels_of(node) for term in terms)


def required(pod: Object, kind: str) -> Any:
    return ((pod["spec"].get("affinity") or {}).get(kind) or {}).get("requiredDuringSchedulingIgnoredDuringExecution")


def same_topology(term: Object, node: Object, other: Object) -> bool:
    value = labels_of(node).get(term["topologyKey"])
    return value is not None and value == labels_of(other).get(term["topologyKey"])


# kube-scheduler/framework/types.go AffinityTerm.Matches, getNamespacesFromPodAffinityTerm
def selects(term: Object, owner: Object, target: Object) -> bool:
    assert term.get("namespaceSelector") in (None, {}), "the model does not know the labels of namespaces"
    named, has_namespace_selector = term.get("namespaces") or [], term.get("namespaceSelector") == {}
    owner_namespace, target_namespace = (pod["metadata"].get("namespace") or "default" for pod in (owner, target))
    namespace_matches = has_namespace_selector or target_namespace in (named or [owner_namespace])
    return namespace_matches and selected_by(merged_selector(term, owner), labels_of(target))


# pkg/registry/core/pod/strategy.go applyMatchLabelKeysAndMismatchLabelKeys: runs at creation, so stored pods are merged
def merged_selector(term: Object, owner: Object) -> Object | None:
    if term.get("labelSelector") is None:
        return None
    labels, expressions = labels_of(owner), term["labelSelector"].get("matchExpressions") or []
    stored = [
        (requirement["key"], requirement["operator"]) for requirement in expressions if owner["spec"].get("nodeName")
    ]
    merged = [
        {"key": key, "operator": operator, "values": [labels[key]]}
        for field, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn"))
        for key in term.get(field) or []
        if key in labels and (key, operator) not in stored
    ]
    return {**term["labelSelector"], "matchExpressions": expressions + merged}


# apimachinery/pkg/apis/meta/v1/helpers.go LabelSelectorAsSelector: null matches nothing, empty matches everything
def selected_by(selector: Object | None, labels: dict[str, str]) -> bool:
    return (
        selector is not None
        and all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items())
        and all(matches(requirement, labels) for requirement in selector.get("matchExpressions") or [])
    )
