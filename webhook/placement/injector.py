"""Decide on an admission request, from eligibility to patch: a pure function of (request, catalog, settings)."""

from msgspec import Struct
from msgspec.structs import replace

from webhook.placement import resolve, votes, wording
from webhook.placement.catalog import Catalog
from webhook.placement.eligibility import (
    RULES,
    STEERING_RULES,
    Creation,
    Rule,
    ineligible_reason,
    is_gated,
    is_pod_creation,
    is_share_manager_pod,
    mode_of,
    new_creation,
    pinned_by_webhook,
    username,
)
from webhook.placement.guard.candidate import Candidate, pinning_replicas, releases_pins
from webhook.placement.guard.feasibility import (
    CHECKS,
    Check,
    FailedCheck,
    checks_in_force,
    contest,
    first_failed_check,
)
from webhook.placement.migration_nodes import leads_elsewhere
from webhook.placement.objects.claims import DECIDING_CLAIM_ANNOTATION, deciding_claim, unknown_deciding_claim
from webhook.placement.objects.fields import JsonObject, mapping, text
from webhook.placement.opt_in import new_applicant, opted_in_by
from webhook.placement.patch import Operation, patch_for
from webhook.placement.reasons import (
    COLD_REASONS,
    MAY_FIT_REASONS,
    NEVER_SERVED_REASONS,
    ClaimFinding,
    Decision,
    Mode,
    OptedInBy,
    Outcome,
    Reason,
)
from webhook.placement.settings import Action, Settings
from webhook.placement.steering import place_share_manager
from webhook.placement.steps import ClaimsFollowed, NodeChecked, NodeChosen, Record, RulesChecked, ignore
from webhook.placement.votes import Choice
from webhook.placement.wording import unchanged


class Injection(Struct, frozen=True):
    """A decision, its JSON patch (None if nothing changes), and the admission warnings for the pod's creator.

    `error` is the exception behind an `InternalError`; the caller logs it.
    """

    decision: Decision
    patch: list[Operation] | None = None
    warnings: tuple[str, ...] = ()
    error: Exception | None = None


def inject(request: JsonObject, catalog: Catalog | None, settings: Settings, record: Record = ignore) -> Injection:
    """Decide on an admission request and build the patch. A catalog of None means that the cache is not synced yet.

    `record` gets each step of the decision. Never raises: a VM that starts unmodified is better than a VM that does not
    start.
    """
    return with_patch(without_patch(request, catalog, settings, record), request, settings)


def without_patch(
    request: JsonObject, catalog: Catalog | None, settings: Settings, record: Record = ignore
) -> Injection:
    """Decide like `inject`, but leave the patch to `with_patch`, which does not read the catalog. Never raises."""
    try:
        return Injection(decide(request, catalog, settings, record))
    except Exception as error:  # noqa: BLE001 (fail open; the caller logs it)
        return _failed(error, settings)


def with_patch(injection: Injection, request: JsonObject, settings: Settings) -> Injection:
    """Add the patch and the warnings to a decision. Never raises: a failure leads to an `InternalError`."""
    decision, pod = injection.decision, mapping(request, "object")
    try:
        operations = [] if injection.error or settings.action is Action.OBSERVE else patch_for(decision, pod, settings)
        return Injection(decision, operations or None, _warnings(decision, pod, settings), injection.error)
    except Exception as error:  # noqa: BLE001 (fail open; the caller logs it)
        return _failed(error, settings)


def _failed(error: Exception, settings: Settings) -> Injection:
    # Report only the exception's type: its message may quote the pod, and a pod may contain a passphrase.
    sentence = f"the webhook failed ({type(error).__name__}) and left the pod unchanged"
    return Injection(unchanged(Reason.INTERNAL_ERROR, settings.affinity_mode, sentence), error=error)


def decide(request: JsonObject, catalog: Catalog | None, settings: Settings, record: Record = ignore) -> Decision:
    """Decide which node the pod should run on, and why. `record` gets each step."""
    if not is_pod_creation(request):
        return unchanged(Reason.NOT_A_POD_CREATION, settings.affinity_mode)
    pod, namespace = request["object"], namespace_of(request)
    made = new_creation(pod, namespace, username(request))
    if is_share_manager_pod(pod, namespace, settings):
        reason = _broken_rule(STEERING_RULES, made, OptedInBy.NOTHING, settings, record)
        if reason or catalog is None:
            return unchanged(reason or Reason.CACHE_NOT_SYNCED, Mode.PREFERRED)
        return place_share_manager(pod, namespace, catalog, settings, record)
    by = OptedInBy.NOTHING
    if made.is_virt_launcher:
        by = opted_in_by(new_applicant(pod, namespace, settings), catalog, settings)
    decision = replace(_decide_on_vm(made, by, catalog, settings, record), opted_in_by=by)
    return wording.with_opt_in(decision) if decision.recorded else decision


