"""The table of the resource kinds that the webhook and the tool read.

Each kind has its reader, its shape and its entry side by side. The shape is what is decoded, and what a snapshot keeps.
The reader extracts what a decision uses and drops the rest. Dropped fields can't leak: the share-manager pod of an
encrypted volume carries its passphrase.
"""

from typing import Any

from msgspec.structs import replace

from webhook.catalog.kind import Kind, key_of, list_of, map_of, metadata_of, object_of
from webhook.catalog.longhorn_kinds import LONGHORN_VOLUMES, REPLICAS, SETTINGS, SHARE_MANAGERS
from webhook.fleet.instance_type import KINDS, NAME_LABEL, REVISION, has_instance_type
from webhook.fleet.vm_pod_template import template_claims
from webhook.placement.affinity import DECISION
from webhook.placement.guard.pins import read_pin
from webhook.placement.objects import facts, kubevirt
from webhook.placement.objects.facts import Pod
from webhook.placement.objects.fields import JsonObject, Malformed, mapping, mappings, text
from webhook.placement.objects.longhorn import share_manager_limits
from webhook.placement.objects.pod import (
    MAX_DETAILS,
    MAX_NAME,
    NO_STRINGS,
    Manifest,
    labels_of,
    memory_of,
    pod_facts,
    true_and_false_keys,
)
from webhook.placement.objects.resources import amounts
from webhook.placement.objects.selectors import TOPOLOGY_LABELS
from webhook.placement.settings import OPT_IN_KEY

KUBEVIRT, STORAGE = "kubevirt.io/v1", "storage.k8s.io/v1"
KUBEVIRT_API = f"/apis/{KUBEVIRT}"

OWNED = {"labels": Any, "annotations": Any, "ownerReferences": list_of("apiVersion kind name uid controller")}
_LABELED = metadata_of("labels")
_CONDITIONS = list_of("type status reason lastTransitionTime message")


def _limited_name(name: str) -> str:
    # Namespace users write it, and the API server admits any length: no object has such a name.
    return name if len(name) <= MAX_NAME else ""


# Claims and their volumes

# The annotation that Kubernetes still reads before the field: `GetPersistentVolumeClaimClass`.
OLD_CLASS = "volume.beta.kubernetes.io/storage-class"


def read_claim(item: JsonObject) -> facts.Claim:
    """Extract the facts of a PersistentVolumeClaim."""
    namespace, name = key_of(item)
    modes = mapping(item, "spec").get("accessModes")
    shared = isinstance(modes, list) and "ReadWriteMany" in modes
    return facts.Claim(
        namespace,
        name,
        _limited_name(text(item, "spec", "volumeName")),
        shared,
        state_of=text(item, "metadata", "labels", kubevirt.STATE_CLAIM_LABEL),
        block=text(item, "spec", "volumeMode") == "Block",
        storage_class=text(item, "metadata", "annotations", OLD_CLASS) or text(item, "spec", "storageClassName"),
        uid=text(item, "metadata", "uid"),
        phase=text(item, "status", "phase"),
        size=_size(item),
    )


def _size(claim: JsonObject) -> int:
    try:
        return amounts({"storage": mapping(claim, "spec", "resources", "requests").get("storage", 0)})["storage"]
    except Malformed:  # only the tool's plans need it
        return 0


_CLAIM = object_of(
    metadata=metadata_of(labels=map_of(kubevirt.STATE_CLAIM_LABEL), annotations=map_of(OLD_CLASS)),
    spec=map_of("accessModes volumeMode volumeName storageClassName", resources=map_of(requests=map_of("storage"))),
    status=map_of("phase"),
)
CLAIMS = Kind("v1", "PersistentVolumeClaim", _CLAIM, facts.Claim, read_claim)

LONGHORN_DRIVER = "driver.longhorn.io"

# The CSI drivers that serve the PVs of in-tree types, which keep their type: `inTreePlugins` in csi-translation-lib, as
# far as the scheduler's plugin NodeVolumeLimits counts them.
IN_TREE_DRIVERS = {
    "awsElasticBlockStore": "ebs.csi.aws.com",
    "azureDisk": "disk.csi.azure.com",
    "cinder": "cinder.csi.openstack.org",
    "gcePersistentDisk": "pd.csi.storage.gke.io",
    "portworxVolume": "pxd.portworx.com",
}

# Longhorn parses the parameters of a volume with Go's strconv.ParseBool.
TRUE_VALUES = frozenset({"1", "t", "T", "true", "TRUE", "True"})


