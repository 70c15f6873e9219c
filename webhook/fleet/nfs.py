"""What NFS means for a VM: whether loopback NFS can block it, and which of its disks can move to Block volumes.

The rules are explained in docs/explanation/costs.md and docs/guides/leave-nfs.md.
"""

from collections.abc import Callable, Collection, Iterator, Mapping

from msgspec import Struct, field

from webhook.fleet.machine import Status
from webhook.fleet.rendering.template import claim_of
from webhook.fleet.volumes import other_users
from webhook.placement.catalog import Catalog
from webhook.placement.objects.fields import JsonObject, has_condition, mapping, mappings, text, version_numbers
from webhook.placement.objects.longhorn import (
    DELETES_PODS,
    ENDPOINT_NETWORK,
    KEPT_OWNERS,
    RWX_NETWORK,
    VERSION_SETTING,
    VMI_OWNER,
)

# From these versions on, nfs-ganesha calls PR_SET_IO_FLUSHER, and Linux knows it.
_FLUSHER_LONGHORN, _FLUSHER_KERNEL = (1, 7, 3), (5, 6)
_CACHED = frozenset({"writethrough", "writeback"})
# Only these versions of Longhorn keep a VM's pod when they replace the share-manager of its volume
# (docs/reference/versions.md): from the first one up to, but without the second.
KEEPS_PODS_FROM, DELETES_PODS_FROM = (1, 7, 2), (1, 12)


class Servers(Struct, frozen=True):
    """The versions of what serves NFS."""

    longhorn: str = ""  # its version; empty if unknown
    kernels: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of each node
    # of each running share-manager, by volume: Longhorn upgrades it when its volume detaches
    running: Mapping[str, str] = field(default_factory=dict)

    def is_old(self, volume: str) -> bool:
        """Return whether the NFS server of a volume doesn't ask for the protection."""
        version = version_numbers(self.running.get(volume, "")) or version_numbers(self.longhorn)
        return () < version < _FLUSHER_LONGHORN

    def has_old_kernel(self, node: str | None) -> bool:
        """Return whether the kernel of a node doesn't have the protection."""
        return () < self.kernels.get(node or "", ()) < _FLUSHER_KERNEL


class OverNfs(Struct, frozen=True):
    """The claims of a VM over NFS."""

    cached: tuple[str, ...] = ()  # those that it writes through the page cache
    exposed: bool = False  # whether loopback NFS can block the VM
    can_leave: tuple[str, ...] = ()  # those that can move to Block

    def as_json(self) -> JsonObject:
        """Return the same for programs. Its text is empty if there is nothing to say."""
        cached = "cached" if self.cached else ""
        words = "exposed" if self.exposed else cached, "can leave" if self.can_leave else ""
        return {
            "cached": list(self.cached),
            "exposed": self.exposed,
            "canLeave": list(self.can_leave),
            "text": ", ".join(filter(None, words)),
        }


def deletes_pods(setting: Callable[[str], str], owner: str = VMI_OWNER) -> bool:
    """Return whether Longhorn may delete the pods of such owners after it replaced the share-manager of their volume.

    `setting` returns a setting of Longhorn, empty if it is unknown. An unknown version counts as one that deletes.
    """
    if setting(DELETES_PODS) == "false" or owner in setting(KEPT_OWNERS).split(";"):
        return False
    keeps = KEEPS_PODS_FROM <= version_numbers(setting(VERSION_SETTING)) < DELETES_PODS_FROM
    # With such a network, the new share-manager has another IP address.
    return not keeps or setting(RWX_NETWORK) == "true" or bool(setting(ENDPOINT_NETWORK))


def cached_claims(vmi_spec: JsonObject) -> Iterator[str]:
    """Yield the claims of the cached disks, and of the file systems that virtiofs shares."""
    devices = mapping(vmi_spec, "domain", "devices")
    names = {text(disk, "name") for disk in mappings(devices, "disks") if text(disk, "cache") in _CACHED}
    names |= {text(each, "name") for each in mappings(devices, "filesystems")}
    return (claim_of(volume) for volume in mappings(vmi_spec, "volumes") if text(volume, "name") in names)


def over_nfs(status: Status, catalog: Catalog, servers: Servers) -> OverNfs:
    """Return what NFS means for a VM. A stopped VM is read from its template, and leaves NFS only when it runs."""
    machine = status.machine
    spec = mapping(machine.vmi, "spec") or mapping(machine.vm, "spec", "template", "spec")
    volumes = {each: _served_volume(machine.namespace, each, catalog) for each in cached_claims(spec)}
    cached = tuple(claim for claim, volume in volumes.items() if volume)
    unprotected = any(servers.is_old(volumes[claim]) for claim in cached)
    unprotected = unprotected or servers.has_old_kernel(status.storage_node or status.node)
    return OverNfs(cached, bool(cached) and unprotected, tuple(_can_leave(status, spec, catalog)))


def _served_volume(namespace: str, name: str, catalog: Catalog) -> str:
    """Return the claim's Longhorn volume if a share-manager serves it: with ReadWriteMany and Filesystem."""
    claim = catalog.claim(namespace, name)
    volume = catalog.volume(claim.volume_name) if claim and claim.shared and not claim.block else None
    return volume.handle if volume else ""


def _can_leave(status: Status, spec: JsonObject, catalog: Catalog) -> Iterator[str]:
    """Yield the claims of disks that KubeVirt can copy while the VM runs, and that only this VM uses."""
    machine, pod = status.machine, status.machine.pod
    if pod is None or not pod.node or not has_condition(machine.vmi, "LiveMigratable"):
        return
    findings = {each.claim: each for each in status.claims}
    # KubeVirt 1.5 and newer also moves hotplugged disks: https://github.com/kubevirt/kubevirt/pull/12800
    attached = {*pod.claims, *machine.hotplugged}
    disks = {text(each, "name"): each for each in mappings(spec, "domain", "devices", "disks")}
    for volume in mappings(spec, "volumes"):
        # KubeVirt copies only claims and DataVolumes: `ValidateVolumes` in
        # https://github.com/kubevirt/kubevirt/blob/d923fdb8/pkg/virt-controller/watch/volume-migration/volume-migration.go
        disk = disks.get(text(volume, "name"))
        claim = "" if volume.get("ephemeral") else claim_of(volume)
        if disk is None or disk.get("shareable") is True or disk.get("lun") is not None or claim not in attached:
            continue
        own = [findings[claim]] if claim in findings else []
        served = _served_volume(machine.namespace, claim, catalog)
        if served and not any(other_users(own, machine.namespace, pod.vmi_uid, catalog)):
            yield claim


def summarize_nfs(disks: Collection[OverNfs]) -> JsonObject:
    """Count the VMs that loopback NFS exposes and those that can leave NFS. The text is empty if there are none."""
    exposed = sum(each.exposed for each in disks)
    leaving = sum(bool(each.can_leave) for each in disks)
    parts = [f"loopback NFS exposes {exposed}"] if exposed else []
    parts += [f"{leaving} can leave NFS"] if leaving else []
    return {"exposed": exposed, "canLeave": leaving, "text": "; ".join(parts)}
