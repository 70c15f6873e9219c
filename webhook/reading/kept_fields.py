"""The fields that a snapshot keeps of each object. What is not listed here never reaches the file.

A decision and the report read these fields. The rest may hold secrets: a container's environment, arguments and command
(the share-manager pod of an encrypted volume has its passphrase there), a VM's cloud-init data, managedFields, and
annotations such as kubectl's last-applied-configuration.
"""

from collections.abc import Callable, Collection
from typing import Any

from webhook.fleet.instance_type import KINDS as INSTANCE_TYPE_KINDS
from webhook.fleet.instance_type import NAME_LABEL, REVISION
from webhook.placement.objects.fields import JsonObject
from webhook.placement.objects.kubevirt import (
    EVICTION_SOURCE,
    MIGRATION_NAME_ANNOTATION,
    PROVISIONING_ANNOTATION,
    STATE_CLAIM_LABEL,
    VMI_NAME_ANNOTATION,
)
from webhook.placement.objects.selectors import TOPOLOGY_LABELS

Keep = Callable[[Any], Any]

OWN_PREFIXES = ("kubevirt-scheduler/", "scheduler.kubevirt-scheduler.io/")
ANNOTATIONS = frozenset({VMI_NAME_ANNOTATION, PROVISIONING_ANNOTATION, MIGRATION_NAME_ANNOTATION, EVICTION_SOURCE})


def _whole(value: Any) -> Any:
    return value


def _fields(*whole: str, **parts: Keep) -> Keep:
    """Keep these fields of a map: those in `whole` with all that they contain, and `parts` of the others."""
    kept = dict.fromkeys(whole, _whole) | parts

    def keep(value: Any) -> Any:
        if not isinstance(value, dict):
            return None
        return {key: kept[key](item) for key, item in value.items() if key in kept}

    return keep


def _each(part: Keep) -> Keep:
    """Keep a part of each item of a list."""
    return lambda value: [part(item) for item in value] if isinstance(value, list) else None


def _annotations(opt_in: Collection[str]) -> Keep:
    kept = ANNOTATIONS | frozenset(opt_in)

    def keep(value: Any) -> Any:
        if not isinstance(value, dict):
            return None
        return {key: item for key, item in value.items() if key in kept or key.startswith(OWN_PREFIXES)}

    return keep


def _claim_volumes(value: Any) -> Any:
    """Keep the volumes with a claim, and of these the name and the claim."""
    sources = ("persistentVolumeClaim", "dataVolume", "ephemeral")
    items = value if isinstance(value, list) else []
    named = [item for item in items if isinstance(item, dict) and any(source in item for source in sources)]
    return [_CLAIM_VOLUME(item) for item in named]


_PVC = _fields("claimName", "hotpluggable")
_CLAIM_VOLUME = _fields(
    "name",
    persistentVolumeClaim=_PVC,
    dataVolume=_fields("name", "hotpluggable"),
    ephemeral=_fields(persistentVolumeClaim=_PVC),
)
_RESOURCES = _fields("requests", "limits")
_CONDITIONS = _each(_fields("type", "status", "reason", "lastTransitionTime"))
_CONTAINERS = _each(_fields("name", "restartPolicy", resources=_RESOURCES, ports=_each(_fields("hostPort"))))
_CONTAINER_STATUSES = _each(_fields("name", "allocatedResources", resources=_RESOURCES))
# Where a pod or a VMI may run.
_CONSTRAINTS = ("affinity", "nodeSelector", "tolerations", "topologySpreadConstraints", "schedulerName")
_TPM, _EFI, _DEVICES = _fields("persistent", "enabled"), _fields("persistent"), _each(_fields("name", "deviceName"))
_DOMAIN = _fields(
    "cpu",
    machine=_fields("type"),
    resources=_fields("requests", "limits", "overcommitGuestOverhead"),
    memory=_fields("guest", "hugepages"),
    devices=_fields(tpm=_TPM, gpus=_DEVICES, hostDevices=_DEVICES),
    features=_fields(hyperv=_fields("evmcs")),
    firmware=_fields(bootloader=_fields("bios", efi=_EFI)),
)
_VMI_SPEC = _fields(
    *_CONSTRAINTS,
    "resourceClaims",
    "evictionStrategy",
    "architecture",
    domain=_DOMAIN,
    volumes=_claim_volumes,
    utilityVolumes=_each(_fields("name", "claimName")),
)

_POD_SPEC = _fields(
    *_CONSTRAINTS,
    "nodeName",
    "overhead",
    "resourceClaims",
    "schedulingGates",
    "runtimeClassName",
    "priority",
    "priorityClassName",
    "hostNetwork",
    containers=_CONTAINERS,
    initContainers=_CONTAINERS,
    resources=_RESOURCES,
    volumes=_claim_volumes,
)


