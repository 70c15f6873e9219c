"""The smallest valid Kubernetes objects, as plain dicts the way the API writes them, and the catalog made of them.

The defaults fit together: `virt_launcher()` mounts `disk1` of `default`, whose PV `pvc-disk1` is the Longhorn volume
`vol-disk1`. What the keyword arguments do not name goes into `spec` as it is: `pod(nodeSelector={"disk": "ssd"})`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import jsonpatch

from webhook.cluster import objects
from webhook.cluster.store import Store
from webhook.placement.decision import Decision
from webhook.placement.injector import Injection, decide, inject
from webhook.placement.settings import Settings

Object = dict[str, Any]

OPT_IN = "kubevirt-scheduler/co-schedule"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"

READERS = {
    "Node": objects.read_node,
    "PersistentVolume": objects.read_volume,
    "PersistentVolumeClaim": objects.read_claim,
    "Pod": objects.read_pod,
    "ShareManager": objects.read_share_manager,
}


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
    """A pod; without a name it is being created, as most are by a controller."""
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
    """An opted-in VM's pod with the claim `disk1`; `opt_in=None` leaves the annotation out."""
    own = {} if opt_in is None else {OPT_IN: opt_in}
    rest = {"claims": ["disk1"]} | rest | {"annotations": own | (rest.get("annotations") or {})}
    return pod(name, labels={"kubevirt.io": "virt-launcher"} | (labels or {}), **rest)


def hotplug_pod(owner: Object, *, claims: Iterable[str] = ("disk1",), **rest: Any) -> Object:
    """The pod that mounts hotplugged claims for a virt-launcher pod."""
    made = pod(f"hp-volume-{owner['metadata']['name']}", labels={"kubevirt.io": "hotplug-disk"}, claims=claims, **rest)
    made["metadata"]["ownerReferences"] = [{"kind": "Pod", "uid": owner["metadata"]["uid"]}]
    return made


def share_manager_pod(volume: str = "vol-disk1", *, namespace: str = "longhorn-system", **rest: Any) -> Object:
    """Longhorn's NFS server of a volume; without a node it is being created."""
    labels = {"longhorn.io/component": "share-manager", "longhorn.io/share-manager": volume}
    return pod(f"share-manager-{volume}", namespace, labels=labels, **rest)


def claim(
    name: str = "disk1",
    *,
    namespace: str = "default",
    volume: str | None = None,
    modes: Iterable[str] = ("ReadWriteMany",),
    labels: Object | None = None,
) -> Object:
    """A PersistentVolumeClaim, bound to the PV `pvc-<name>`; `volume=""` leaves it unbound."""
    bound = f"pvc-{name}" if volume is None else volume
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace, "labels": labels or {}},
        "spec": {"accessModes": list(modes)} | ({"volumeName": bound} if bound else {}),
    }


def volume(
    claim: str = "disk1",
    *,
    namespace: str = "default",
    name: str | None = None,
    handle: str | None = None,
    driver: str = "driver.longhorn.io",
    required: Object | None = None,
) -> Object:
    """The PersistentVolume `pvc-<claim>` of a claim, which is the Longhorn volume `vol-<claim>`."""
    spec: Object = {"csi": {"driver": driver, "volumeHandle": f"vol-{claim}" if handle is None else handle}}
    spec |= {"claimRef": {"namespace": namespace, "name": claim}} if claim else {}
    spec |= {"nodeAffinity": {"required": required}} if required is not None else {}
    metadata = {"name": f"pvc-{claim}" if name is None else name}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec}


def share_manager(
    volume: str = "vol-disk1",
    *,
    owner: str | None = "node-a",
    state: str | None = "running",
    deleting: bool = False,
    namespace: str = "longhorn-system",
) -> Object:
    """A ShareManager; `None` leaves a field of its status out."""
    status = {"ownerID": owner, "state": state}
    return {
        "apiVersion": "longhorn.io/v1beta2",
        "kind": "ShareManager",
        "metadata": {"name": volume, "namespace": namespace}
        | ({"deletionTimestamp": "2026-08-01T12:00:00Z"} if deleting else {}),
        "status": {key: value for key, value in status.items() if value is not None},
    }


