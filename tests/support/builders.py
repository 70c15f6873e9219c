"""Builders of minimal valid Kubernetes objects, as plain dicts in the API's format, and of a catalog that holds them.

The defaults fit together: `virt_launcher()` mounts claim `disk1` of namespace `default`. Its PV `pvc-disk1` is the
Longhorn volume `vol-disk1`. Pod builders copy unknown keywords into `spec`: `pod(nodeSelector={"disk": "ssd"})`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import jsonpatch

from tests.support.accounts import creator_of
from webhook.catalog import kinds
from webhook.catalog.store import Store
from webhook.placement.affinity import without_injection as restored
from webhook.placement.catalog import Catalog
from webhook.placement.injector import Injection, decide, inject
from webhook.placement.objects.pod import Manifest
from webhook.placement.reasons import Decision
from webhook.placement.review import Review, read_untyped
from webhook.placement.settings import Settings

Object = dict[str, Any]

OPT_IN = "kubevirt-scheduler/co-schedule"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"

# The CSI drivers that serve the PVs of in-tree types.
IN_TREE_DRIVERS = {
    "awsElasticBlockStore": "ebs.csi.aws.com",
    "azureDisk": "disk.csi.azure.com",
    "cinder": "cinder.csi.openstack.org",
    "gcePersistentDisk": "pd.csi.storage.gke.io",
    "portworxVolume": "pxd.portworx.com",
}
KINDS = {kind.name: kind for kind in (*kinds.kinds("longhorn-system"), *kinds.tool_kinds("longhorn-system"))}


def fact_of(manifest: Mapping[str, Any]) -> Any:
    """Return the fact of a manifest, None for an object to ignore. Raises Malformed or MalformedObject."""
    kind = KINDS[manifest["kind"]]
    return kind.read(kind.convert(dict(manifest)))


def typed(item: Object, namespace: str = "default") -> Manifest:
    """Return a pod as the decision reads it. Raises Malformed."""
    return Manifest.of(item, namespace)


def without_injection(item: Object) -> Object:
    """Return a copy of a pod without what the webhook added."""
    metadata, spec = item["metadata"], item["spec"]
    annotations, affinity = restored(metadata.get("annotations", {}), spec.get("affinity", {}))
    changed = {"affinity": affinity} if affinity else {}
    return item | {"metadata": metadata | {"annotations": annotations}, "spec": spec | changed}


def pod_fact(item: Object) -> Any:
    """Return the fact of a pod, None for a finished one. Raises Malformed."""
    return kinds.read_pod(typed(item).pod)


def pod(
    name: str = "",
    namespace: str = "default",
    *,
    labels: Object | None = None,
    annotations: Object | None = None,
    claims: Iterable[str] = (),
    requests: Object | None = None,
    node: str = "",
    phase: str = "",
    deleting: bool = False,
    **spec: Any,
) -> Object:
    """Build a pod. Without a name it has only a `generateName`, like a new pod from a controller."""
    metadata: Object = {"name": name, "uid": f"uid-{name}"} if name else {"generateName": "pod-"}
    metadata |= {"namespace": namespace, "labels": labels or {}, "annotations": annotations or {}}
    if deleting:
        metadata["deletionTimestamp"] = "2026-08-01T12:00:00Z"
    container: Object = {"name": "main", "image": "image"} | ({"resources": {"requests": requests}} if requests else {})
    volumes = [{"name": f"volume-{i}", "persistentVolumeClaim": {"claimName": c}} for i, c in enumerate(claims)]
    bound = {"nodeName": node} if node else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [container], "volumes": volumes} | bound | spec,
        "status": {"phase": phase or ("Running" if node else "Pending")},
    }


def virt_launcher(name: str = "", *, opt_in: Any = "true", labels: Object | None = None, **rest: Any) -> Object:
    """Build the pod of an opted-in VM that mounts claim `disk1`; `opt_in=None` omits the annotation."""
    opt_in_annotation = {} if opt_in is None else {OPT_IN: opt_in}
    rest = {"claims": ["disk1"]} | rest | {"annotations": opt_in_annotation | (rest.get("annotations") or {})}
    labels = {"kubevirt.io": "virt-launcher"} | (labels or {})
    if "kubevirt-scheduler/co-scheduled-node" in rest["annotations"]:  # the webhook decided, so KubeVirt created it
        labels = {"kubevirt.io/created-by": f"uid-of-vmi-of-{name}"} | labels
    vm, uid = rest["annotations"].get("kubevirt.io/domain", name), labels.get("kubevirt.io/created-by")
    built = pod(name, labels=labels, **rest)
    return built if uid is None else owned_by_vmi(built, vm or "vm", uid)


def owned_by_vmi(pod: Object, name: str, uid: str) -> Object:
    """Make a VMI the controller of a pod, in place."""
    owner = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": name, "uid": uid}
    pod["metadata"]["labels"]["kubevirt.io/created-by"] = uid
    pod["metadata"]["ownerReferences"] = [owner | {"controller": True, "blockOwnerDeletion": True}]
    return pod


def hotplug_pod(owner: Object, *, claims: Iterable[str] = ("disk1",), suffix: str = "", **rest: Any) -> Object:
    """Build the pod that mounts hotplugged claims for the virt-launcher pod `owner`."""
    hotplug = pod(
        f"hp-volume-{owner['metadata']['name']}{suffix}", labels={"kubevirt.io": "hotplug-disk"}, claims=claims, **rest
    )
    # KubeVirt names one owner. Users who create such a pod may add any number of others, which are not the controller.
    controller = {"kind": "Pod", "uid": owner["metadata"]["uid"], "controller": True}
    hotplug["metadata"]["ownerReferences"] = [{"kind": "Pod", "uid": "made-up"}, controller]
    return hotplug


def share_manager_pod(volume: str = "vol-disk1", *, namespace: str = "longhorn-system", **rest: Any) -> Object:
    """Build Longhorn's NFS server pod of a volume. Without a node it is unscheduled."""
    labels = {"longhorn.io/component": "share-manager", "longhorn.io/share-manager": volume}
    return pod(f"share-manager-{volume}", namespace, labels=labels, **rest)


