"""The check for VMs that loopback NFS can block: docs/explanation/loopback-nfs.md."""

from collections.abc import Iterator

from webhook.cluster.caches.kinds import VMIS
from webhook.commands.doctor.admission import opted_in_vms
from webhook.commands.doctor.before_installation import longhorn_claims, longhorn_version
from webhook.commands.doctor.inspection import Inspection
from webhook.commands.doctor.known_bugs import kernels
from webhook.commands.doctor.result import Result, failure, listed, ok, warning
from webhook.fleet.nfs import Servers, cached_claims
from webhook.placement.objects.fields import mapping, text
from webhook.reading.installation import Installation


def loopback_nfs_before(inspection: Inspection) -> Iterator[Result]:
    """Check all VMs, before any is opted in."""
    yield _risk(inspection, _cached_vms(inspection))


def loopback_nfs(inspection: Inspection, found: Installation) -> Iterator[Result]:
    """Check the opted-in VMs."""
    opted_in = {f"{vm.namespace}/{vm.name}" for vm in opted_in_vms(inspection, found)}
    yield _risk(inspection, [name for name in _cached_vms(inspection) if name in opted_in])


def _risk(inspection: Inspection, cached: list[str]) -> Result:
    unprotected = _unprotected(inspection)
    disks = f"VMs with a cached or virtiofs volume over NFS: {len(cached)} ({listed(cached)})"
    if cached and unprotected:
        advice = (
            "Upgrade it, or set cache: none: under memory pressure, the NFS client and server can block each other."
        )
        return failure(f"{disks}; {unprotected}", advice)
    if cached:
        return warning(disks, "Set cache: none, or move the disk to a Block volume.")
    if unprotected:
        return warning(unprotected, "Upgrade it before VMs or containers write to NFS volumes through the page cache.")
    return ok("no VM writes to an NFS volume through the page cache, and Longhorn's NFS server protects itself")


def _unprotected(inspection: Inspection) -> str:
    """Say which part lacks the protection of the server; empty if none does, or the versions are unknown."""
    servers = Servers(longhorn_version(inspection), kernels(inspection))
    if servers.old_longhorn:
        return f"the NFS server of Longhorn {servers.longhorn} does not set PR_SET_IO_FLUSHER"
    if old := servers.old_kernels():
        return f"the kernel of nodes lacks PR_SET_IO_FLUSHER: {len(old)} ({listed(old)})"
    return ""


def _cached_vms(inspection: Inspection) -> list[str]:
    """List the VMIs that write to a claim over NFS through the page cache."""
    claims = {(claim.namespace, claim.name) for claim in longhorn_claims(inspection) if not claim.block}
    return sorted(
        f"{namespace}/{text(vmi, 'metadata', 'name')}"
        for vmi in inspection.items(VMIS.path)
        if (namespace := text(vmi, "metadata", "namespace"))
        and any((namespace, claim) in claims for claim in cached_claims(mapping(vmi, "spec")))
    )
