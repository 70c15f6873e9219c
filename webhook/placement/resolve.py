"""Follow the claims of a pod to the nodes of their share-managers, and rank the claims."""

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from webhook.placement.catalog import Catalog
from webhook.placement.objects.facts import Claim, Key, ShareManager, Volume
from webhook.placement.objects.pod import MAX_CLAIMS, Manifest
from webhook.placement.reasons import BEING_REPLACED, ClaimFinding, OptedInBy, Reason, Source
from webhook.placement.settings import Settings
from webhook.placement.voting_consumers import claims_of, consumers_of, kind_of, ranked_nodes

# Pods of all claims together that are asked whether they are another VM's.
MAX_USERS = 1_000
MAX_STARTING = 2  # claims whose consumers are looked for, each in up to 2 ms; 128 claims took 1 s


# The ranks of a VM's claims: the claim that its annotation names; a disk whose volume no other VM mounts; an ISO of
# drivers or another shared claim, and the persistent vTPM or EFI state. Only the claims of the first rank decide.
_NAMED, _OWN, _SHARED = 1, 2, 3
_INHERITED = (OptedInBy.NAMESPACE, OptedInBy.STORAGE_CLASS)


def resolve_all(
    manifest: Manifest, catalog: Catalog, settings: Settings, by: OptedInBy = OptedInBy.ANNOTATION
) -> tuple[ClaimFinding, ...]:
    """Follow each claim of the pod, in volume order. `by` is what opts the VM in."""
    names = manifest.claims[:MAX_CLAIMS]
    named = manifest.deciding_claim
    return resolve_claims(names, manifest.namespace, manifest.vmi_uid, named, catalog, settings, by)


def resolve_claims(  # noqa: PLR0913, PLR0917 (a VM, and what the decision on it reads)
    names: Iterable[str], namespace: str, vmi: str, named: str, catalog: Catalog, settings: Settings, by: OptedInBy
) -> tuple[ClaimFinding, ...]:
    """Follow each claim of a VMI, in the given order. `vmi` is its UID, `named` the claim that its annotation names.

    A disk that no share-manager serves yet will follow the VM, so a claim of a lower rank must not decide in its place.
    Claims of the last rank decide only for a VM that its own annotation opts in (docs/decisions/0032).
    """
    found = (resolve(name, namespace, catalog, settings) for name in names)
    findings = tuple(_with_interim_nodes(found, catalog, settings))
    inherits = by in _INHERITED
    if len(findings) < 2 and not (findings and inherits):
        return findings
    budget = iter(range(MAX_USERS))

    def rank(finding: ClaimFinding) -> int:
        if finding.claim == named:
            return _NAMED
        shared = finding.persistent_state or _is_mounted_by_others((namespace, finding.claim), vmi, catalog, budget)
        return _SHARED if shared else _OWN

    ranks = [rank(finding) for finding in findings]
    highest = min(ranks)
    deciding = 0 if highest == _SHARED and inherits else highest
    return tuple(
        finding if rank == deciding else replace(finding, decides=False)
        for finding, rank in zip(findings, ranks, strict=True)
    )


def resolve(name: str, namespace: str, catalog: Catalog, settings: Settings) -> ClaimFinding:
    """Follow one claim to its PV, Longhorn volume and share-manager."""
    claim = catalog.claim(namespace, name)
    if claim is None:
        return ClaimFinding(name, reason=Reason.CLAIM_NOT_FOUND, unseen=True)
    volume = catalog.volume(claim.volume_name)
    finding = _follow(claim, volume, catalog, settings)
    return replace(finding, unseen=True) if claim.volume_name and volume is None else finding


def _follow(claim: Claim, volume: Volume | None, catalog: Catalog, settings: Settings) -> ClaimFinding:
    name = claim.name
    bound = claim.is_bound(volume)
    if not bound:  # the PV that such a claim names may be another tenant's
        volume = None
    unusable = _unusable_reason(claim, volume, bound=bound)
    state = bool(claim.state_of)
    storage_class = catalog.storage_class(claim.storage_class)
    limits = storage_class.limits if storage_class else ()  # a PV has the StorageClass of its claim
    unprovisioned = unusable is Reason.CLAIM_NOT_BOUND and not claim.volume_name
    if unprovisioned and claim.shared and storage_class and storage_class.served:
        detail = "starts with the claim's first consumer"
        return ClaimFinding(name, None, None, None, Reason.NO_SHARE_MANAGER, state, detail=detail, limits=limits)
    if unusable:
        reason = unusable if claim.shared else Reason.CLAIM_NOT_RWX
        return ClaimFinding(name, reason=reason, persistent_state=state)
    # A dynamically provisioned Longhorn volume has the name of its PV, so the PV itself may still be unknown.
    handle = volume.handle if volume else claim.volume_name
    found = _find_server(name, handle, catalog, settings.longhorn_namespace)
    # The modes of the PV and of the Longhorn volume decide, and may be more than the claim's: `requiresSharedAccess` in
    # https://github.com/longhorn/longhorn-manager/blob/5ddaa369/csi/util.go
    if found.reason is Reason.NO_SHARE_MANAGER and not claim.shared:
        return ClaimFinding(name, reason=Reason.CLAIM_NOT_RWX, persistent_state=state)
    return replace(found, persistent_state=state, limits=limits if found.follows else ())


