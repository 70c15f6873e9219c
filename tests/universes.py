"""Small worlds to draw from: nodes, the pods on them, an opted-in VM's pod and its storage, as the API writes them.

Values come from small sets, so that things meet: requests fill a node exactly, labels match, taints are tolerated. An
API server would take all of it but null and empty lists of terms, which a webhook is shown all the same.
"""

from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

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
NODE_SELECTORS: list[Object] = [
    *[{"kubevirt.io/schedulable": "true"}] * 6,
    {"disk": "ssd"},
    {ZONE: "east"},
    {"disk": ""},
]
NO_TERMS: list[Object | None] = [
    None,
    {},
    {REQUIRED: None},
    {REQUIRED: {"nodeSelectorTerms": None}},
    {REQUIRED: {"nodeSelectorTerms": []}},
]
POD_SELECTORS: list[Object | None] = [
    {"matchLabels": {"app": "web"}},
    {"matchLabels": {"app": "web"}},
    {"matchLabels": {"app": "web", "tier": "front"}},
    {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "db"]}]},
    {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["db"]}]},
    {"matchExpressions": [{"key": "tier", "operator": "Exists"}]},
    {"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]},
    {},
    None,
]
LABEL_KEYS: list[Object] = [
    {"matchLabelKeys": ["tier"]},
    {"mismatchLabelKeys": ["tier"]},
    {"matchLabelKeys": ["absent"]},
]
# For the whole pod: at least what a container and a sidecar ask for, or the API server would refuse it.
POD_LEVEL: list[Object] = [
    {"requests": {"cpu": "2"}, "limits": {"cpu": "3"}},
    {"requests": {"memory": "2Gi"}},
    {"limits": {"cpu": "2", "memory": "2Gi"}},
]
# An empty string: the key is left out.
NODE_LABELS = {
    "kubevirt.io/schedulable": ["true"],
    ZONE: ["east", "east", "east", "west", "west", ""],
    "disk": ["ssd", "ssd", "ssd", "hdd", ""],
    "rank": ["1", "2", "3", "high", ""],
}
POD_LABELS = {"app": ["web", "web", "web", "db", ""], "tier": ["", "front", "back"]}
REQUESTS = {"cpu": ["100m", "500m", "0.5", "1", ""], "memory": ["64Mi", "512Mi", "1G", "1Gi", "", ""]}
ALLOCATABLE = {
    "cpu": ["4", "4", "3", "2", "1"],
    "memory": ["8Gi", "6Gi", "4Gi", "2048Mi", "2e9"],
    "pods": ["110", "110", "6", "4", "2", ""],
    KVM: ["1k", "1k", "1k", "2", "1", ""],
}


def one_in(number: int) -> st.SearchStrategy[bool]:
    """Draw True about once in `number` times."""
    return st.sampled_from([False] * (number - 1) + [True])


def some_of(values: list[Object], most: int) -> st.SearchStrategy[list[Object]]:
    return st.lists(st.sampled_from(values), max_size=most, unique_by=repr)


def strings(choices: dict[str, list[str]]) -> st.SearchStrategy[Object]:
    """Draw a string for each key; where it is empty, the key is left out."""
    drawn = st.fixed_dictionaries({key: st.sampled_from(values) for key, values in choices.items()})
    return drawn.map(lambda every: {key: value for key, value in every.items() if value})


def v1(kind: str, metadata: Object, **rest: Any) -> Object:
    # Copied, so that what one test does to its draw never reaches the lists above.
    return deepcopy({"apiVersion": "v1", "kind": kind, "metadata": metadata, **rest})