def read_volume(item: JsonObject) -> facts.Volume:
    """Extract the facts of a PersistentVolume."""
    spec = mapping(item, "spec")
    csi, claim = mapping(spec, "csi"), mapping(spec, "claimRef")
    migrated = next((driver for kind, driver in IN_TREE_DRIVERS.items() if spec.get(kind) is not None), "")
    is_longhorn = csi.get("driver") == LONGHORN_DRIVER
    handle = text(csi, "volumeHandle") if is_longhorn else ""
    parameters = mapping(csi, "volumeAttributes") if is_longhorn else {}
    affinity = mapping(spec, "nodeAffinity").get("required")
    return facts.Volume(
        text(item, "metadata", "name"),
        handle,
        (text(claim, "namespace") or "default", text(claim, "name")) if claim else None,
        affinity if isinstance(affinity, dict) else None,
        migratable=parameters.get("migratable") in TRUE_VALUES,
        claim_uid=text(claim, "uid"),
        zones=_zones(mapping(item, "metadata", "labels")),
        driver=LONGHORN_DRIVER if is_longhorn else text(csi, "driver") or migrated,  # one string for all PVs
    )


def _zones(labels: JsonObject) -> dict[str, frozenset[str]]:
    """Read a PV's labels for a zone or a region. The scheduler ignores a label with an empty part, and so does this."""
    found = {key: frozenset(map(str.strip, text(labels, key).split("__"))) for key in TOPOLOGY_LABELS if key in labels}
    return {key: admitted for key, admitted in found.items() if "" not in admitted}


_VOLUME = object_of(
    metadata=metadata_of(labels=map_of(" ".join(TOPOLOGY_LABELS))),
    spec=map_of(
        "nodeAffinity",
        csi=map_of("driver volumeHandle", volumeAttributes=map_of("migratable")),
        claimRef=map_of("namespace name uid"),
        **dict.fromkeys(IN_TREE_DRIVERS, map_of()),
    ),
)
VOLUMES = Kind("v1", "PersistentVolume", _VOLUME, facts.Volume, read_volume)


# Nodes


def read_node(item: JsonObject) -> facts.Node:
    """Extract the facts of a node. Raises Malformed for an invalid quantity."""
    conditions = {text(each, "type"): text(each, "status") for each in mappings(item, "status", "conditions")}
    allocatable = mapping(item, "status").get("allocatable")
    return facts.Node(
        text(item, "metadata", "name"),
        labels_of(item),
        conditions["Ready"] == "True" if "Ready" in conditions else None,
        mapping(item, "spec").get("unschedulable") is True,
        tuple(mappings(item, "spec", "taints")),
        amounts(allocatable) if isinstance(allocatable, dict) else None,
    )


_NODE = object_of(
    metadata=_LABELED,
    spec=map_of("unschedulable taints"),
    status=map_of("allocatable", conditions=_CONDITIONS, nodeInfo=map_of("kernelVersion")),
)
NODES = Kind("v1", "Node", _NODE, facts.Node, read_node)


def read_csi_node(item: JsonObject) -> facts.CSINode:
    """Extract the facts of a CSINode."""
    drivers = mappings(item, "spec", "drivers")
    unlimited = (text(each, "name") for each in drivers if mapping(each, "allocatable").get("count") is None)
    return facts.CSINode(text(item, "metadata", "name"), frozenset(unlimited))


_CSI_NODE = object_of(spec=map_of(drivers=list_of("name", allocatable=map_of("count"))))
# Without the right, no claim counts as limited.
CSI_NODES = Kind(STORAGE, "CSINode", _CSI_NODE, facts.CSINode, read_csi_node, required=False)


# Pods

_RESOURCES = map_of("requests limits")
_CONTAINER: dict[str, Any] = {"resources": _RESOURCES, "ports": list_of("hostPort")}
_CONTAINER_STATUSES = list_of("name allocatedResources", resources=_RESOURCES)
_PVC = map_of("claimName hotpluggable")
_VOLUMES = list_of(
    "name",
    persistentVolumeClaim=_PVC,
    dataVolume=map_of("name hotpluggable"),
    ephemeral=map_of(persistentVolumeClaim=_PVC),
)
# Where a pod or a VMI may run.
_CONSTRAINTS = "affinity nodeSelector tolerations topologySpreadConstraints schedulerName resourceClaims"


def _pod_spec(names: str = "", **of_container: Any) -> Any:
    fields = f"{_CONSTRAINTS} nodeName overhead priority schedulingGates {names}"
    containers = list_of("name image restartPolicy", **_CONTAINER, **of_container)
    # In a bookmark, `containers` is null.
    return map_of(fields, containers=containers, initContainers=containers, resources=_RESOURCES, volumes=_VOLUMES)