def _unusable_reason(claim: Claim, volume: Volume | None, *, bound: bool) -> Reason | None:
    if volume and not volume.handle:
        return Reason.NOT_LONGHORN
    if claim.block or (volume and volume.migratable):
        return Reason.NO_SHARE_MANAGER_EVER
    return None if bound else Reason.CLAIM_NOT_BOUND


def _find_server(claim: str, volume: str, catalog: Catalog, longhorn_namespace: str) -> ClaimFinding:
    pod = catalog.share_manager_pod(longhorn_namespace, volume)
    alive = pod is not None and pod.alive
    if pod and alive and pod.node:
        return ClaimFinding(claim, volume, pod.node, Source.SHARE_MANAGER_POD)
    manager = catalog.share_manager(longhorn_namespace, volume)
    if (not alive or (manager and manager.deleting)) and (detail := _why_cold(manager)):
        return ClaimFinding(claim, volume, reason=Reason.NO_SHARE_MANAGER, detail=detail)
    # Until the pod is bound, the owner is only the node where Longhorn reconciles the volume. Longhorn also moves the
    # owner away from a cordoned node, where the pod still runs: `isResponsibleFor` in
    # https://github.com/longhorn/longhorn-manager/blob/5ddaa369/controller/share_manager_controller.go
    is_running = manager is not None and manager.state == "running"
    if manager and is_running and not pod and not any(catalog.placed_pods(longhorn_namespace, ())):
        return ClaimFinding(claim, volume, manager.owner, Source.SHARE_MANAGER)  # of a file without Longhorn's pods
    detail = BEING_REPLACED if not alive and (pod or is_running) else ""
    return ClaimFinding(claim, volume, reason=Reason.SHARE_MANAGER_STARTING, detail=detail)


def _why_cold(manager: ShareManager | None) -> str:
    """Return a predicate of a share-manager without a pod, empty if the ShareManager is running or starting."""
    if manager is None:
        return "was never created"
    if manager.deleting:
        return "is being deleted"
    if manager.state in ("error", "unknown"):
        return BEING_REPLACED
    if manager.state not in ("running", "starting", ""):  # a new ShareManager has no state yet
        return "is stopped"
    return "" if manager.owner else "has no owner yet"


def _with_interim_nodes(
    findings: Iterable[ClaimFinding], catalog: Catalog, settings: Settings
) -> Iterator[ClaimFinding]:
    """Add, to the first claims whose share-manager is starting, the node of its consumers, which it will follow."""
    budget = iter(range(MAX_STARTING if settings.steering else 0))
    for finding in findings:
        is_sought = finding.reason is Reason.SHARE_MANAGER_STARTING and next(budget, None) is not None
        consumers = consumers_of(finding.volume or "", catalog, settings) if is_sought else ()
        nodes = ranked_nodes(consumers) if consumers else ()
        yield replace(finding, node=nodes[0], source=kind_of(consumers)[1]) if nodes else finding


def _is_mounted_by_others(key: Key, vmi: str, catalog: Catalog, budget: Iterator[int]) -> bool:
    """Return whether the pod of another VMI mounts a claim's volume, by this claim or by another claim of the volume.

    `vmi` is the UID of this VMI. Beyond the limit, no other VMI counts: the namespace then has hundreds of pods of this
    VMI, or of terminating ones.
    """
    volume = bound_volume(key, catalog)
    claims = dict.fromkeys((key, *(claims_of(volume.handle, catalog) if volume else ())))
    users = (pod for claim in claims for pod in catalog.mounting_pods(*claim))
    return any(pod.alive and pod.vmi_uid != vmi for pod, _ in zip(users, budget, strict=False))


def bound_volume(key: Key, catalog: Catalog) -> Volume | None:
    """Return the PV that a claim is bound to, None if that is unknown."""
    claim = catalog.claim(*key)
    volume = catalog.volume(claim.volume_name) if claim else None
    return volume if claim and volume and volume.names(claim) else None
