"""Small worlds to draw from: nodes, the pods on them, an opted-in VM's pod and its storage, as the API writes them.

Values come from small sets, so that things meet: requests fill a node exactly, labels match, taints are tolerated. An
API server would take all of it but null and empty lists of terms, which a webhook is shown all the same.
"""

from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from typing import Any, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")
Object = dict[str, Any]

HOSTNAME, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
KVM = "devices.kubevirt.io/kvm"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

TAINTS: list[Object] = [
    {"key": "dedicated", "value": "vm", "effect": "NoSchedule"},
    {"key": "dedicated", "value": "db", "effect": "NoExecute"},
    {"key": "maintenance", "effect": "NoSchedule"},
    {"key": "maintenance", "effect": "PreferNoSchedule"},
]
# What the DefaultTolerationSeconds admission plugin gives to every pod.
DEFAULT_TOLERATIONS: list[Object] = [
    {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for what in ("not-ready", "unreachable")
]
TOLERATIONS: list[Object] = [
    {"key": "dedicated", "operator": "Equal", "value": "vm", "effect": "NoSchedule"},
    {"key": "dedicated", "value": "vm"},
    {"key": "dedicated", "value": "db", "effect": "NoSchedule"},
    {"key": "dedicated", "operator": "Exists"},
    {"key": "maintenance", "operator": "Exists", "effect": "NoSchedule"},
    {"key": "maintenance", "effect": "NoExecute"},
    {"key": UNSCHEDULABLE, "operator": "Exists", "effect": "NoSchedule"},
    {"operator": "Exists", "effect": "NoExecute"},
    {"operator": "Exists"},
]
KUBEVIRTS_OWN: Object = {"key": "node-labeller.kubevirt.io/obsolete-host-model", "operator": "DoesNotExist"}
NODE_EXPRESSIONS: list[Object] = [
    KUBEVIRTS_OWN,
    {"key": "disk", "operator": "In", "values": ["ssd"]},
    {"key": "disk", "operator": "In", "values": ["ssd", "hdd"]},
    {"key": "disk", "operator": "NotIn", "values": ["hdd"]},
    {"key": "disk", "operator": "Exists"},
    {"key": "disk", "operator": "DoesNotExist"},
    {"key": ZONE, "operator": "In", "values": ["east"]},
    {"key": ZONE, "operator": "NotIn", "values": ["east"]},
    {"key": "rank", "operator": "Gt", "values": ["1"]},
    {"key": "rank", "operator": "Lt", "values": ["2"]},
    {"key": HOSTNAME, "operator": "In", "values": ["node-a", "node-b"]},
]
SCHEDULABLE = {"kubevirt.io/schedulable": "true"}
NODE_SELECTORS: list[Object] = [*[SCHEDULABLE] * 9, {"disk": "ssd"}, {ZONE: "east"}, {"disk": ""}]
NULL_TERMS: list[Object | None] = [None, {}]
TERMLESS: list[Object | None] = [None, {"nodeSelectorTerms": None}, {"nodeSelectorTerms": []}]
NO_TERMS: list[Object | None] = [None, {}, *({REQUIRED: required} for required in TERMLESS)]
POD_SELECTORS: list[Object | None] = [
    *[{"matchLabels": {"app": "web"}}] * 4,
    {"matchLabels": {"app": "web", "tier": "front"}},
    {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "db"]}]},
    {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["db"]}]},
    {"matchExpressions": [{"key": "tier", "operator": "Exists"}]},
    {"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]},
    {},
    None,
]
LABEL_KEYS: list[Object] = [*[{}] * 6, *({field: ["tier"]} for field in ("matchLabelKeys", "mismatchLabelKeys"))]
LABEL_KEYS += [{"matchLabelKeys": ["gpu"]}]
# For the whole pod: at least what a container and a sidecar ask for, or the API server would refuse it.
POD_LEVEL: list[Object] = [
    {"requests": {"cpu": "2"}, "limits": {"cpu": "3"}},
    {"requests": {"memory": "2Gi"}},
    {"limits": {"cpu": "2", "memory": "2Gi"}},
]
# An empty string: the key is left out.
NODE_LABELS = {
    ZONE: ["east", "east", "east", "west", "west", ""],
    "disk": ["ssd", "ssd", "ssd", "hdd", ""],
    "rank": ["1", "2", "3", "high", ""],
}
NAMESPACES: list[Object] = [*[{}] * 4, {"namespaces": []}, *({"namespaces": [name]} for name in ("default", "other"))]
POD_LABELS = {"app": ["web", "web", "web", "db", ""], "tier": ["", "front", "back"]}
REQUESTS = {"cpu": ["100m", "500m", "0.5", "1", ""], "memory": ["64Mi", "512Mi", "1G", "1Gi", "", ""]}
LIMITS = {"cpu": "2", "memory": "2Gi"}
ALLOCATABLE = {
    "cpu": ["8", "4", "3", "2", "1"],
    "memory": ["8Gi", "6Gi", "4Gi", "2048Mi", "2e9"],
    "pods": ["110", "110", "110", "4", "2", ""],
    KVM: ["1k", "1k", "1k", "2", "1", ""],
}


