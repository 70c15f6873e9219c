"""The fields of each kind of object that the webhook reads and that a snapshot keeps.

The decoder skips all other fields. That halves the decoding time, and a skipped field can't leak, such as a container's
environment with a passphrase, or a VM's cloud-init data. A field is `Any` if its whole content is used.
"""

from functools import lru_cache
from types import GenericAlias
from typing import Any, TypedDict, get_args, get_type_hints, is_typeddict

import msgspec

from webhook.fleet.instance_type import NAME_LABEL
from webhook.placement.objects.fields import JsonObject
from webhook.placement.objects.kubevirt import STATE_CLAIM_LABEL
from webhook.placement.objects.pod import UNDECODED
from webhook.placement.objects.resources import MAX_CONTAINERS
from webhook.placement.objects.selectors import TOPOLOGY_LABELS

JSON = "application/json"
# The API server sends only the metadata: https://kubernetes.io/docs/reference/using-api/api-concepts/#metadata-only-fetches
METADATA_LIST, METADATA = (
    f"{JSON};as={kind};g=meta.k8s.io;v=v1" for kind in ("PartialObjectMetadataList", "PartialObjectMetadata")
)


def _fields(names: str = "", **parts: Any) -> Any:
    """Return the type of a map with these fields: `names` of any type, and `parts`, each of its type or null."""
    fields = dict.fromkeys(names.split(), Any) | {name: part | None for name, part in parts.items()}
    return TypedDict("Fields", fields, total=False)  # type: ignore[operator]


def _list_of(names: str, **parts: Any) -> Any:
    return GenericAlias(list, (_fields(names, **parts),))


def _metadata(names: str = "", **parts: Any) -> Any:
    # Without managedFields, which alone are half of a pod.
    identity = "name namespace generateName uid creationTimestamp deletionTimestamp resourceVersion"
    return _fields(f"{identity} {names}", **parts)


def _object(metadata: Any, names: str = "", **parts: Any) -> Any:
    return _fields(f"apiVersion kind {names}", metadata=metadata, **parts)


_OWNED = {"labels": Any, "annotations": Any, "ownerReferences": _list_of("apiVersion kind name uid controller")}
_LABELED = _metadata("labels")
_CONDITIONS = _list_of("type status reason lastTransitionTime message")
_RESOURCES = _fields("requests limits")
_CONTAINERS = _list_of("name restartPolicy", resources=_RESOURCES, ports=_list_of("hostPort"))
_CONTAINER_STATUSES = _list_of("name allocatedResources", resources=_RESOURCES)
_PVC = _fields("claimName hotpluggable")
_VOLUMES = _list_of(
    "name",
    persistentVolumeClaim=_PVC,
    dataVolume=_fields("name hotpluggable"),
    ephemeral=_fields(persistentVolumeClaim=_PVC),
)
# Where a pod or a VMI may run.
_CONSTRAINTS = "affinity nodeSelector tolerations topologySpreadConstraints schedulerName resourceClaims"

# In a bookmark, `containers` is null.
_POD_SPEC = _fields(
    f"{_CONSTRAINTS} nodeName overhead priority schedulingGates",
    containers=_CONTAINERS,
    initContainers=_CONTAINERS,
    resources=_RESOURCES,
    volumes=_VOLUMES,
)
_POD_STATUS = _fields(
    "phase nominatedNodeName allocatedResources",
    conditions=_CONDITIONS,
    resources=_RESOURCES,
    containerStatuses=_CONTAINER_STATUSES,
    initContainerStatuses=_CONTAINER_STATUSES,
)
_TPM, _EFI, _DEVICES = _fields("persistent enabled"), _fields("persistent"), _list_of("name deviceName")
_DISKS = _list_of("name cache shareable lun")
_DOMAIN = _fields(
    "cpu",
    machine=_fields("type"),
    resources=_fields("requests limits overcommitGuestOverhead"),
    memory=_fields("guest hugepages"),
    devices=_fields(tpm=_TPM, gpus=_DEVICES, hostDevices=_DEVICES, disks=_DISKS, filesystems=_list_of("name")),
    features=_fields(hyperv=_fields("evmcs")),
    firmware=_fields(bootloader=_fields("bios", efi=_EFI)),
)
_VMI_SPEC = _fields(
    f"{_CONSTRAINTS} evictionStrategy architecture",
    domain=_DOMAIN,
    volumes=_VOLUMES,
    utilityVolumes=_list_of("name claimName"),
)

