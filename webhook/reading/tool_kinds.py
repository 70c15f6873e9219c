"""The table of the resource kinds that only the tool reads. The webhook neither lists them nor stores their facts."""

from webhook.cluster.kind import Kind, list_of, map_of, metadata_of, object_of
from webhook.cluster.kinds import KUBEVIRT, LONGHORN
from webhook.fleet.instance_type import KINDS, NAME_LABEL, REVISION
from webhook.placement.objects.longhorn import VERSION_SETTING

_DEVICES = list_of("name deviceName")
_INSTANCE_TYPE_SPEC = map_of(
    "nodeSelector schedulerName cpu memory preferredArchitecture annotations",
    gpus=_DEVICES,
    hostDevices=_DEVICES,
    machine=map_of("preferredMachineType"),
    devices=map_of(preferredTPM=map_of("persistent enabled")),
    firmware=map_of(preferredEfi=map_of("persistent")),
)
TOOL_KINDS = (
    Kind(
        KUBEVIRT,
        "KubeVirt",
        object_of(
            metadata_of(),
            spec=map_of(
                configuration=map_of(developerConfiguration=map_of("nodeSelectors cpuAllocationRatio memoryOvercommit"))
            ),
            status=map_of("observedKubeVirtVersion"),
        ),
    ),
    Kind(
        LONGHORN,
        "Setting",
        object_of(metadata_of(), "value"),
        query={"fieldSelector": f"metadata.name={VERSION_SETTING}"},
    ),
    Kind(
        "v1", "ResourceQuota", object_of(metadata_of(), spec=map_of("scopes scopeSelector"), status=map_of("hard used"))
    ),
    # Instance types, preferences, and the revisions of both.
    *(
        Kind("instancetype.kubevirt.io/v1beta1", name, object_of(metadata_of(), spec=_INSTANCE_TYPE_SPEC))
        for name in sorted(KINDS - {REVISION})
    ),
    Kind(
        "apps/v1",
        REVISION,
        object_of(metadata_of(labels=map_of(NAME_LABEL)), data=map_of(spec=_INSTANCE_TYPE_SPEC)),
        query={"labelSelector": NAME_LABEL},
    ),
)
