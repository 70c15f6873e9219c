"""The Longhorn volumes for which a drain waits, besides pods."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from webhook.fleet.simulation.state import Site
from webhook.fleet.volumes import users_of
from webhook.placement.objects.longhorn import DRAIN_POLICY
from webhook.placement.voting_consumers import claims_of


class Obstacle(Struct, frozen=True):
    """A pod or a Longhorn volume for which the drain waits."""

    kind: str
    name: str
    detail: str
    ends: bool = False  # the wait ends by itself


def waiting_volumes(site: Site, drained: Sequence[str]) -> Iterator[Obstacle]:
    """Yield the volumes for which Longhorn keeps the budget of an instance manager, or that stay attached."""
    # `canDeleteInstanceManagerPDB` in
    # https://github.com/longhorn/longhorn-manager/blob/5ddaa369/controller/instance_manager_controller.go
    policy = site.longhorn(DRAIN_POLICY) or "block-if-contains-last-replica"
    for name, volume in site.data.items():
        replicas = volume.healthy or frozenset()
        others = map(site.catalog.node, replicas.difference(drained))
        kept = [node for node in others if node and not node.unschedulable]
        allowed = policy == "always-allow" or (policy == "allow-if-replica-is-stopped" and not volume.attached_to)
        held = not kept or policy == "block-for-eviction"  # which copies each replica
        here = not replicas.isdisjoint(drained)
        failed = not (here or kept or volume.used.isdisjoint(drained))
        if (failed or (here and held)) and not allowed:
            copied = here and policy.startswith("block-for-eviction")
            detail = "Longhorn copies it first" if copied else f"Longhorn blocks the drain ({policy})"
            healthy = "a healthy" if kept else "its last healthy"
            replica = "only a failed" if failed else healthy
            yield Obstacle("Volume", _label(name, site), f"{replica} replica is here: {detail}", ends=copied)
        server = site.catalog.share_manager_pod(site.around.settings.longhorn_namespace, name)
        if volume.attached_to in drained and not server:  # otherwise, it moves with its share-manager
            users = ", ".join(map(str, dict.fromkeys(users_of(name, site.catalog))))
            detail = f"attached only here, by {users or 'no pod: detach it'}"
            yield Obstacle("Volume", _label(name, site), detail, ends=bool(users))


def _label(volume: str, site: Site) -> str:
    return ", ".join([volume, *(f"claim {'/'.join(key)}" for key in claims_of(volume, site.catalog))])