def _pod_conditions(value: Any) -> Any:
    """Keep the scheduler's message too: it says why a pod is Pending."""
    conditions = value if isinstance(value, list) else []
    kept: list[JsonObject] = _CONDITIONS(conditions)
    for condition, reduced in zip(conditions, kept, strict=True):
        if reduced and reduced.get("type") == "PodScheduled" and "message" in condition:
            reduced["message"] = condition["message"]
    return kept


_POD_STATUS = _fields(
    "phase",
    "nominatedNodeName",
    "allocatedResources",
    conditions=_pod_conditions,
    resources=_RESOURCES,
    containerStatuses=_CONTAINER_STATUSES,
    initContainerStatuses=_CONTAINER_STATUSES,
)


def kept_fields(opt_in: Collection[str]) -> dict[str, Keep]:
    """Return, for each kind, the function that reduces an object. `opt_in` are the keys of the opt-in annotations."""
    annotations = _annotations(opt_in)
    owners = _each(_fields("apiVersion", "kind", "name", "uid", "controller"))
    names = ("name", "namespace", "generateName", "uid", "creationTimestamp", "deletionTimestamp")
    labeled = _fields(*names, "labels", annotations=annotations, ownerReferences=owners)
    unlabeled = _fields(*names)

    def reduced(metadata: Keep = unlabeled, **parts: Keep) -> Keep:
        return _fields("apiVersion", "kind", metadata=metadata, **parts)

    blueprint = _fields(  # of instance types and preferences
        "nodeSelector",
        "schedulerName",
        "cpu",
        "memory",
        "preferredArchitecture",
        annotations=annotations,
        gpus=_DEVICES,
        hostDevices=_DEVICES,
        machine=_fields("preferredMachineType"),
        devices=_fields(preferredTPM=_TPM),
        firmware=_fields(preferredEfi=_EFI),
    )
    template = _fields(metadata=_fields("labels", annotations=annotations), spec=_VMI_SPEC)
    return {
        "PersistentVolumeClaim": reduced(
            _fields(*names, labels=_fields(STATE_CLAIM_LABEL)),
            spec=_fields(
                "accessModes",
                "volumeMode",
                "volumeName",
                "storageClassName",
                resources=_fields(requests=_fields("storage")),
            ),
            status=_fields("phase"),
        ),
        "PersistentVolume": reduced(
            _fields(*names, labels=_fields(*TOPOLOGY_LABELS)),
            spec=_fields(
                "accessModes",
                "volumeMode",
                "storageClassName",
                "nodeAffinity",
                csi=_fields("driver", "volumeHandle", volumeAttributes=_fields("migratable", "share")),
                claimRef=_fields("namespace", "name", "uid"),
            ),
            status=_fields("phase"),
        ),
        "Node": reduced(
            _fields(*names, "labels"),
            spec=_fields("unschedulable", "taints"),
            status=_fields("allocatable", conditions=_CONDITIONS),
        ),
        "CSINode": reduced(spec=_fields(drivers=_each(_fields("name", allocatable=_fields("count"))))),
        "Pod": reduced(labeled, spec=_POD_SPEC, status=_POD_STATUS),
        "Namespace": reduced(_fields(*names, "labels")),
        "StorageClass": reduced(
            _fields(*names, annotations=annotations),
            provisioner=_whole,
            volumeBindingMode=_whole,
            parameters=_fields("migratable", "share"),
            allowedTopologies=_whole,
        ),
        "ShareManager": reduced(status=_fields("state", "ownerID")),
        "ResourceQuota": reduced(spec=_fields("scopes", "scopeSelector"), status=_fields("hard", "used")),
        "KubeVirt": reduced(
            spec=_fields(
                configuration=_fields(
                    developerConfiguration=_fields("nodeSelectors", "cpuAllocationRatio", "memoryOvercommit")
                )
            ),
            status=_fields("observedKubeVirtVersion"),
        ),
        **dict.fromkeys(INSTANCE_TYPE_KINDS, reduced(spec=blueprint)),
        REVISION: reduced(_fields(*names, labels=_fields(NAME_LABEL)), data=_fields(spec=blueprint)),
        "VirtualMachine": reduced(
            labeled,
            spec=_fields("instancetype", "preference", "runStrategy", "running", template=template),
            status=_fields(
                "printableStatus",
                "ready",
                "created",
                "startFailure",
                "instancetypeRef",
                "preferenceRef",
                conditions=_CONDITIONS,
            ),
        ),
        "VirtualMachineInstance": reduced(
            labeled,
            spec=_VMI_SPEC,
            status=_fields("nodeName", "phase", "evacuationNodeName", conditions=_CONDITIONS, machine=_fields("type")),
        ),
    }
