"""Decide on an admission request, from eligibility to patch: a pure function of (request, catalog, settings)."""

from dataclasses import dataclass, replace

from webhook.placement import consumers, resolve, wording
from webhook.placement.affinity import matches_no_node
from webhook.placement.catalog import Catalog
from webhook.placement.decision import ClaimFinding, Decision, Mode, Outcome, Reason, Source
from webhook.placement.eligibility import (
    RULES,
    STEERING_RULES,
    ineligible_reason,
    is_pod_creation,
    is_share_manager_pod,
    mode_of,
    pinned_by_webhook,
)
from webhook.placement.feasibility import Candidate, FailedCheck, first_failed_check
from webhook.placement.mutation import patch_for
from webhook.placement.patch import Operation
from webhook.placement.settings import Action, Settings, is_dns_subdomain
from webhook.placement.shape import JsonObject, mapping, text


@dataclass(frozen=True, slots=True)
class Injection:
    """A decision, its JSON patch (None if nothing changes), and the admission warnings for the pod's creator.

    `error` is the exception behind an `InternalError`; the caller logs it.
    """

    decision: Decision
    patch: list[Operation] | None = None
    warnings: tuple[str, ...] = ()
    error: Exception | None = None


def inject(request: JsonObject, catalog: Catalog | None, settings: Settings) -> Injection:
    """Decide on an admission request and build the patch. A catalog of None means that the cache is not synced yet.

    Never raises: a VM that starts unmodified is better than a VM that does not start.
    """
    try:
        decision = decide(request, catalog, settings)
        operations = _operations(decision, request, settings)
        return Injection(decision, operations or None, _warnings(decision, request, settings))
    except Exception as error:  # noqa: BLE001 (fail open; the caller logs it)
        # Report only the exception's type: its message may quote the pod, and a pod may contain a passphrase.
        sentence = f"the webhook failed ({type(error).__name__}) and left the pod as it was"
        return Injection(unchanged(Reason.INTERNAL_ERROR, settings.affinity_mode, sentence), error=error)


def decide(request: JsonObject, catalog: Catalog | None, settings: Settings) -> Decision:
    """Decide which node the pod should run on, and why."""
    if not is_pod_creation(request):
        return unchanged(Reason.NOT_A_POD_CREATION, settings.affinity_mode)
    pod, namespace = mapping(request, "object"), namespace_of(request)
    is_share_manager = is_share_manager_pod(pod, namespace, settings)
    mode = Mode.PREFERRED if is_share_manager else mode_of(pod, settings)[0]
    reason = ineligible_reason(pod, settings, STEERING_RULES if is_share_manager else RULES)
    if reason is Reason.ALREADY_INJECTED and not is_share_manager and catalog is not None:
        return check_pin_again(pod, namespace, catalog, settings)
    if reason:
        return unchanged(reason, mode)
    if catalog is None:
        return unchanged(Reason.CACHE_NOT_SYNCED, mode)
    place = place_share_manager if is_share_manager else place_virt_launcher
    return place(pod, namespace, catalog, settings)


def check_pin_again(pod: JsonObject, namespace: str, catalog: Catalog, settings: Settings) -> Decision:
    """Evaluate the guard again for a pod that the webhook has pinned, and remove the pin if the guard refuses.

    Another webhook may have changed the pod since, for example added a sidecar (`reinvocationPolicy: IfNeeded`).
    """
    mode, node = mode_of(pod, settings)[0], pinned_by_webhook(pod)
    if not node or mode is Mode.PREFERRED:
        return unchanged(Reason.ALREADY_INJECTED, mode)
    claims = resolve.resolve_all(pod, namespace, catalog, settings.longhorn_namespace)
    candidate = candidate_for(pod, namespace, node, claims, catalog)
    obstacle = _first_obstacle(candidate, mode, settings)
    if obstacle is None:
        reservation = candidate.pod_facts if settings.node_guard else None
        return replace(unchanged(Reason.ALREADY_INJECTED, mode), reservation=reservation)
    message = wording.unpinned(node, obstacle.detail)
    return Decision(Outcome.PREFERRED, obstacle.reason, message, mode, node, claims=claims, recorded=True, unpins=True)


