"""Hypothesis strategies that draw small clusters: nodes, their pods, the pod of an opted-in VM, and its storage.

Values come from small sets so that objects interact: requests fill a node exactly, labels match, taints are tolerated.
An API server would accept every object, except null and empty lists of terms. A webhook may receive those as well.
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
BETA_ZONE, REGION = "failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/region"
KVM = "devices.kubevirt.io/kvm"
OTHER_DRIVER = "disks.example.com"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

TAINTS: list[Object] = [
    {"key": "dedicated", "value": "vm", "effect": "NoSchedule"},
    {"key": "dedicated", "value": "db", "effect": "NoExecute"},
    {"key": "maintenance", "effect": "NoSchedule"},
    {"key": "maintenance", "effect": "PreferNoSchedule"},
]
# The DefaultTolerationSeconds admission plugin adds these to every pod.
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
KUBEVIRT_REQUIREMENT: Object = {"key": "node-labeller.kubevirt.io/obsolete-host-model", "operator": "DoesNotExist"}
NODE_EXPRESSIONS: list[Object] = [
    KUBEVIRT_REQUIREMENT,
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
REQUIRED_WITHOUT_TERMS: list[Object | None] = [None, {"nodeSelectorTerms": None}, {"nodeSelectorTerms": []}]
NODE_AFFINITY_WITHOUT_TERMS: list[Object | None] = [
    None,
    {},
    *({REQUIRED: required} for required in REQUIRED_WITHOUT_TERMS),
]
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
# Each amount covers the requests of one container and one sidecar: the API server refuses less.
POD_LEVEL_RESOURCES: list[Object] = [
    {"requests": {"cpu": "2"}, "limits": {"cpu": "3"}},
    {"requests": {"memory": "2Gi"}},
    {"limits": {"cpu": "2", "memory": "2Gi"}},
]
# An empty string omits the key.
NODE_LABELS = {
    ZONE: ["east", "east", "east", "west", "west", ""],
    "disk": ["ssd", "ssd", "ssd", "hdd", ""],
    "rank": ["1", "2", "3", "high", ""],
}
NAMESPACES: list[Object] = [*[{}] * 4, {"namespaces": []}, *({"namespaces": [name]} for name in ("default", "other"))]
POD_LABELS = {"app": ["web", "web", "web", "db", ""], "tier": ["", "front", "back"]}
REQUESTS = {"cpu": ["100m", "500m", "0.5", "1", ""], "memory": ["64Mi", "512Mi", "1G", "1Gi", "", ""]}
LIMITS = {"cpu": "2", "memory": "2Gi"}
HIGH: Object = {"priorityClassName": "high", "priority": 1000}
PRIORITIES: list[Object] = [{}, {}, HIGH]
PV_LABELS: list[Object] = [*[{}] * 6, {ZONE: "east"}, {ZONE: "west__east"}, {BETA_ZONE: "west"}, {REGION: "r"}]
ALLOCATABLE = {
    "cpu": ["4", "3", "2", "1500m", "1"],
    "memory": ["8Gi", "6Gi", "4Gi", "2048Mi", "2e9"],
    "pods": ["110", "110", "110", "4", "2", ""],
    KVM: ["1k", "1k", "1k", "2", "1", ""],
}


@cache
def up_to(maximum: int) -> st.SearchStrategy[int]:
    return st.integers(0, maximum)


def pick(draw: st.DrawFn, values: Sequence[T]) -> T:
    """Draw one of the values. Hypothesis shrinks to the first."""
    return values[draw(up_to(len(values) - 1))]


def pick_some(draw: st.DrawFn, values: list[Object], maximum: int) -> list[Object]:
    picked = [pick(draw, values) for _ in range(draw(up_to(maximum)))]
    return [value for index, value in enumerate(picked) if value not in picked[:index]]


def one_in(draw: st.DrawFn, number: int) -> bool:
    return draw(up_to(number - 1)) == number - 1


def pick_strings(draw: st.DrawFn, choices: dict[str, list[str]]) -> Object:
    return {key: value for key, values in choices.items() if (value := pick(draw, values))}


def v1_object(kind: str, metadata: Object, **rest: Any) -> Object:
    # Copied, because a test that changes its draw must not change the lists above.
    return deepcopy({"apiVersion": "v1", "kind": kind, "metadata": metadata, **rest})


def draw_node(draw: st.DrawFn, name: str) -> Object:
    labels = pick_strings(draw, NODE_LABELS | {HOSTNAME: [name] * 6 + [f"{name}.example", ""]}) | SCHEDULABLE
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
        status["allocatable"] = pick_strings(draw, ALLOCATABLE)
    return v1_object("Node", {"name": name, "labels": labels}, spec=spec, status=status)


def draw_container(draw: st.DrawFn, name: str) -> Object:
    """Draw a container with requests, with limits that default the requests, with both, or with neither."""
    amounts = pick_strings(draw, REQUESTS)
    requests, limits = {"requests": amounts}, {key: LIMITS[key] for key in amounts}
    resources = pick(draw, [{}, requests, requests, {"limits": amounts}, requests | {"limits": limits}])
    return {"name": name, "image": "any"} | ({"resources": resources} if resources else {})


def draw_pod_terms(draw: st.DrawFn, *, new: bool) -> Object:
    """Draw required pod (anti-)affinity terms. A `new` pod may have label keys, not merged yet by the API server."""
    terms: list[Object] = []
    for _ in range(pick(draw, [1, 2])):
        term = {"labelSelector": pick(draw, POD_SELECTORS), "topologyKey": pick(draw, [HOSTNAME, ZONE])}
        allows_label_keys = new and term["labelSelector"] is not None and "tier" not in repr(term)
        terms.append(term | pick(draw, NAMESPACES) | (pick(draw, LABEL_KEYS) if allows_label_keys else {}))
    return {REQUIRED: terms}


def draw_resize(draw: st.DrawFn, pod: Object) -> None:
    """Let the pod be resized: its status has the actual and the allocated amounts."""
    amounts = {
        "resources": {"requests": pick_strings(draw, REQUESTS)},
        "allocatedResources": pick_strings(draw, REQUESTS),
    }
    pod["status"]["containerStatuses"] = [{"name": "main"} | amounts]
    if one_in(draw, 2):
        pod["spec"]["resources"] = {"requests": {"cpu": "1500m"}}
        pod["status"]["resources"] = {"requests": {"cpu": pick(draw, ["500m", "2"]), "memory": "512Mi"}}
    if one_in(draw, 3):
        reason = pick(draw, ["Infeasible", "Deferred"])
        pod["status"]["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": reason}]


def draw_nominated_pod(draw: st.DrawFn, name: str, node_names: list[str]) -> Object:
    """Draw an unbound pod for which the scheduler has preempted pods on a node."""
    metadata = {"name": name, "namespace": "default", "labels": pick_strings(draw, POD_LABELS)}
    spec: Object = {"containers": [draw_container(draw, "main")]} | pick(draw, PRIORITIES)
    if one_in(draw, 3):
        spec["affinity"] = {"podAntiAffinity": draw_pod_terms(draw, new=False)}
    status = {"phase": "Pending", "nominatedNodeName": pick(draw, node_names)}
    return v1_object("Pod", metadata, spec=spec, status=status)


def draw_existing_pod(draw: st.DrawFn, name: str, node_names: list[str]) -> Object:
    """Draw an existing pod: running, nominated, unbound, finished, terminating, or bound to a deleted node."""
    if one_in(draw, 6):
        return draw_nominated_pod(draw, name, node_names)
    node = pick(draw, [*node_names * 4, None, "node-gone"])
    phase = pick(draw, ["Running"] * 6 + ["Pending", "Succeeded", "Failed"]) if node else "Pending"
    metadata: Object = {"name": name, "namespace": pick(draw, ["default", "default", "other"])}
    metadata["labels"] = pick_strings(draw, POD_LABELS)
    if one_in(draw, 6):
        metadata |= {"deletionTimestamp": "2026-08-01T12:00:00Z", "deletionGracePeriodSeconds": 30}
    spec: Object = {"containers": [draw_container(draw, "main")]} | ({"nodeName": node} if node else {})
    if one_in(draw, 6):
        spec["affinity"] = {"podAntiAffinity": draw_pod_terms(draw, new=False)}
    pod = v1_object("Pod", metadata, spec=spec, status={"phase": phase})
    if node and one_in(draw, 4):
        draw_resize(draw, pod)
    return pod


def draw_node_term(draw: st.DrawFn) -> Object:
    term: Object = {}
    kind = pick(draw, ["expressions"] * 5 + ["fields", "both"])
    if kind != "fields":
        term["matchExpressions"] = pick_some(draw, NODE_EXPRESSIONS, 2) or [KUBEVIRT_REQUIREMENT]
    if kind != "expressions":
        operator, name = pick(draw, ["In", "NotIn"]), pick(draw, ["node-a", "node-b"])
        term["matchFields"] = [{"key": "metadata.name", "operator": operator, "values": [name]}]
    return term


def draw_affinity(draw: st.DrawFn) -> Object:
    """Draw the affinity of the VM's pod: usually KubeVirt's required term or terms from the user."""
    affinity: Object = {}
    kind = pick(draw, ["kubevirt"] * 4 + ["user"] * 4 + ["no terms", "none"])
    if kind == "kubevirt":
        affinity["nodeAffinity"] = {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [KUBEVIRT_REQUIREMENT]}]}}
    elif kind == "user":
        count = pick(draw, [1, 2, 3])
        terms = [pick(draw, NULL_TERMS) if one_in(draw, 5) else draw_node_term(draw) for _ in range(count)]
        affinity["nodeAffinity"] = {REQUIRED: {"nodeSelectorTerms": terms}}
    elif kind == "no terms":
        affinity["nodeAffinity"] = pick(draw, NODE_AFFINITY_WITHOUT_TERMS)
    if one_in(draw, 5):
        affinity["podAntiAffinity"] = draw_pod_terms(draw, new=True)
    if one_in(draw, 8):
        affinity["podAffinity"] = draw_pod_terms(draw, new=True)
    return affinity


@st.composite
def clusters(draw: st.DrawFn) -> Object:
    """Draw a dict of one to four `nodes` and up to six `pods`."""
    names = ["node-a", "node-b", "node-c", "node-d"][: pick(draw, [2, 3, 4, 1, 3, 4, 2, 3, 4, 4])]
    existing_pods = [draw_existing_pod(draw, f"existing-pod-{index}", names) for index in range(draw(up_to(6)))]
    return {"nodes": [draw_node(draw, name) for name in names], "pods": existing_pods}


@st.composite
def pods(draw: st.DrawFn) -> Object:
    """Draw a virt-launcher pod as a webhook receives it: opted in, unbound, with the claim disk1."""
    compute = draw_container(draw, "compute")
    if one_in(draw, 3):
        resources = compute.get("resources", {})
        compute["resources"] = resources | {"limits": resources.get("limits", {}) | {KVM: "1"}}
    init = [draw_container(draw, f"init-{index}") for index in range(pick(draw, [0, 0, 1, 2, 3]))]
    init = [container | pick(draw, [{}, {"restartPolicy": "Always"}]) for container in init]
    spec = {
        "containers": [compute],
        "initContainers": init,
        "tolerations": DEFAULT_TOLERATIONS + pick_some(draw, TOLERATIONS, 2),
        "volumes": [{"name": "disk", "persistentVolumeClaim": {"claimName": "disk1"}}],
        "affinity": draw_affinity(draw),
        "nodeSelector": pick(draw, NODE_SELECTORS) if one_in(draw, 2) else None,
        "overhead": {"cpu": "250m", "memory": "120Mi"} if one_in(draw, 8) else None,
        "resources": pick(draw, POD_LEVEL_RESOURCES) if len(init) <= 1 and one_in(draw, 5) else None,
    } | pick(draw, PRIORITIES)
    labels = {"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": "uid-of-vm1"} | pick_strings(draw, POD_LABELS)
    annotations = {"kubevirt-scheduler/co-schedule": "true", "kubevirt.io/domain": "vm1"}
    metadata = {"generateName": "virt-launcher-vm1-", "labels": labels, "annotations": annotations}
    return v1_object("Pod", metadata, spec={field: value for field, value in spec.items() if value})


@st.composite
def storage(draw: st.DrawFn, node: str, disk: str = "disk1") -> Object:
    """Draw a dict of a claim (`pvc`), its Longhorn volume (`pv`), and the share-manager `pod` on `node`."""
    pv_spec: Object = {"accessModes": ["ReadWriteMany"], "capacity": {"storage": "10Gi"}}
    pv_spec |= {"csi": {"driver": "driver.longhorn.io", "volumeHandle": f"vol-{disk}"}}
    pv_spec |= {"claimRef": {"namespace": "default", "name": disk}}
    if one_in(draw, 4):
        terms = [draw_node_term(draw) for _ in range(pick(draw, [1, 2]))]
        pv_spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
    pvc_spec = {"accessModes": ["ReadWriteMany"], "volumeName": f"pvc-{disk}"}
    labels = {"longhorn.io/component": "share-manager", "longhorn.io/share-manager": f"vol-{disk}"}
    metadata = {"name": f"share-manager-vol-{disk}", "namespace": "longhorn-system", "labels": labels}
    pod_spec = {"nodeName": node, "containers": [{"name": "share-manager", "image": "any"}]}
    return {
        "pvc": v1_object("PersistentVolumeClaim", {"name": disk, "namespace": "default"}, spec=pvc_spec),
        "pv": v1_object("PersistentVolume", {"name": f"pvc-{disk}", "labels": pick(draw, PV_LABELS)}, spec=pv_spec),
        "pod": v1_object("Pod", metadata, spec=pod_spec, status={"phase": "Running"}),
    }


@st.composite
def placement_cases(draw: st.DrawFn) -> Object:
    """Draw a VM's `pod`, `nodes`, `pods`, `pvc`, `pv`, and `node`, the name of the share-manager pod's node.

    The share-manager pod is the last of `pods`.
    """
    cluster, pod = draw(clusters()), draw(pods())
    node = pick(draw, [candidate["metadata"]["name"] for candidate in cluster["nodes"]])
    disk = draw(storage(node))
    served = {"pods": [*cluster["pods"], disk["pod"]], "node": node}
    return {"pod": pod, "nodes": cluster["nodes"], "pvc": disk["pvc"], "pv": disk["pv"]} | served


@st.composite
def served_clusters(draw: st.DrawFn) -> Object:
    """Draw a dict of `nodes`, `pods`, three served `disks`, and the disk `data` of another CSI driver (`foreign`).

    `limits` has that driver's limit of volumes on each node that has the driver.
    """
    cluster = draw(clusters())
    names = [node["metadata"]["name"] for node in cluster["nodes"]]
    other = draw(storage(names[0], "data"))
    other["pv"]["spec"]["csi"]["driver"] = OTHER_DRIVER
    for item in other["pv"], other["pvc"]:
        item["spec"]["accessModes"] = ["ReadWriteOnce"]
    limits = {name: pick(draw, [None, None, None, 0, 1]) for name in names if not one_in(draw, 4)}
    disks = [draw(storage(pick(draw, names), f"disk{number}")) for number in (1, 2, 3)]
    return cluster | {"disks": disks, "foreign": other, "limits": limits}


@st.composite
def mounting_pods(draw: st.DrawFn) -> Object:
    """Draw a virt-launcher pod that mounts one or two of the disks, sometimes with a field that is not evaluated."""
    pod = draw(pods())
    claims = [f"disk{pick(draw, [1, 2, 3])}", *pick(draw, [[], [], [], ["data"]])]
    volumes = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims]
    pod["spec"]["volumes"] = volumes
    if one_in(draw, 12):
        pod["spec"]["containers"][0]["ports"] = [{"containerPort": 22, "hostPort": 22}]
    if one_in(draw, 12):
        selector = {"labelSelector": {"matchLabels": {"app": "web"}}}
        spread = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}
        pod["spec"]["topologySpreadConstraints"] = [spread | selector]
    return pod
