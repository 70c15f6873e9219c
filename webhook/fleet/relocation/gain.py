"""What a move or a restart gains: the bytes of a VM's claims that become local."""

from webhook.fleet.states import Status
from webhook.placement.catalog import Catalog

GIBIBYTE = 1024**3


def gain(status: Status, catalog: Catalog, *, restarted: bool) -> int:
    """Return how many bytes of the VM's claims become local by the move or the restart, less those that are local now.

    Only claims that a share-manager serves now count, each with its requested capacity.
    """
    start, target, follow = status.start, status.storage_node, frozenset[str]()
    if restarted:
        target, follow = (start.decision.node, start.stopped) if start else (None, follow)
    claims = {each.claim: catalog.claim(status.machine.namespace, each.claim) for each in status.claims}
    sizes = {name: claim.size if claim else 0 for name, claim in claims.items()}
    return sum(
        sizes[each.claim] * ((each.volume in follow or each.node == target) - (each.node == status.node))
        for each in status.claims
        if each.node
    )


def describe_gain(gained: int) -> str:
    """Return a gain in GiB. It is negative if claims without a vote are larger, such as an image that VMs share."""
    return f"{abs(gained) / GIBIBYTE:.4g}Gi becomes {'remote' if gained < 0 else 'local'}"