# Of a pod that is being created, also what only its guard reads.
NEW_POD_SPEC = _pod_spec(
    "hostNetwork hostUsers",
    restartPolicyRules=list_of("action"),
    volumeMounts=list_of("bindMountOptions"),
)
_POD_STATUS = map_of(
    "phase nominatedNodeName allocatedResources",
    conditions=_CONDITIONS,
    resources=_RESOURCES,
    containerStatuses=_CONTAINER_STATUSES,
    initContainerStatuses=_CONTAINER_STATUSES,
)


def read_pod(item: JsonObject) -> Pod | None:
    """Extract the facts of a pod; return None for a finished pod. Raises Malformed for an invalid quantity."""
    if text(item, "status", "phase") in ("Succeeded", "Failed"):
        return None
    # The scheduler has preempted pods on the nominated node for this pod, and counts the pod there.
    node = text(item, "spec", "nodeName") or text(item, "status", "nominatedNodeName")
    namespace, name = key_of(item)
    manifest = Manifest(item, namespace)
    found, pin = pod_facts(manifest, name, node), read_pin(item)
    starts_vm = manifest.is_virt_launcher and not manifest.is_migration_target
    undecided = starts_vm and not {kubevirt.PROVISIONING_ANNOTATION, DECISION} & manifest.annotations.keys()
    marked = pin or undecided
    return replace(found, pin=pin, prefers=bool(pin and pin.prefers), undecided=undecided) if marked else found