def claim(
    name: str = "disk1",
    *,
    namespace: str = "default",
    volume: str | None = None,
    modes: Iterable[str] = ("ReadWriteMany",),
    labels: Object | None = None,
    **spec: Any,
) -> Object:
    """Build a PersistentVolumeClaim bound to PV `pvc-<name>`; `volume=""` makes it unbound."""
    bound = f"pvc-{name}" if volume is None else volume
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace, "labels": labels or {}},
        "spec": {"accessModes": list(modes)} | ({"volumeName": bound} if bound else {}) | spec,
        "status": {"phase": "Bound" if bound else "Pending"},
    }


def volume(
    claim: str = "disk1",
    *,
    namespace: str = "default",
    name: str | None = None,
    handle: str | None = None,
    driver: str = "driver.longhorn.io",
    required: Object | None = None,
    parameters: Object | None = None,
    labels: Object | None = None,
) -> Object:
    """Build PersistentVolume `pvc-<claim>` for a claim, backed by Longhorn volume `vol-<claim>`."""
    spec: Object = {"csi": {"driver": driver, "volumeHandle": f"vol-{claim}" if handle is None else handle}}
    spec["csi"] |= {"volumeAttributes": parameters} if parameters else {}
    spec |= {"claimRef": {"namespace": namespace, "name": claim}} if claim else {}
    spec |= {"nodeAffinity": {"required": required}} if required is not None else {}
    metadata = {"name": f"pvc-{claim}" if name is None else name, "labels": labels or {}}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec}


def share_manager(
    volume: str = "vol-disk1",
    *,
    owner: str | None = "node-a",
    state: str | None = "running",
    deleting: bool = False,
    namespace: str = "longhorn-system",
) -> Object:
    """Build a ShareManager; `None` omits the status field."""
    status = {"ownerID": owner, "state": state}
    return {
        "apiVersion": "longhorn.io/v1beta2",
        "kind": "ShareManager",
        "metadata": {"name": volume, "namespace": namespace}
        | ({"deletionTimestamp": "2026-08-01T12:00:00Z"} if deleting else {}),
        "status": {key: value for key, value in status.items() if value is not None},
    }