@st.composite
def nodes(draw: st.DrawFn, name: str) -> Object:
    """Draw one node: mostly healthy and roomy, and like the others in something."""
    labels = draw(strings(NODE_LABELS | {HOSTNAME: [name] * 6 + [f"{name}.example", ""]}))
    taints = draw(some_of(TAINTS, 2)) if draw(one_in(4)) else []
    spec: Object = {}
    if draw(one_in(8)):
        spec["unschedulable"] = True
        taints = taints + draw(st.sampled_from([[], [{"key": UNSCHEDULABLE, "effect": "NoSchedule"}]]))
    if taints:
        spec["taints"] = taints
    status: Object = {}
    if ready := draw(st.sampled_from(["True"] * 12 + ["", "False", "Unknown"])):
        status["conditions"] = [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": ready}]
    if not draw(one_in(8)):
        status["allocatable"] = draw(strings(ALLOCATABLE))
    return v1("Node", {"name": name, "labels": labels}, spec=spec, status=status)


@st.composite
def containers(draw: st.DrawFn, name: str, *, init: bool = False) -> Object:
    """Draw one container: requests, limits that stand for them, both, or nothing."""
    wanted = draw(strings(REQUESTS))
    asks, bounds = {"requests": wanted}, {"limits": wanted}
    resources: Object = draw(st.sampled_from([{}, asks, asks, bounds, asks | {"limits": wanted | {"cpu": "2"}}]))
    sidecar = {"restartPolicy": "Always"} if init and draw(st.booleans()) else {}
    return {"name": name, "image": "any"} | sidecar | ({"resources": resources} if resources else {})


@st.composite
def pod_terms(draw: st.DrawFn) -> Object:
    """Draw one required term of pod affinity or anti-affinity."""
    selector, key = draw(st.sampled_from(POD_SELECTORS)), draw(st.sampled_from([HOSTNAME, ZONE]))
    named = draw(st.sampled_from([None, None, None, [], ["default"], ["other"], ["default", "other"]]))
    return {"labelSelector": selector, "topologyKey": key} | ({} if named is None else {"namespaces": named})


@st.composite
def new_pod_terms(draw: st.DrawFn) -> Object:
    """Draw one of a pod that is being created: its label keys are not merged into its selector yet."""
    term = draw(pod_terms())
    takes_keys = term["labelSelector"] is not None and "tier" not in repr(term)
    return term | (draw(st.sampled_from(LABEL_KEYS)) if takes_keys and draw(one_in(4)) else {})


@st.composite
def neighbours(draw: st.DrawFn, name: str, node_names: list[str]) -> Object:
    """Draw one pod that is there already: running, or unbound, finished, terminating, or on a node that is gone."""
    node = draw(st.sampled_from([*node_names * 3, None, "node-gone"]))
    phase = draw(st.sampled_from(["Running"] * 5 + ["Pending", "Succeeded", "Failed"])) if node else "Pending"
    metadata: Object = {"name": name, "namespace": draw(st.sampled_from(["default", "default", "other"]))}
    spec: Object = {"containers": [draw(containers("main"))]} | ({"nodeName": node} if node else {})
    if draw(one_in(6)):
        metadata |= {"deletionTimestamp": "2026-08-01T12:00:00Z", "deletionGracePeriodSeconds": 30}
    if draw(one_in(4)):
        spec["affinity"] = {"podAntiAffinity": {REQUIRED: draw(st.lists(pod_terms(), min_size=1, max_size=2))}}
    return v1("Pod", metadata | {"labels": draw(strings(POD_LABELS))}, spec=spec, status={"phase": phase})


@st.composite
def clusters(draw: st.DrawFn) -> Object:
    """Draw `nodes`, one to four, and `pods`, up to five."""
    names = ["node-a", "node-b", "node-c", "node-d"][: draw(st.sampled_from([2, 3, 4, 3, 4, 1]))]
    count = draw(st.integers(0, 5))
    return {
        "nodes": [draw(nodes(name)) for name in names],
        "pods": [draw(neighbours(f"neighbour-{index}", names)) for index in range(count)],
    }


@st.composite
def node_terms(draw: st.DrawFn) -> Object:
    """Draw one node selector term that is not empty."""
    term: Object = {}
    kind = draw(st.sampled_from([*["expressions"] * 5, "fields", "both"]))
    if kind != "fields":
        term["matchExpressions"] = draw(some_of(NODE_EXPRESSIONS, 2)) or [KUBEVIRTS_OWN]
    if kind != "expressions":
        operator, name = draw(st.sampled_from(["In", "NotIn"])), draw(st.sampled_from(["node-a", "node-b"]))
        term["matchFields"] = [{"key": "metadata.name", "operator": operator, "values": [name]}]
    return term


@st.composite
def affinities(draw: st.DrawFn) -> Object:
    """Draw the affinity of the VM's pod: mostly KubeVirt's own required term, or some of the user's."""
    affinity: Object = {}
    terms: st.SearchStrategy[Any] = node_terms() | node_terms() | node_terms() | st.sampled_from([{}, None])
    kind = draw(st.sampled_from(["kubevirt"] * 4 + ["user"] * 4 + ["no terms", "none"]))
    if kind == "kubevirt":
        affinity["nodeAffinity"] = {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [KUBEVIRTS_OWN]}]}}
    elif kind == "user":
        affinity["nodeAffinity"] = {REQUIRED: {"nodeSelectorTerms": draw(st.lists(terms, min_size=1, max_size=3))}}
    elif kind == "no terms":
        affinity["nodeAffinity"] = draw(st.sampled_from(NO_TERMS))
    if draw(one_in(4)):
        affinity["podAntiAffinity"] = {REQUIRED: draw(st.lists(new_pod_terms(), min_size=1, max_size=2))}
    if draw(one_in(6)):
        affinity["podAffinity"] = {REQUIRED: draw(st.lists(new_pod_terms(), min_size=1, max_size=2))}
    return affinity


