"""The table of the resource kinds that the webhook and the tool read.

Each kind has its reader, its shape and its entry side by side. The shape is what is decoded, and what a snapshot keeps.
The reader extracts what a decision uses and drops the rest. Dropped fields can't leak: the share-manager pod of an
encrypted volume carries its passphrase.
"""

from typing import Any

from msgspec import field
from msgspec.structs import replace

from webhook.catalog.kind import Kind, key_of, limited_name, list_of, map_of, metadata_of, object_of
from webhook.catalog.longhorn_kinds import LONGHORN_VOLUMES, REPLICAS, SETTINGS, SHARE_MANAGERS
from webhook.catalog.storage_kinds import CLAIMS, CSI_NODES, STORAGE_CLASSES, VOLUMES
from webhook.fleet.rendering.instance_type import KINDS, NAME_LABEL, REVISION, has_instance_type
from webhook.fleet.rendering.template import template_claims
from webhook.placement.affinity import DECISION
from webhook.placement.guard.pins import read_pin
from webhook.placement.objects import facts, kubevirt
from webhook.placement.objects.facts import Pod
from webhook.placement.objects.fields import JsonObject, mapping, text
from webhook.placement.objects.pod import (
    MAX_DETAILS,
    NO_STRINGS,
    Manifest,
    memory_of,
    pod_facts,
    shared_labels,
    true_and_false_keys,
)
from webhook.placement.objects.pod_object import PodObject
from webhook.placement.objects.resources import amounts
from webhook.placement.objects.typed import Metadata, Typed
from webhook.placement.settings import OPT_IN_KEY

KUBEVIRT = "kubevirt.io/v1"
KUBEVIRT_API = f"/apis/{KUBEVIRT}"

OWNED = {"labels": Any, "annotations": Any, "ownerReferences": list_of("apiVersion kind name uid controller")}
_CONDITIONS = list_of("type status reason lastTransitionTime message")


# Nodes


class _LabeledMetadata(Metadata, frozen=True):
    labels: dict[str, str] = field(default_factory=dict)


class _Condition(Typed, frozen=True):
    type: str = ""
    status: str = ""


class _NodeInfo(Typed, frozen=True):
    kernel_version: str = ""


class _NodeSpec(Typed, frozen=True):
    unschedulable: bool = False
    taints: tuple[facts.Taint, ...] = ()


class _NodeStatus(Typed, frozen=True):
    allocatable: dict[str, Any] | None = None  # quantities
    conditions: tuple[_Condition, ...] = ()
    node_info: _NodeInfo = _NodeInfo()


class Node(Typed, frozen=True):
    """A node."""

    metadata: _LabeledMetadata = _LabeledMetadata()
    spec: _NodeSpec = _NodeSpec()
    status: _NodeStatus = _NodeStatus()


def read_node(item: Node) -> facts.Node:
    """Extract the facts of a node. Raises Malformed for an invalid quantity."""
    conditions = {each.type: each.status for each in item.status.conditions}
    allocatable = item.status.allocatable
    return facts.Node(
        item.metadata.name,
        shared_labels(item.metadata.labels),
        conditions["Ready"] == "True" if "Ready" in conditions else None,
        item.spec.unschedulable,
        item.spec.taints,
        None if allocatable is None else amounts(allocatable, "status.allocatable"),
        item.status.node_info.kernel_version,
    )


NODES = Kind("v1", "Node", Node, facts.Node, read_node)


# Pods

_PVC = map_of("claimName hotpluggable")
_PRESENT = map_of()  # only the presence of the map counts
_VOLUMES = list_of(
    "name",
    containerPath=map_of("path"),
    downwardMetrics=_PRESENT,
    persistentVolumeClaim=_PVC,
    dataVolume=map_of("name hotpluggable"),
    ephemeral=map_of(persistentVolumeClaim=_PVC),
)
# Where a pod or a VMI may run.
_CONSTRAINTS = "affinity nodeSelector tolerations topologySpreadConstraints schedulerName resourceClaims"


def read_pod(item: PodObject) -> Pod | None:
    """Extract the facts of a pod; return None for a finished pod. Raises Malformed for an invalid quantity."""
    if item.status.phase in ("Succeeded", "Failed"):
        return None
    namespace, name = item.metadata.key
    manifest = Manifest(item, namespace)
    # The scheduler has preempted pods on the nominated node for this pod, and counts the pod there.
    pod = pod_facts(manifest, name, manifest.spec.node_name or item.status.nominated_node_name)
    pin = read_pin(manifest)
    starts_vm = manifest.is_virt_launcher and not manifest.is_migration_target
    undecided = starts_vm and not {kubevirt.PROVISIONING_ANNOTATION, DECISION} & manifest.annotations.keys()
    prefers = bool(pin and pin.prefers)
    return replace(pod, labels=shared_labels(pod.labels), pin=pin, prefers=prefers, undecided=undecided)