_POD = object_of(metadata=metadata_of(**OWNED), spec=_pod_spec(), status=_POD_STATUS)
PODS = Kind(
    "v1", "Pod", _POD, facts.Pod, read_pod, query={"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
)


# VMs

_DEVICES = list_of("name deviceName")
_DISKS = list_of("name cache shareable lun")
_DOMAIN = map_of(
    "cpu",
    machine=map_of("type"),
    resources=map_of("requests limits overcommitGuestOverhead"),
    memory=map_of("guest hugepages"),
    devices=map_of(gpus=_DEVICES, hostDevices=_DEVICES, disks=_DISKS, filesystems=list_of("name")),
    features=map_of(hyperv=map_of("evmcs")),
)
_VMI_SPEC = map_of(
    f"{_CONSTRAINTS} evictionStrategy architecture",
    domain=_DOMAIN,
    volumes=_VOLUMES,
    utilityVolumes=list_of("name claimName"),
)


def read_virtual_machine(item: JsonObject) -> facts.VirtualMachine:
    """Extract the facts of a VirtualMachine."""
    spec = mapping(item, "spec")
    failures = mapping(item, "status", "startFailure").get("consecutiveFailCount")
    true, false = true_and_false_keys(mapping(spec, "template", "metadata", "annotations"))
    template = mapping(spec, "template", "spec")
    claims, hotpluggable = (tuple(template_claims(template, hotpluggable=each)) for each in (False, True))
    if memory_of((*true, *false, *claims, *hotpluggable)) > MAX_DETAILS:
        true, false, claims, hotpluggable = NO_STRINGS, NO_STRINGS, (), ()
    return facts.VirtualMachine(
        *key_of(item),
        strategy=_limited_name(kubevirt.run_strategy(item)),
        start_failures=failures if isinstance(failures, int) else 0,
        true_annotations=true,
        false_annotations=false,
        claims=claims,
        inherits=has_instance_type(item),
        uid=text(item, "metadata", "uid"),
        hotpluggable=hotpluggable,
    )


_VM = object_of(
    metadata=metadata_of(**OWNED),
    spec=map_of(
        "instancetype preference runStrategy running",
        template=map_of(metadata=map_of("labels annotations"), spec=_VMI_SPEC),
    ),
    status=map_of(
        "startFailure instancetypeRef preferenceRef observedGeneration desiredGeneration", conditions=_CONDITIONS
    ),
)
# Without the right, the webhook decides, but releases no pin.
VIRTUAL_MACHINES = Kind(KUBEVIRT, "VirtualMachine", _VM, facts.VirtualMachine, read_virtual_machine, required=False)


def read_vmi(item: JsonObject) -> facts.VirtualMachineInstance:
    """Extract the facts of a VirtualMachineInstance."""
    owner, uid = kubevirt.controller_of(item), text(item, "metadata", "uid")
    return facts.VirtualMachineInstance(
        *key_of(item), uid, *(_limited_name(text(owner, field)) for field in ("kind", "name", "uid"))
    )


_VMI = object_of(
    metadata=metadata_of(**OWNED),
    spec=_VMI_SPEC,
    status=map_of("nodeName phase evacuationNodeName", conditions=_CONDITIONS, machine=map_of("type")),
)
# Namespace users control the labels of pods, but only KubeVirt creates a VMI's pod that the VMI owns.
VMIS = Kind(KUBEVIRT, "VirtualMachineInstance", _VMI, facts.VirtualMachineInstance, read_vmi, metadata_only=True)


# What opts in VMs, if the setting says so. Without these rights, the annotation still does.


def read_namespace(item: JsonObject) -> facts.Namespace:
    """Extract the facts of a namespace."""
    label = mapping(item, "metadata", "labels").get(OPT_IN_KEY)
    return facts.Namespace(
        text(item, "metadata", "name"), {"true": True, "false": False}.get(str(label)), labels_of(item)
    )


# Namespace selectors of affinity terms read the namespaces, too.
_BY_METADATA: dict[str, Any] = {"required": False, "metadata_only": True}
NAMESPACES = Kind("v1", "Namespace", object_of(metadata=_LABELED), facts.Namespace, read_namespace, **_BY_METADATA)


def read_storage_class(item: JsonObject) -> facts.StorageClass:
    """Extract the facts of a StorageClass."""
    annotation = mapping(item, "metadata", "annotations").get(OPT_IN_KEY)
    migratable = mapping(item, "parameters").get("migratable") in TRUE_VALUES
    served = item.get("provisioner") == LONGHORN_DRIVER and not migratable
    tolerations = text(item, "parameters", "shareManagerTolerations")
    limits = share_manager_limits(item)
    return facts.StorageClass(text(item, "metadata", "name"), annotation == "true", served, limits, tolerations)


_STORAGE_CLASS = object_of(
    "provisioner allowedTopologies",
    metadata=metadata_of("annotations"),
    parameters=map_of("migratable shareManagerNodeSelector shareManagerTolerations"),
)
STORAGE_CLASSES = Kind(STORAGE, "StorageClass", _STORAGE_CLASS, facts.StorageClass, read_storage_class, required=False)


# What only the tool reads: the webhook neither lists these nor stores their facts.

_INSTANCE_TYPE_SPEC = map_of(
    "nodeSelector schedulerName cpu memory preferredArchitecture annotations",
    gpus=_DEVICES,
    hostDevices=_DEVICES,
    machine=map_of("preferredMachineType"),
)
_TOOL_KINDS = (
    Kind(
        KUBEVIRT,
        "KubeVirt",
        object_of(
            spec=map_of(
                configuration=map_of(
                    "cpuModel evictionStrategy",
                    developerConfiguration=map_of("nodeSelectors cpuAllocationRatio memoryOvercommit"),
                )
            ),
            status=map_of("observedKubeVirtVersion"),
        ),
    ),
    Kind("policy/v1", "PodDisruptionBudget", object_of(spec=map_of("selector"), status=map_of("disruptionsAllowed"))),
    Kind("v1", "ResourceQuota", object_of(spec=map_of("scopes scopeSelector"), status=map_of("hard used"))),
    # Instance types, preferences, and the revisions of both.
    *(
        Kind("instancetype.kubevirt.io/v1beta1", name, object_of(spec=_INSTANCE_TYPE_SPEC))
        for name in sorted(KINDS - {REVISION})
    ),
    Kind(
        "apps/v1",
        REVISION,
        object_of(metadata=metadata_of(labels=map_of(NAME_LABEL)), data=map_of(spec=_INSTANCE_TYPE_SPEC)),
        query={"labelSelector": NAME_LABEL},
    ),
)


def tool_kinds(longhorn: str) -> tuple[Kind, ...]:
    """Return the kinds that only the tool reads; `longhorn` is Longhorn's namespace."""
    return (*_TOOL_KINDS, *(replace(kind, namespace=longhorn) for kind in SETTINGS))


def kinds(longhorn: str) -> tuple[Kind, ...]:
    """Return the kinds that decisions and the report read; `longhorn` is Longhorn's namespace."""
    of_longhorn = (replace(kind, namespace=longhorn) for kind in (SHARE_MANAGERS, LONGHORN_VOLUMES, REPLICAS))
    return (
        CLAIMS,
        VOLUMES,
        *of_longhorn,
        NODES,
        CSI_NODES,
        PODS,
        VMIS,
        VIRTUAL_MACHINES,
        NAMESPACES,
        STORAGE_CLASSES,
    )