@st.composite
def pods(draw: st.DrawFn) -> Object:
    """Draw a virt-launcher pod as a webhook is sent it: opted in, not bound, with the claim disk1."""
    compute = draw(containers("compute"))
    if draw(one_in(3)):
        compute["resources"] = {"limits": {}} | compute.get("resources", {})
        compute["resources"]["limits"] |= {KVM: "1"}
    init = [draw(containers(f"init-{index}", init=True)) for index in range(draw(st.sampled_from([0, 0, 1, 2, 3])))]
    spec: Object = {
        "containers": [compute],
        "tolerations": DEFAULT_TOLERATIONS + draw(some_of(TOLERATIONS, 2)),
        "volumes": [{"name": "disk", "persistentVolumeClaim": {"claimName": "disk1"}}],
    }
    optional: Object = {
        "affinity": draw(affinities()),
        "initContainers": init,
        "nodeSelector": draw(st.sampled_from(NODE_SELECTORS)) if draw(st.booleans()) else None,
        "overhead": {"cpu": "250m", "memory": "120Mi"} if draw(one_in(8)) else None,
        "resources": draw(st.sampled_from(POD_LEVEL)) if len(init) <= 1 and draw(one_in(5)) else None,
    }
    spec |= {field: value for field, value in optional.items() if value}
    labels = {"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": "uid-of-vm1"} | draw(strings(POD_LABELS))
    annotations = {"kubevirt-scheduler/co-schedule": "true", "kubevirt.io/domain": "vm1"}
    return v1("Pod", {"generateName": "virt-launcher-vm1-", "labels": labels, "annotations": annotations}, spec=spec)


@st.composite
def storage(draw: st.DrawFn, node: str) -> Object:
    """Draw `pvc`, `pv` and `pod`: the claim disk1, its Longhorn volume, and the share-manager pod on `node`."""
    pv_spec: Object = {"accessModes": ["ReadWriteMany"], "capacity": {"storage": "10Gi"}}
    pv_spec |= {"csi": {"driver": "driver.longhorn.io", "volumeHandle": "vol-disk1"}}
    if draw(one_in(6)):
        terms = draw(st.lists(node_terms(), min_size=1, max_size=2))
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
    node = draw(st.sampled_from([each["metadata"]["name"] for each in cluster["nodes"]]))
    stored = draw(storage(node))
    serving = {"pods": [*cluster["pods"], stored["pod"]], "node": node}
    return {"pod": pod, "nodes": cluster["nodes"], "pvc": stored["pvc"], "pv": stored["pv"]} | serving