PODS = Kind(
    "v1", "Pod", PodObject, facts.Pod, read_pod, query={"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
)


# VMs

_DEVICES = list_of("deviceName")
_DISKS = list_of("name cache shareable lun")
_PROBE = map_of(exec=_PRESENT)
_DOMAIN = map_of(
    "cpu rebootPolicy ioThreads",
    machine=map_of("type"),
    resources=map_of("requests limits overcommitGuestOverhead"),
    memory=map_of("guest hugepages reservedOverhead"),
    devices=map_of(
        "autoattachGraphicsDevice autoattachSerialConsole logSerialConsole",
        gpus=_DEVICES,
        hostDevices=_DEVICES,
        disks=_DISKS,
        filesystems=list_of("name"),
        interfaces=list_of("", sriov=_PRESENT, passtBinding=_PRESENT, binding=map_of("name")),
        tpm=map_of("enabled"),
    ),
    features=map_of(hyperv=map_of("evmcs reenlightenment")),
    launchSecurity=map_of(sev=map_of("policy"), snp=_PRESENT, tdx=_PRESENT),
)
_VMI_SPEC = map_of(
    f"{_CONSTRAINTS} evictionStrategy architecture",
    domain=_DOMAIN,
    volumes=_VOLUMES,
    livenessProbe=_PROBE,
    readinessProbe=_PROBE,
    utilityVolumes=list_of("claimName"),
)


def read_virtual_machine(item: JsonObject) -> facts.VirtualMachine:
    """Extract the facts of a VirtualMachine."""
    spec = mapping(item, "spec")
    failures = mapping(item, "status", "startFailure").get("consecutiveFailCount")
    true, false = true_and_false_keys(mapping(spec, "template", "metadata", "annotations"))
    template = mapping(spec, "template", "spec")
    claims, hotpluggable = (tuple(template_claims(template, hotpluggable=each)) for each in (False, True))
    if memory_of((*true, *false, *claims, *hotpluggable)) > MAX_DETAILS:
        true = NO_STRINGS
        false = NO_STRINGS
        claims = ()
        hotpluggable = ()
    return facts.VirtualMachine(
        *key_of(item),
        strategy=limited_name(kubevirt.run_strategy(item)),
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
    owner = kubevirt.controller_of(item)
    uid = text(item, "metadata", "uid")
    return facts.VirtualMachineInstance(
        *key_of(item), uid, *(limited_name(text(owner, field)) for field in ("kind", "name", "uid"))
    )


_VMI = object_of(
    metadata=metadata_of(**OWNED),
    spec=_VMI_SPEC,
    status=map_of("nodeName phase evacuationNodeName", conditions=_CONDITIONS, machine=map_of("type")),
)
# Namespace users control the labels of pods, but only KubeVirt creates a VMI's pod that the VMI owns.
VMIS = Kind(KUBEVIRT, "VirtualMachineInstance", _VMI, facts.VirtualMachineInstance, read_vmi, metadata_only=True)


# What opts in VMs, if the setting says so


class Namespace(Typed, frozen=True):
    """A namespace."""

    metadata: _LabeledMetadata = _LabeledMetadata()


def read_namespace(item: Namespace) -> facts.Namespace:
    """Extract the facts of a namespace."""
    labels = item.metadata.labels
    opt_in = {"true": True, "false": False}.get(labels.get(OPT_IN_KEY, ""))
    return facts.Namespace(item.metadata.name, opt_in, shared_labels(labels))


# Namespace selectors of affinity terms read the namespaces, too. Without the right, an annotation still opts in.
NAMESPACES = Kind("v1", "Namespace", Namespace, facts.Namespace, read_namespace, required=False, metadata_only=True)


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
                    "cpuModel cpuRequest evictionStrategy additionalGuestMemoryOverheadRatio architectureConfiguration",
                    developerConfiguration=map_of(
                        "nodeSelectors cpuAllocationRatio memoryOvercommit minimumClusterTSCFrequency"
                    ),
                    network=map_of("binding"),
                    supportContainerResources=list_of("type resources"),
                    virtualMachineOptions=map_of("disableSerialConsoleLog"),
                ),
                customizeComponents=map_of(flags=map_of(controller=map_of(kubevirt.COPIED_ANNOTATIONS))),
            ),
            status=map_of("observedKubeVirtVersion defaultArchitecture"),
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