def node(
    name: str = "node-a",
    *,
    labels: Object | None = None,
    ready: str | None = "True",
    unschedulable: bool = False,
    taints: Iterable[Object] = (),
    allocatable: Object | None = None,
) -> Object:
    """A healthy node; without `allocatable` it does not tell how much room it has."""
    conditions = {"conditions": [{"type": "Ready", "status": ready}]} if ready else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {HOSTNAME: name} | (labels or {})},
        "spec": {"taints": list(taints)} | ({"unschedulable": True} if unschedulable else {}),
        "status": conditions | ({} if allocatable is None else {"allocatable": allocatable}),
    }


def storage(name: str = "disk1", node: str = "node-a") -> list[Object]:
    """A claim, its PV, and the share-manager pod that serves it on a node."""
    return [claim(name), volume(name), share_manager_pod(f"vol-{name}", node=node)]


def node_terms(*terms: Any) -> Object:
    """An affinity that requires one of some node selector terms."""
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}


def node_named(name: str, operator: str = "In") -> Object:
    """The requirement that stands in `matchFields`."""
    return {"key": "metadata.name", "operator": operator, "values": [name]}


def pinned(node: str) -> Object:
    """What a pod looks like after we pinned it, as keyword arguments for its builder."""
    preferred = [{"weight": 100, "preference": {"matchFields": [node_named(node)]}}]
    required = {"nodeSelectorTerms": [{"matchFields": [node_named(node)]}]}
    affinity = {"nodeAffinity": {REQUIRED: required, PREFERRED: preferred}}
    return {"annotations": {"kubevirt-scheduler/co-scheduled-node": node}, "affinity": affinity}


def pod_term(labels: Object | None, topology: str = HOSTNAME, **rest: Any) -> Object:
    """A required pod (anti-)affinity term; `None` leaves its selector out."""
    return {"topologyKey": topology} | ({} if labels is None else {"labelSelector": {"matchLabels": labels}}) | rest


def apart(*terms: Object) -> Object:
    """An affinity with required pod anti-affinity."""
    return {"podAntiAffinity": {REQUIRED: list(terms)}}


def together(*terms: Object) -> Object:
    """An affinity with required pod affinity."""
    return {"podAffinity": {REQUIRED: list(terms)}}


def request(pod: Any, namespace: str = "default", **rest: Any) -> Object:
    """The request of an AdmissionReview that creates a pod."""
    return {
        "uid": "00000000-0000-0000-0000-000000000001",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "namespace": namespace,
        "operation": "CREATE",
        "object": pod,
        "dryRun": False,
    } | rest


def catalog(*found: Mapping[str, Any]) -> Store:
    """A store that knows these objects and nothing else."""
    facts = (READERS[item["kind"]](dict(item)) for item in found)
    return Store(fact for fact in facts if fact is not None)


def settings(**chosen: Any) -> Settings:
    """The product's defaults but for what is named."""
    return Settings(**chosen)


def decided(pod: Object, *found: Object, **chosen: Any) -> Decision:
    """What is decided on a pod being created, in a cluster of these objects and with these settings."""
    return decide(request(pod, pod["metadata"]["namespace"]), catalog(*found), settings(**chosen))


def injected(pod: Object, *found: Object, **chosen: Any) -> Injection:
    """The same with its patch."""
    return inject(request(pod, pod["metadata"]["namespace"]), catalog(*found), settings(**chosen))


def patched(pod: Any, injection: Injection) -> Any:
    """The pod that the API server makes of a patch; the received one stays as it is."""
    return jsonpatch.apply_patch(pod, injection.patch or [])