def virtual_machine(
    name: str = "vm1",
    namespace: str = "default",
    *,
    strategy: str | None = "Always",
    running: bool | None = None,
    failures: int | None = None,
    annotations: Object | None = None,
    uid: str | None = None,
) -> Object:
    """Build a VirtualMachine that starts again after its pod is deleted; `None` omits the field."""
    spec = {"runStrategy": strategy, "running": running}
    template = {"template": {"metadata": {"annotations": annotations or {}}}}
    status = {} if failures is None else {"startFailure": {"consecutiveFailCount": failures}}
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": namespace} | ({"uid": uid} if uid else {}),
        "spec": {key: value for key, value in spec.items() if value is not None} | template,
        "status": status,
    }


def vmi(
    name: str = "vm1", namespace: str = "default", *, uid: str = "", owner_kind: str = "VirtualMachine", **owner: str
) -> Object:
    """Build a VMI that an object of kind `owner_kind` controls; an empty kind means none."""
    owned = {"kind": owner_kind, "name": name, "uid": f"uid-of-owner-{name}", "controller": True} | owner
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": name, "namespace": namespace, "uid": uid or f"uid-of-{name}"}
        | ({"ownerReferences": [owned]} if owner_kind else {}),
    }


def pinned_vm_pod(
    name: str = "virt-launcher-vm1-abcde",
    node: str = "node-a",
    *,
    vm: str = "vm1",
    unschedulable: bool = True,
    annotations: Object | None = None,
    labels: Object | None = None,
    created: str = "2026-08-01T12:00:00Z",
    **rest: Any,
) -> Object:
    """Build the Pending pod of a VM that the webhook pinned to `node`, as the API server stores it.

    With `unschedulable`, the scheduler has found no node for it.
    """
    fields = pinned_fields(node)
    rest |= {"annotations": {"kubevirt.io/domain": vm} | fields["annotations"] | (annotations or {})}
    built = virt_launcher(
        name, labels=(labels or {}) | {"kubevirt.io/created-by": f"uid-of-{vm}"}, affinity=fields["affinity"], **rest
    )
    built["metadata"]["creationTimestamp"] = created
    if unschedulable:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        built["status"]["conditions"] = [condition | {"lastTransitionTime": "2026-08-01T12:00:01Z"}]
    return built


def node(
    name: str = "node-a",
    *,
    labels: Object | None = None,
    ready: str | None = "True",
    unschedulable: bool = False,
    taints: Iterable[Object] = (),
    allocatable: Object | None = None,
) -> Object:
    """Build a healthy node; without `allocatable` it does not report its capacity."""
    conditions = {"conditions": [{"type": "Ready", "status": ready}]} if ready else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {HOSTNAME: name} | (labels or {})},
        "spec": {"taints": list(taints)} | ({"unschedulable": True} if unschedulable else {}),
        "status": conditions | ({} if allocatable is None else {"allocatable": allocatable}),
    }


def csi_node(name: str = "node-a", **limits: int | None) -> Object:
    """Build a CSINode; `limits` has each driver's limit of volumes, None for no limit."""
    drivers = [{"name": driver, "nodeID": name, "allocatable": {"count": limit}} for driver, limit in limits.items()]
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSINode",
        "metadata": {"name": name},
        "spec": {"drivers": drivers},
    }


def labeled_namespace(name: str = "default", *, opt_in: str | None = "true", **labels: str) -> Object:
    """Build a namespace that opts in its VMs; `opt_in=None` omits the label."""
    own = {} if opt_in is None else {OPT_IN: opt_in}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": own | labels}}


def storage_class(name: str = "longhorn-rwx", *, opt_in: str | None = "true", **fields: Any) -> Object:
    """Build a StorageClass that opts in the VMs of its claims; `opt_in=None` omits the annotation."""
    metadata = {"name": name, "annotations": {} if opt_in is None else {OPT_IN: opt_in}}
    return {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": metadata} | fields


def storage(name: str = "disk1", node: str = "node-a") -> list[Object]:
    """Build a claim, its PV, and the share-manager pod that serves it on `node`."""
    return [claim(name), volume(name), share_manager_pod(f"vol-{name}", node=node)]


def node_terms(*terms: Any) -> Object:
    """Build an affinity that requires one of the node selector terms."""
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}


def name_requirement(name: str, operator: str = "In") -> Object:
    """Build a `matchFields` requirement on the node's name."""
    return {"key": "metadata.name", "operator": operator, "values": [name]}