def _broken_rule(
    rules: tuple[Rule, ...], made: Creation, by: OptedInBy, settings: Settings, record: Record
) -> Reason | None:
    reason = ineligible_reason(made, by, settings, rules)
    record(RulesChecked(rules, reason, by))
    return reason


def _decide_on_vm(
    made: Creation, by: OptedInBy, catalog: Catalog | None, settings: Settings, record: Record
) -> Decision:
    mode = mode_of(made.annotations, settings)[0]
    reason = _broken_rule(RULES, made, by, settings, record)
    if reason is Reason.ALREADY_INJECTED and catalog is not None:
        return _check_pin_again(made, mode, catalog, settings, record)
    if reason or catalog is None:
        return unchanged(reason or Reason.CACHE_NOT_SYNCED, mode)
    if made.is_migration_target:
        return _place_migration_target(made, catalog, settings, record)
    return _place_virt_launcher(made, mode, catalog, settings, record)


def _check_pin_again(made: Creation, mode: Mode, catalog: Catalog, settings: Settings, record: Record) -> Decision:
    """Evaluate the guard again for a pod that the webhook has pinned, and remove the pin if the guard refuses.

    Another webhook may have changed the pod since, for example added a sidecar (`reinvocationPolicy: IfNeeded`).
    """
    node = pinned_by_webhook(made.pod)
    if not node or mode is Mode.PREFERRED:
        return unchanged(Reason.ALREADY_INJECTED, mode)
    claims = resolve.resolve_all(made.pod, made.namespace, catalog, settings)
    candidate = candidate_for(made.pod, made.namespace, node, claims, catalog, releases=releases_pins(settings))
    checks = CHECKS if settings.node_guard else ()
    record(NodeChecked(candidate, checks))
    obstacle = first_failed_check(candidate, checks)
    if obstacle is None:
        reservation = candidate.pod_facts if settings.node_guard else None
        return replace(unchanged(Reason.ALREADY_INJECTED, mode), reservation=reservation)
    message = wording.unpinned(node, obstacle.detail)
    return Decision(Outcome.PREFERRED, obstacle.reason, message, mode, node, claims=claims, recorded=True, unpins=True)


def _place_virt_launcher(made: Creation, mode: Mode, catalog: Catalog, settings: Settings, record: Record) -> Decision:
    """Pin a VM's pod to the node that serves most of its claims, or only prefer that node if there is an obstacle."""
    pod, namespace = made.pod, made.namespace
    claims = resolve.resolve_all(pod, namespace, catalog, settings, made.claims)
    record(ClaimsFollowed(claims))
    choice = votes.choose(claims)
    if choice is None:
        return replace(_unserved(claims, deciding_claim(pod), mode, settings), claims=claims, recorded=True)

    record(NodeChosen(choice))
    # The other replicas may be pinning VMs to the node, too.
    replicas, releases = pinning_replicas(catalog, settings), releases_pins(settings)
    candidate = candidate_for(pod, namespace, choice.node, claims, catalog, replicas, releases=releases)
    checks = checks_in_force(required=mode is Mode.REQUIRED, certain=choice.certain, node_guard=settings.node_guard)
    obstacle, contested = _checked(candidate, checks, settings, record, prefers=mode is Mode.PREFERRED)
    if obstacle or mode is Mode.PREFERRED:
        return _reserving(_prefer(claims, choice, obstacle, contested, mode), candidate, settings)
    return Decision(
        Outcome.PINNED,
        Reason.CO_SCHEDULED,
        wording.placed(claims, choice, mode),
        mode,
        choice.node,
        conflict=bool(choice.others),
        claims=claims,
        recorded=True,
        reservation=candidate.pod_facts if settings.node_guard else None,
        passed_over=candidate.comparisons.passed_over,
    )


def _unserved(claims: tuple[ClaimFinding, ...], named: str, mode: Mode, settings: Settings) -> Decision:
    """Decide on a VM whose deciding claims have no node. `named` is the claim that its annotation names."""
    never_served = all(claim.reason in NEVER_SERVED_REASONS for claim in claims if claim.decides)
    shared = [claim for claim in claims if claim.node and not claim.decides and not claim.persistent_state]
    if never_served and shared and all(claim.claim != named for claim in claims):
        return unchanged(Reason.SHARED_CLAIM_ONLY, mode, wording.shared_claim_only(shared[0]))
    if any(claim.reason in COLD_REASONS for claim in claims if claim.decides):
        return unchanged(Reason.COLD_START, mode, wording.cold_start(claims, steering=settings.steering))
    return unchanged(Reason.NO_SHARE_MANAGER, mode, wording.unserved(claims))


