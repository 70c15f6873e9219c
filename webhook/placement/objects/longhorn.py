"""The labels and the creator of Longhorn's share-manager pods, what limits their nodes, and the settings that count.

Longhorn's source: controller/share_manager_controller.go and types/setting.go, both in
https://github.com/longhorn/longhorn-manager/tree/5ddaa369fa7e3b0da9ee9fd42dbec24e25f793f6
"""

from collections.abc import Iterable, Mapping
from typing import Any

from webhook.placement.objects.fields import LABEL_NAME, is_label_key
from webhook.placement.objects.pod_object import Toleration
from webhook.placement.objects.selectors import Requirement, Selector

COMPONENT_LABEL = "longhorn.io/component"
SHARE_MANAGER = "share-manager"  # the component
LONGHORN_ACCOUNT = "longhorn-service-account"  # of Longhorn's manager
VOLUME_LABEL = "longhorn.io/share-manager"  # the name of the volume that the pod serves
VERSION_SETTING = "current-longhorn-version"  # the name of the setting that has the version
SELECTOR_SETTING = "system-managed-components-node-selector"  # of share-manager pods, too
TOLERATION_SETTING = "taint-toleration"  # of share-manager pods, too
# With `false` in the first setting, or the owner of a VM's pod in the second, no version deletes the pod:
# https://github.com/longhorn/longhorn-manager/blob/5ddaa369/controller/kubernetes_pod_controller.go#L624
DELETES_PODS = "auto-delete-pod-when-volume-detached-unexpectedly"
KEPT_OWNERS, VMI_OWNER = f"blacklist-for-{DELETES_PODS}", "kubevirt.io/VirtualMachineInstance"
# From 1.11 on, the second setting replaces the first one, and names a network: `syncSettingEndpointNetworkForRWXVolume`
# in https://github.com/longhorn/longhorn-manager/blob/v1.11.3/datastore/longhorn.go
RWX_NETWORK, ENDPOINT_NETWORK = "storage-network-for-rwx-volume-enabled", "endpoint-network-for-rwx-volume"
FAST_FAILOVER, DRAIN_POLICY = "rwx-volume-fast-failover", "node-drain-policy"
READ_SETTINGS = (
    VERSION_SETTING,
    SELECTOR_SETTING,
    TOLERATION_SETTING,
    DELETES_PODS,
    KEPT_OWNERS,
    RWX_NETWORK,
    ENDPOINT_NETWORK,
    FAST_FAILOVER,
    DRAIN_POLICY,
)
_EFFECTS = ("", "NoExecute", "NoSchedule", "PreferNoSchedule")


def is_share_manager(labels: Mapping[str, Any]) -> bool:
    """Return whether these are the labels of a share-manager pod. In another namespace, anybody can write them."""
    return labels.get(COMPONENT_LABEL) == SHARE_MANAGER


def share_manager_name(volume: str) -> str:
    """Return the name of the share-manager pod of a volume."""
    return f"share-manager-{volume}"


def node_selector(setting: str) -> dict[str, str]:
    """Parse a selector such as "disk:ssd;rack:7". Like `UnmarshalNodeSelector`, ignore one with an invalid part."""
    parts = [part.split(":") for part in setting.split(";")] if setting.strip(" ") else []
    return {key.strip(" "): value.strip(" ") for key, value in parts} if all(len(part) == 2 for part in parts) else {}


def tolerations(setting: str) -> tuple[Toleration, ...]:
    """Parse tolerations such as "a=b:NoSchedule;c:NoExecute". Like `UnmarshalTolerations`, ignore invalid ones."""
    parts = [part.split(":") for part in setting.replace(" ", "").split(";")] if setting.strip(" ") else []
    if any(len(part) != 2 or part[1] not in _EFFECTS for part in parts):
        return ()
    pairs = [(*pair.partition("="), effect) for pair, effect in parts]
    return tuple(Toleration(key, "Equal" if equal else "Exists", value, effect) for key, equal, value, effect in pairs)


def share_manager_limits(selector: str, topologies: Iterable[tuple[str, tuple[str, ...]]]) -> Selector:
    """Return what a StorageClass requires of the nodes of share-managers; see `createShareManagerPod`.

    `selector` is its parameter, and `topologies` are the labels of its allowedTopologies with their values, which
    Longhorn requires all together. Empty if the API server would reject a pod with these requirements.
    """
    limits = [Requirement(key, "In", (value,)) for key, value in node_selector(selector).items()]
    limits += [Requirement(key, "In", values) for key, values in topologies]
    return tuple(limits) if all(map(_is_valid, limits)) else ()


def _is_valid(requirement: Requirement) -> bool:
    values = requirement.values
    return bool(values) and is_label_key(requirement.key) and all(map(LABEL_NAME.fullmatch, filter(None, values)))