POD = _object(_metadata(**_OWNED), spec=_POD_SPEC, status=_POD_STATUS)
NODE = _object(
    _LABELED,
    spec=_fields("unschedulable taints"),
    status=_fields("allocatable", conditions=_CONDITIONS, nodeInfo=_fields("kernelVersion")),
)
CSI_NODE = _object(_metadata(), spec=_fields(drivers=_list_of("name", allocatable=_fields("count"))))
CLAIM = _object(
    _metadata(labels=_fields(STATE_CLAIM_LABEL)),
    spec=_fields("accessModes volumeMode volumeName storageClassName", resources=_fields(requests=_fields("storage"))),
    status=_fields("phase"),
)
VOLUME = _object(
    _metadata(labels=_fields(" ".join(TOPOLOGY_LABELS))),
    spec=_fields(
        "accessModes volumeMode storageClassName nodeAffinity",
        csi=_fields("driver volumeHandle", volumeAttributes=_fields("migratable share")),
        claimRef=_fields("namespace name uid"),
    ),
    status=_fields("phase"),
)
SHARE_MANAGER = _object(_metadata(), status=_fields("state ownerID"))
NAMESPACE = _object(_LABELED)
STORAGE_CLASS = _object(
    _metadata("annotations"),
    "provisioner volumeBindingMode allowedTopologies",
    parameters=_fields("migratable share"),
)
RESOURCE_QUOTA = _object(_metadata(), spec=_fields("scopes scopeSelector"), status=_fields("hard used"))
LONGHORN_SETTING = _object(_metadata(), "value")
KUBEVIRT = _object(
    _metadata(),
    spec=_fields(
        configuration=_fields(developerConfiguration=_fields("nodeSelectors cpuAllocationRatio memoryOvercommit"))
    ),
    status=_fields("observedKubeVirtVersion"),
)
VM = _object(
    _metadata(**_OWNED),
    spec=_fields(
        "instancetype preference runStrategy running",
        template=_fields(metadata=_fields("labels annotations"), spec=_VMI_SPEC),
    ),
    status=_fields("printableStatus ready created startFailure instancetypeRef preferenceRef", conditions=_CONDITIONS),
)
VMI = _object(
    _metadata(**_OWNED),
    spec=_VMI_SPEC,
    status=_fields("nodeName phase evacuationNodeName", conditions=_CONDITIONS, machine=_fields("type")),
)

_INSTANCE_TYPE_SPEC = _fields(
    "nodeSelector schedulerName cpu memory preferredArchitecture annotations",
    gpus=_DEVICES,
    hostDevices=_DEVICES,
    machine=_fields("preferredMachineType"),
    devices=_fields(preferredTPM=_TPM),
    firmware=_fields(preferredEfi=_EFI),
)
INSTANCE_TYPE = _object(_metadata(), spec=_INSTANCE_TYPE_SPEC)  # or a preference
REVISION = _object(_metadata(labels=_fields(NAME_LABEL)), data=_fields(spec=_INSTANCE_TYPE_SPEC))

# An AdmissionReview of a pod that is being created. Of the user, not the groups; of the managed fields, not the names.
REVIEW = _fields(
    "kind apiVersion",
    request=_fields(
        "uid kind namespace operation subResource dryRun",
        userInfo=_fields("username"),
        object=_fields("kind", metadata=_metadata(**_OWNED, managedFields=_list_of("time")), spec=_POD_SPEC),
    ),
)

# bytes of JSON. A larger object is decoded field by field, without the fields that are larger than MAX_FIELD: 38,000
# terms (2.3 MB) stop all threads for 70 ms, and then take 18 MB. The API server limits annotations to 256 KiB.
LARGE, MAX_FIELD = 64 * 1024, 256 * 1024
MAX_ANNOTATIONS = 2 * MAX_FIELD

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_NULL = b"null"
_hints = lru_cache(maxsize=64)(get_type_hints)


def size_of(raw: msgspec.Raw | bytes) -> int:
    """Return the number of bytes of an encoded value."""
    return memoryview(raw).nbytes


def decode_large(raw: msgspec.Raw | bytes, shape: Any) -> JsonObject:
    """Decode a large object like `shape`, without what is too large to decode; `UNDECODED` marks such an object.

    No part takes more than some milliseconds. Raises ValueError for invalid JSON.
    """
    item, undecoded = _decode_fields(raw, shape)
    return item | {UNDECODED: True} if undecoded else item


def _decode_fields(raw: msgspec.Raw | bytes, shape: Any) -> tuple[JsonObject, bool]:
    item, undecoded, hints = {}, False, _hints(shape)
    for name, value in _FIELDS.decode(raw).items():
        if name in hints:
            try:
                item[name], cut = _decode_value(
                    value, hints[name], MAX_ANNOTATIONS if name == "annotations" else MAX_FIELD
                )
            except (ValueError, RecursionError):  # an unexpected type
                cut = True
            undecoded |= cut
    return item, undecoded


def _decode_value(raw: msgspec.Raw, shape: Any, limit: int) -> tuple[Any, bool]:
    part = next(iter(get_args(shape)), None)  # of "a part or null"
    if size_of(raw) == len(_NULL) and bytes(raw) == _NULL:
        return None, False
    if is_typeddict(part):
        return _decode_fields(raw, part)
    if size_of(raw) <= limit:
        return msgspec.json.decode(raw, type=shape), False
    item_shape = next(iter(get_args(part)), None)
    items = _ITEMS.decode(raw) if is_typeddict(item_shape) else []
    if not 0 < len(items) <= MAX_CONTAINERS:
        return None, True
    decoded = [_decode_fields(each, item_shape) for each in items]
    return [item for item, _ in decoded], any(cut for _, cut in decoded)