def _place_migration_target(made: Creation, catalog: Catalog, settings: Settings, record: Record) -> Decision:
    """Prefer the node of the share-manager for a live-migration target, unless the migration leads elsewhere."""
    pod, namespace = made.pod, made.namespace
    claims = resolve.resolve_all(pod, namespace, catalog, settings, made.claims)
    record(ClaimsFollowed(claims))
    choice = votes.choose(claims)
    if choice is None:
        return unchanged(Reason.MIGRATION_TARGET, Mode.PREFERRED)
    elsewhere = leads_elsewhere(pod, namespace, choice.node, catalog)
    record(NodeChosen(choice, leads_elsewhere=elsewhere))
    if elsewhere:
        return unchanged(Reason.MIGRATION_TARGET, Mode.PREFERRED)
    candidate = candidate_for(pod, namespace, choice.node, claims, catalog)
    checks = checks_in_force(required=False, certain=choice.certain, node_guard=settings.node_guard)
    obstacle, contested = _checked(candidate, checks, settings, record, prefers=True)
    return _prefer(claims, choice, obstacle, contested, Mode.PREFERRED)


def _checked(
    candidate: Candidate, checks: tuple[Check, ...], settings: Settings, record: Record, *, prefers: bool
) -> tuple[FailedCheck | None, FailedCheck | None]:
    """Return the check that fails, and for a pod that then only prefers the node, why pinned pods need the node."""
    obstacle = first_failed_check(candidate, checks)
    contested = contest(candidate) if settings.node_guard and (obstacle or prefers) else None
    record(NodeChecked(candidate, checks, contested.detail if contested else None))
    return obstacle, contested


def _prefer(
    claims: tuple[ClaimFinding, ...],
    choice: Choice,
    obstacle: FailedCheck | None,
    contested: FailedCheck | None,
    mode: Mode,
) -> Decision:
    """Decide on a pod that must not require the node. It prefers the node, or others if pinned pods need the node."""
    problem = obstacle or contested
    reason = problem.reason if problem else Reason.CO_SCHEDULED
    outcome = Outcome.UNCHANGED if contested or reason is Reason.NODE_NOT_FOUND else Outcome.PREFERRED
    if problem is None:
        message = wording.placed(claims, choice, mode)
    else:
        message = wording.softened(claims, choice, problem.detail, outcome, contested=bool(contested))
    conflict = bool(choice.others)
    avoids = bool(contested) and reason is not Reason.NODE_NOT_FOUND
    return Decision(outcome, reason, message, mode, choice.node, conflict, claims, recorded=True, avoids=avoids)


def _reserving(decision: Decision, candidate: Candidate, settings: Settings) -> Decision:
    """Reserve resources for a pod that prefers the node: the scheduler may bind it before a pod that is pinned next."""
    if candidate.comparisons.passed_over:
        decision = replace(decision, passed_over=True)
    may_fit = decision.outcome is Outcome.PREFERRED and decision.reason in MAY_FIT_REASONS
    if not settings.node_guard or not may_fit or is_gated(candidate.pod) or not candidate.fits():
        return decision
    return replace(decision, reservation=replace(candidate.pod_facts, prefers=True))


def candidate_for(  # noqa: PLR0913, PLR0917 (what the guard evaluates)
    pod: JsonObject,
    namespace: str,
    node: str,
    claims: tuple[ClaimFinding, ...],
    catalog: Catalog,
    replicas: int = 1,
    *,
    releases: bool = True,
) -> Candidate:
    """Return what the guard evaluates: the pod on a node, with the known PVs of its claims."""
    volumes = resolve.known_volumes(claims, namespace, catalog)
    return Candidate(pod, namespace, node, volumes, catalog, replicas, releases=releases)


def namespace_of(request: JsonObject) -> str:
    """Return the request's namespace. The pod itself may have none until the API server stores it."""
    return text(request, "namespace") or text(request, "object", "metadata", "namespace") or "default"


def _warnings(decision: Decision, pod: JsonObject, settings: Settings) -> tuple[str, ...]:
    # In observe mode, the webhook also decides on VMs that are not opted in. Don't warn their users.
    unasked = settings.action is Action.OBSERVE and decision.opted_in_by is OptedInBy.NOTHING
    if not decision.recorded or unasked:
        return ()
    annotations = mapping(pod, "metadata", "annotations")
    unknown_claim = unknown_deciding_claim(pod) if DECIDING_CLAIM_ANNOTATION in annotations else ""
    return wording.warnings(decision, mode_of(annotations, settings)[1], unknown_claim)