@cache
def up_to(most: int) -> st.SearchStrategy[int]:
    return st.integers(0, most)


def pick(draw: st.DrawFn, values: Sequence[T]) -> T:
    """Draw one of the values; shrinks to the first."""
    return values[draw(up_to(len(values) - 1))]


def pick_some(draw: st.DrawFn, values: list[Object], most: int) -> list[Object]:
    picked = [pick(draw, values) for _ in range(draw(up_to(most)))]
    return [value for index, value in enumerate(picked) if value not in picked[:index]]


def one_in(draw: st.DrawFn, number: int) -> bool:
    return draw(up_to(number - 1)) == number - 1


def strings(draw: st.DrawFn, choices: dict[str, list[str]]) -> Object:
    return {key: value for key, values in choices.items() if (value := pick(draw, values))}


def v1(kind: str, metadata: Object, **rest: Any) -> Object:
    # Copied, so that what a test does to its draw never reaches the lists above.
    return deepcopy({"apiVersion": "v1", "kind": kind, "metadata": metadata, **rest})


def a_node(draw: st.DrawFn, name: str) -> Object:
    labels = strings(draw, NODE_LABELS | {HOSTNAME: [name] * 6 + [f"{name}.example", ""]}) | SCHEDULABLE
    taints = pick_some(draw, TAINTS, 2) if one_in(draw, 5) else []
    spec: Object = {}
    if one_in(draw, 9):
        spec["unschedulable"] = True
        taints += pick(draw, [[], [{"key": UNSCHEDULABLE, "effect": "NoSchedule"}]])
    if taints:
        spec["taints"] = taints
    status: Object = {}
    if ready := pick(draw, ["True"] * 16 + ["", "False", "Unknown"]):
        status["conditions"] = [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": ready}]
    if not one_in(draw, 8):
        status["allocatable"] = strings(draw, ALLOCATABLE)
    return v1("Node", {"name": name, "labels": labels}, spec=spec, status=status)


def a_container(draw: st.DrawFn, name: str) -> Object:
    """Draw one container: requests, limits that stand for them, both, or nothing."""
    wanted = strings(draw, REQUESTS)
    asks, bounds = {"requests": wanted}, {key: LIMITS[key] for key in wanted}
    resources = pick(draw, [{}, asks, asks, {"limits": wanted}, asks | {"limits": bounds}])
    return {"name": name, "image": "any"} | ({"resources": resources} if resources else {})


def pod_terms(draw: st.DrawFn, *, new: bool) -> Object:
    """Draw required terms; those of a new pod may have label keys, which the API server has not merged yet."""
    terms: list[Object] = []
    for _ in range(pick(draw, [1, 2])):
        term = {"labelSelector": pick(draw, POD_SELECTORS), "topologyKey": pick(draw, [HOSTNAME, ZONE])}
        takes_keys = new and term["labelSelector"] is not None and "tier" not in repr(term)
        terms.append(term | pick(draw, NAMESPACES) | (pick(draw, LABEL_KEYS) if takes_keys else {}))
    return {REQUIRED: terms}


def a_neighbour(draw: st.DrawFn, name: str, node_names: list[str]) -> Object:
    """Draw a pod that is there already: running, or unbound, finished, terminating, or on a node that is gone."""
    node = pick(draw, [*node_names * 4, None, "node-gone"])
    phase = pick(draw, ["Running"] * 6 + ["Pending", "Succeeded", "Failed"]) if node else "Pending"
    metadata: Object = {"name": name, "namespace": pick(draw, ["default", "default", "other"])}
    metadata["labels"] = strings(draw, POD_LABELS)
    if one_in(draw, 6):
        metadata |= {"deletionTimestamp": "2026-08-01T12:00:00Z", "deletionGracePeriodSeconds": 30}
    spec: Object = {"containers": [a_container(draw, "main")]} | ({"nodeName": node} if node else {})
    if one_in(draw, 6):
        spec["affinity"] = {"podAntiAffinity": pod_terms(draw, new=False)}
    return v1("Pod", metadata, spec=spec, status={"phase": phase})


def a_node_term(draw: st.DrawFn) -> Object:
    term: Object = {}
    kind = pick(draw, ["expressions"] * 5 + ["fields", "both"])
    if kind != "fields":
        term["matchExpressions"] = pick_some(draw, NODE_EXPRESSIONS, 2) or [KUBEVIRTS_OWN]
    if kind != "expressions":
        operator, name = pick(draw, ["In", "NotIn"]), pick(draw, ["node-a", "node-b"])
        term["matchFields"] = [{"key": "metadata.name", "operator": operator, "values": [name]}]
    return term


def an_affinity(draw: st.DrawFn) -> Object:
    """Draw the affinity of the VM's pod: mostly KubeVirt's own required term, or some of the user's."""
    affinity: Object = {}
    kind = pick(draw, ["kubevirt"] * 4 + ["user"] * 4 + ["no terms", "none"])
    if kind == "kubevirt":
        affinity["nodeAffinity"] = {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [KUBEVIRTS_OWN]}]}}
    elif kind == "user":
        count = pick(draw, [1, 2, 3])
        terms = [pick(draw, NULL_TERMS) if one_in(draw, 5) else a_node_term(draw) for _ in range(count)]
        affinity["nodeAffinity"] = {REQUIRED: {"nodeSelectorTerms": terms}}
    elif kind == "no terms":
        affinity["nodeAffinity"] = pick(draw, NO_TERMS)
    if one_in(draw, 5):
        affinity["podAntiAffinity"] = pod_terms(draw, new=True)
    if one_in(draw, 8):
        affinity["podAffinity"] = pod_terms(draw, new=True)
    return affinity