def place_virt_launcher(pod: JsonObject, namespace: str, catalog: Catalog, settings: Settings) -> Decision:
    """Pin a VM's pod to the node that serves most of its claims, or only prefer that node if there is an obstacle."""
    mode, _ = mode_of(pod, settings)
    claims = resolve.resolve_all(pod, namespace, catalog, settings.longhorn_namespace)
    choice = resolve.choose(claims)
    if choice is None:
        decision = unchanged(Reason.NO_SHARE_MANAGER, mode, wording.unserved(claims))
        return replace(decision, claims=claims, recorded=True)

    candidate = candidate_for(pod, namespace, choice.node, claims, catalog)
    obstacle, reservation = _first_obstacle(candidate, mode, settings), None
    if obstacle is None:
        reservation = candidate.pod_facts if mode is Mode.REQUIRED and settings.node_guard else None
        outcome = Outcome.PINNED if mode is Mode.REQUIRED else Outcome.PREFERRED
        reason, message = Reason.CO_SCHEDULED, wording.placed(claims, choice, mode)
    else:
        outcome = Outcome.UNCHANGED if obstacle.reason is Reason.NODE_NOT_FOUND else Outcome.PREFERRED
        reason, message = obstacle.reason, wording.softened(claims, choice, obstacle.detail, outcome)
    conflict = bool(choice.others)
    return Decision(
        outcome, reason, message, mode, choice.node, conflict, claims, recorded=True, reservation=reservation
    )


def candidate_for(
    pod: JsonObject, namespace: str, node: str, claims: tuple[ClaimFinding, ...], catalog: Catalog
) -> Candidate:
    """Return what the guard evaluates: the pod on a node, with the known PVs of its claims."""
    return Candidate(pod, namespace, node, tuple(resolve.known_volumes(claims, namespace, catalog)), catalog)


def _first_obstacle(candidate: Candidate, mode: Mode, settings: Settings) -> FailedCheck | None:
    if not is_dns_subdomain(candidate.node_name):  # the API server would reject the pod with such a term
        return FailedCheck(Reason.NODE_NOT_FOUND, "that is no name of a node")
    if mode is Mode.PREFERRED:  # a preference can't leave the pod Pending
        return None
    found = first_failed_check(candidate) if settings.node_guard else None
    if found is None and matches_no_node(candidate.pod):  # no term can carry the pin
        return FailedCheck(Reason.NODE_MISMATCH, "the pod's required node affinity matches no node at all")
    return found


def place_share_manager(pod: JsonObject, namespace: str, catalog: Catalog, settings: Settings) -> Decision:
    """Place a share-manager pod on the node where most VMs use its volume, if the node guard allows it.

    The node is preferred, never required, so that Longhorn's failover always wins.
    """
    users = consumers.find_consumers(pod, catalog, settings)
    if not users.pods:
        return unchanged(Reason.NO_CONSUMER, Mode.PREFERRED, f"no opted-in VM runs on volume {users.volume}")
    candidates = consumers.ranked_nodes(users, consumers.avoided_nodes(pod))
    if not candidates:
        sentence = f"the pod prefers not to be on the node where volume {users.volume} is used"
        return unchanged(Reason.NODE_AVOIDED, Mode.PREFERRED, sentence)

    # In a drain, the node of the migration's source is cordoned, and the new server belongs beside the target.
    obstacles: dict[str, FailedCheck | None] = {}
    for node in candidates:
        obstacles[node] = _steering_obstacle(pod, namespace, node, catalog, settings)
        if obstacles[node] is None:
            break
    else:
        node = candidates[0]
    claims = (ClaimFinding(users.claim, users.volume, node, Source.VIRT_LAUNCHER_POD),)
    if obstacle := obstacles[node]:
        decision = unchanged(obstacle.reason, Mode.PREFERRED, wording.not_steered(node, obstacle.detail))
        return replace(decision, node=node, claims=claims)
    message = wording.steered(node, sum(vm.node == node for vm in users.pods))
    reason = Reason.CO_SCHEDULED
    return Decision(Outcome.PREFERRED, reason, message, Mode.PREFERRED, node, claims=claims, recorded=True)


def _steering_obstacle(
    pod: JsonObject, namespace: str, node: str, catalog: Catalog, settings: Settings
) -> FailedCheck | None:
    # A share-manager pod mounts no claim, so no PV restricts it: Longhorn attaches the volume to the pod's node.
    return first_failed_check(Candidate(pod, namespace, node, (), catalog)) if settings.node_guard else None


def unchanged(reason: Reason, mode: Mode, message: str = "") -> Decision:
    """Return a decision that leaves the pod's affinity unchanged. The default message is the reason's sentence."""
    return Decision(Outcome.UNCHANGED, reason, message or wording.SENTENCES[reason], mode)


def namespace_of(request: JsonObject) -> str:
    """Return the request's namespace. The pod itself may have none until the API server stores it."""
    return text(request, "namespace") or text(request, "object", "metadata", "namespace") or "default"


def _operations(decision: Decision, request: JsonObject, settings: Settings) -> list[Operation]:
    if settings.action is Action.OBSERVE:
        return []
    return patch_for(decision, mapping(request, "object"), settings)


def _warnings(decision: Decision, request: JsonObject, settings: Settings) -> tuple[str, ...]:
    if not decision.recorded:
        return ()
    _, unknown_mode = mode_of(mapping(request, "object"), settings)
    return wording.warnings(decision, unknown_mode)