def pinned_fields(node: str) -> Object:
    """Return the keyword arguments that build a pod as the webhook leaves it after a pin to `node`."""
    preferred = [{"weight": 100, "preference": {"matchFields": [name_requirement(node)]}}]
    required = {"nodeSelectorTerms": [{"matchFields": [name_requirement(node)]}]}
    affinity = {"nodeAffinity": {REQUIRED: required, PREFERRED: preferred}}
    decided = {"co-scheduled-node": node, "decision": f"CoScheduled: pinned to {node}"}
    return {"annotations": {f"kubevirt-scheduler/{key}": value for key, value in decided.items()}, "affinity": affinity}


def pin(pod: Object, node: str) -> Object:
    """Add everything that the webhook writes on a pinned pod, in place."""
    fields = pinned_fields(node)
    pod["metadata"]["annotations"] |= fields["annotations"]
    pod["spec"]["affinity"] = fields["affinity"]
    return pod


def preferring_fields(node: str, decision: str = "Released: a sentence") -> Object:
    """Return the keyword arguments that build a pod as the webhook leaves it if it only prefers `node`."""
    preferred = [{"weight": 100, "preference": {"matchFields": [name_requirement(node)]}}]
    annotations = {"kubevirt-scheduler/co-scheduled-node": node, "kubevirt-scheduler/decision": decision}
    return {"annotations": annotations, "affinity": {"nodeAffinity": {PREFERRED: preferred}}}


def pod_term(labels: Object | None, topology: str = HOSTNAME, **rest: Any) -> Object:
    """Build a required pod (anti-)affinity term; `labels=None` omits its selector."""
    return {"topologyKey": topology} | ({} if labels is None else {"labelSelector": {"matchLabels": labels}}) | rest


def pod_anti_affinity(*terms: Object) -> Object:
    """Build an affinity with required pod anti-affinity."""
    return {"podAntiAffinity": {REQUIRED: list(terms)}}


def pod_affinity(*terms: Object) -> Object:
    """Build an affinity with required pod affinity."""
    return {"podAffinity": {REQUIRED: list(terms)}}


def request(pod: Any, namespace: str = "default", **rest: Any) -> Object:
    """Build the request of an AdmissionReview in which a pod is created, by its controller if that is known."""
    user = creator_of(pod, namespace) if isinstance(pod, dict) else ""
    return {
        "uid": "00000000-0000-0000-0000-000000000001",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "namespace": namespace,
        "operation": "CREATE",
        "userInfo": {"username": user or "admin"},
        "object": pod,
        "dryRun": False,
    } | rest


def review(pod: Any, namespace: str = "default", chosen: Settings | None = None, **rest: Any) -> Review:
    """Build the review of a pod that is created, read with the default settings or the `chosen` ones."""
    return read_untyped(request(pod, namespace, **rest), chosen or Settings())


def inject_request(received: Object, store: Catalog | None, chosen: Settings, *, from_file: bool = False) -> Injection:
    """Read the request of an AdmissionReview, and decide on it."""
    return inject(read_untyped(received, chosen, from_file=from_file), store, chosen)


def decide_request(received: Object, store: Catalog | None, chosen: Settings) -> Decision:
    """Read the request of an AdmissionReview, and only decide on it."""
    return decide(read_untyped(received, chosen), store, chosen)


def catalog(*manifests: Mapping[str, Any]) -> Store:
    """Build a store that holds only these objects."""
    facts = map(fact_of, manifests)
    return Store(fact for fact in facts if fact is not None)


def settings(**overrides: Any) -> Settings:
    """Build the default settings with these overrides."""
    return Settings(**overrides)


def decision_for(pod: Object, *manifests: Object, **overrides: Any) -> Decision:
    """Return the decision on a new pod in a cluster of these objects, with these settings."""
    return decide_request(request(pod, pod["metadata"]["namespace"]), catalog(*manifests), settings(**overrides))


def injection_for(pod: Object, *manifests: Object, **overrides: Any) -> Injection:
    """Return the decision on a new pod, as `decided` does, with its patch and warnings."""
    return inject_request(request(pod, pod["metadata"]["namespace"]), catalog(*manifests), settings(**overrides))


def apply_injection(pod: Any, injection: Injection) -> Any:
    """Return a patched copy of the pod, as the API server would build it."""
    return jsonpatch.apply_patch(pod, injection.patch or [])
