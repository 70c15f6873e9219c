"""The whole decision, from top to bottom: a pure function of (request, catalog, settings)."""

from dataclasses import dataclass, replace

from webhook.placement import consumers, resolve, wording
from webhook.placement.affinity import matches_nothing
from webhook.placement.catalog import Catalog
from webhook.placement.decision import ClaimFinding, Decision, Mode, Outcome, Reason, Source
from webhook.placement.eligibility import (
    RULES,
    STEERING_RULES,
    ineligible_reason,
    is_pod_creation,
    is_share_manager_pod,
    mode_of,
)
from webhook.placement.feasibility import Candidate, FailedCheck, first_failed_check
from webhook.placement.mutation import patch_for
from webhook.placement.patch import Operation
from webhook.placement.settings import Action, Settings, is_subdomain
from webhook.placement.shape import JsonObject, mapping, text


@dataclass(frozen=True, slots=True)
class Injection:
    """A decision, the patch that carries it out (None: nothing to do), and what its maker is warned of.

    `error` is the surprise behind an InternalError, for the log of whoever called.
    """

    decision: Decision
    patch: list[Operation] | None = None
    warnings: tuple[str, ...] = ()
    error: Exception | None = None


def inject(request: JsonObject, catalog: Catalog | None, settings: Settings) -> Injection:
    """Decide on an admission request; None is a catalog that was not read yet.

    Never raises: a VM starts without our help rather than not at all.
    """
    try:
        decision = decide(request, catalog, settings)
        operations = _operations(decision, request, settings)
        return Injection(decision, operations or None, _warnings(decision, request, settings))
    except Exception as error:  # noqa: BLE001 (fail open; the caller logs it)
        # Only the type: a message may hold a part of the pod, and a pod may hold a passphrase.
        sentence = f"the webhook failed ({type(error).__name__}) and left the pod as it was"
        return Injection(unchanged(Reason.INTERNAL_ERROR, settings.affinity_mode, sentence), error=error)


def decide(request: JsonObject, catalog: Catalog | None, settings: Settings) -> Decision:
    """Decide where the pod should go, and say why."""
    if not is_pod_creation(request):
        return unchanged(Reason.NOT_A_POD_CREATION, settings.affinity_mode)
    pod, namespace = mapping(request, "object"), namespace_of(request)
    steered = is_share_manager_pod(pod, namespace, settings)
    mode = Mode.PREFERRED if steered else mode_of(pod, settings)[0]
    if reason := ineligible_reason(pod, settings, STEERING_RULES if steered else RULES):
        return unchanged(reason, mode)
    if catalog is None:
        return unchanged(Reason.CACHE_NOT_SYNCED, mode)
    follow = share_manager_follows_vm if steered else vm_follows_share_manager
    return follow(pod, namespace, catalog, settings)


def vm_follows_share_manager(pod: JsonObject, namespace: str, catalog: Catalog, settings: Settings) -> Decision:
    """Go from the VM's claims to the node that serves most of them, and past the guard."""
    mode, _ = mode_of(pod, settings)
    claims = resolve.resolve_all(pod, namespace, catalog, settings.longhorn_namespace)
    choice = resolve.choose(claims)
    if choice is None:
        decision = unchanged(Reason.NO_SHARE_MANAGER, mode, wording.unserved(claims))
        return replace(decision, claims=claims, recorded=True)

    volumes = tuple(resolve.known_volumes(claims, namespace, catalog))
    candidate = Candidate(pod, namespace, choice.node, volumes, catalog)
    hurdle, reservation = _in_the_way(candidate, mode, settings), None
    if hurdle is None:
        reservation = candidate.pod_facts if mode is Mode.REQUIRED and settings.node_guard else None
        outcome = Outcome.PINNED if mode is Mode.REQUIRED else Outcome.PREFERRED
        reason, message = Reason.CO_SCHEDULED, wording.placed(claims, choice, mode)
    else:
        outcome = Outcome.UNCHANGED if hurdle.reason is Reason.NODE_NOT_FOUND else Outcome.PREFERRED
        reason, message = hurdle.reason, wording.softened(claims, choice, hurdle.detail, outcome)
    conflict = bool(choice.others)
    return Decision(
        outcome, reason, message, mode, choice.node, conflict, claims, recorded=True, reservation=reservation
    )


def _in_the_way(candidate: Candidate, mode: Mode, settings: Settings) -> FailedCheck | None:
    if not is_subdomain(candidate.node_name):  # the API server would refuse the pod for it
        return FailedCheck(Reason.NODE_NOT_FOUND, "that is no name of a node")
    if mode is Mode.PREFERRED:  # a wish strands nobody
        return None
    found = first_failed_check(candidate) if settings.node_guard else None
    if found is None and matches_nothing(candidate.pod):  # no term is there that could carry a pin
        return FailedCheck(Reason.NODE_MISMATCH, "the pod's required node affinity matches no node at all")
    return found


def share_manager_follows_vm(pod: JsonObject, namespace: str, catalog: Catalog, settings: Settings) -> Decision:
    """Go from the share-manager's volume to the node where most of its VMs are, and past the guard.

    The node is preferred and never required: Longhorn's failover always wins.
    """
    served = consumers.find_consumers(pod, catalog, settings)
    if not served.pods:
        return unchanged(Reason.NO_CONSUMER, Mode.PREFERRED, f"no opted-in VM runs on volume {served.volume}")
    choice = consumers.choose(served, consumers.avoided_nodes(pod))
    if choice is None:
        sentence = f"the pod prefers not to be on the node where volume {served.volume} is used"
        return unchanged(Reason.NODE_AVOIDED, Mode.PREFERRED, sentence)

    # It mounts no claim itself: Longhorn attaches the volume to wherever it is.
    hurdle = first_failed_check(Candidate(pod, namespace, choice.node, (), catalog)) if settings.node_guard else None
    claims = (ClaimFinding(served.claim, served.volume, choice.node, Source.VIRT_LAUNCHER_POD),)
    if hurdle:
        decision = unchanged(hurdle.reason, Mode.PREFERRED, wording.not_steered(choice.node, hurdle.detail))
        return replace(decision, node=choice.node, claims=claims)
    message = wording.steered(choice.node, sum(vm.node == choice.node for vm in served.pods))
    reason = Reason.CO_SCHEDULED
    return Decision(Outcome.PREFERRED, reason, message, Mode.PREFERRED, choice.node, claims=claims, recorded=True)


def unchanged(reason: Reason, mode: Mode, message: str = "") -> Decision:
    """Decide to leave the pod's affinity as it is; the reason's own sentence is the default."""
    return Decision(Outcome.UNCHANGED, reason, message or wording.SENTENCES[reason], mode)


def namespace_of(request: JsonObject) -> str:
    """Return the request's namespace: the object's own may be missing until it is stored."""
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