@st.composite
def clusters(draw: st.DrawFn) -> Object:
    """Draw `nodes`, one to four, and `pods`, up to six."""
    names = ["node-a", "node-b", "node-c", "node-d"][: pick(draw, [2, 3, 4, 1, 3, 4, 2, 3, 4, 4])]
    neighbours = [a_neighbour(draw, f"neighbour-{index}", names) for index in range(draw(up_to(6)))]
    return {"nodes": [a_node(draw, name) for name in names], "pods": neighbours}


@st.composite
def pods(draw: st.DrawFn) -> Object:
    """Draw a virt-launcher pod as a webhook is sent it: opted in, not bound, with the claim disk1."""
    compute = a_container(draw, "compute")
    if one_in(draw, 3):
        resources = compute.get("resources", {})
        compute["resources"] = resources | {"limits": resources.get("limits", {}) | {KVM: "1"}}
    init = [a_container(draw, f"init-{index}") for index in range(pick(draw, [0, 0, 1, 2, 3]))]
    init = [container | pick(draw, [{}, {"restartPolicy": "Always"}]) for container in init]
    spec = {
        "containers": [compute],
        "initContainers": init,
        "tolerations": DEFAULT_TOLERATIONS + pick_some(draw, TOLERATIONS, 2),
        "volumes": [{"name": "disk", "persistentVolumeClaim": {"claimName": "disk1"}}],
        "affinity": an_affinity(draw),
        "nodeSelector": pick(draw, NODE_SELECTORS) if one_in(draw, 2) else None,
        "overhead": {"cpu": "250m", "memory": "120Mi"} if one_in(draw, 8) else None,
        "resources": pick(draw, POD_LEVEL) if len(init) <= 1 and one_in(draw, 5) else None,
    }
    labels = {"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": "uid-of-vm1"} | strings(draw, POD_LABELS)
    annotations = {"kubevirt-scheduler/co-schedule": "true", "kubevirt.io/domain": "vm1"}
    metadata = {"generateName": "virt-launcher-vm1-", "labels": labels, "annotations": annotations}
    return v1("Pod", metadata, spec={field: value for field, value in spec.items() if value})


@st.composite
def storage(draw: st.DrawFn, node: str) -> Object:
    """Draw `pvc`, `pv` and `pod`: the claim disk1, its Longhorn volume, and the share-manager pod on `node`."""
    pv_spec: Object = {"accessModes": ["ReadWriteMany"], "capacity": {"storage": "10Gi"}}
    pv_spec |= {"csi": {"driver": "driver.longhorn.io", "volumeHandle": "vol-disk1"}}
    if one_in(draw, 4):
        terms = [a_node_term(draw) for _ in range(pick(draw, [1, 2]))]
        pv_spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
    pvc_spec = {"accessModes": ["ReadWriteMany"], "volumeName": "pvc-disk1"}
    labels = {"longhorn.io/component": "share-manager", "longhorn.io/share-manager": "vol-disk1"}
    metadata = {"name": "share-manager-vol-disk1", "namespace": "longhorn-system", "labels": labels}
    pod_spec = {"nodeName": node, "containers": [{"name": "share-manager", "image": "any"}]}
    return {
        "pvc": v1("PersistentVolumeClaim", {"name": "disk1", "namespace": "default"}, spec=pvc_spec),
        "pv": v1("PersistentVolume", {"name": "pvc-disk1"}, spec=pv_spec),
        "pod": v1("Pod", metadata, spec=pod_spec, status={"phase": "Running"}),
    }


@st.composite
def universes(draw: st.DrawFn) -> Object:
    """Draw `pod`, `nodes`, `pods` with the share-manager pod last, `pvc`, `pv`, and `node`, its node."""
    cluster, pod = draw(clusters()), draw(pods())
    node = pick(draw, [each["metadata"]["name"] for each in cluster["nodes"]])
    stored = draw(storage(node))
    serving = {"pods": [*cluster["pods"], stored["pod"]], "node": node}
    return {"pod": pod, "nodes": cluster["nodes"], "pvc": stored["pvc"], "pv": stored["pv"]} | serving
