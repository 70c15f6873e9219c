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
from webhook.placement.guard.comparison_limit import Comparisons
from webhook.placement.guard.feasibility import (
    CHECKS,
    FailedCheck,
    checks_in_force,
    contest,
    first_failed_check,
)
from webhook.placement.objects.claims import DECIDING_CLAIM_ANNOTATION, deciding_claim, unknown_deciding_claim
from webhook.placement.objects.fields import JsonObject, mapping, text
from webhook.placement.objects.kubevirt import EVICTION_SOURCE, HOSTNAME, vmi_uid
from webhook.placement.objects.longhorn import VOLUME_LABEL
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
    Source,
)
from webhook.placement.settings import Action, Settings
from webhook.placement.steps import (
    ClaimsFollowed,
    ConsumersFound,
    NodeChecked,
    NodeChosen,
    Record,
    RulesChecked,
    ignore,
)
from webhook.placement.volume_consumers import avoided_nodes, consumers_of, failing_nodes, ranked_nodes
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
        return _place_share_manager(pod, namespace, catalog, settings, record)
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
    return _reserving(_placed(claims, choice, candidate, mode, settings, record), candidate, settings)


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
    elsewhere = choice is not None and _leads_elsewhere(made, choice.node, catalog)
    if choice:
        record(NodeChosen(choice, leads_elsewhere=elsewhere))
    if choice is None or elsewhere:
        return unchanged(Reason.MIGRATION_TARGET, Mode.PREFERRED)
    candidate = candidate_for(pod, namespace, choice.node, claims, catalog)
    return _placed(claims, choice, candidate, Mode.PREFERRED, settings, record)


def _leads_elsewhere(made: Creation, node: str, catalog: Catalog) -> bool:
    """Return whether the migration must go to a node other than `node`.

    It must if the VM already runs on `node`, if the target names its own node, or if a descheduler evicted the VM.
    """
    metadata, vmi = mapping(made.pod, "metadata"), vmi_uid(made.pod)
    if any(EVICTION_SOURCE in mapping(metadata, kind) for kind in ("labels", "annotations")):
        return True
    pods = (pod for claim in made.claims for pod in catalog.mounting_pods(made.namespace, claim))
    runs_there = any(pod.node == node and pod.alive and pod.vmi_uid == vmi for pod in pods)
    return runs_there or HOSTNAME in mapping(made.pod, "spec", "nodeSelector")


def _placed(  # noqa: PLR0913, PLR0917 (what its callers know)
    claims: tuple[ClaimFinding, ...],
    choice: Choice,
    candidate: Candidate,
    mode: Mode,
    settings: Settings,
    record: Record,
) -> Decision:
    """Pin a pod to the chosen node, or only prefer the node, or prefer others if pinned pods need the node."""
    required, guard = mode is Mode.REQUIRED, settings.node_guard
    checks = checks_in_force(required=required, certain=choice.certain, node_guard=guard)
    obstacle = first_failed_check(candidate, checks)
    contested = contest(candidate) if guard and (obstacle or not required) else None
    record(NodeChecked(candidate, checks, contested.detail if contested else None))
    problem = obstacle or contested
    if problem is None:
        outcome, reason = Outcome.PINNED if required else Outcome.PREFERRED, Reason.CO_SCHEDULED
        message = wording.placed(claims, choice, mode)
    else:
        reason = problem.reason
        outcome = Outcome.UNCHANGED if contested or reason is Reason.NODE_NOT_FOUND else Outcome.PREFERRED
        message = wording.softened(claims, choice, problem.detail, outcome, contested=bool(contested))
    avoids, conflict = bool(contested) and reason is not Reason.NODE_NOT_FOUND, bool(choice.others)
    decision = Decision(outcome, reason, message, mode, choice.node, conflict, claims, recorded=True, avoids=avoids)
    return replace(decision, passed_over=True) if candidate.comparisons.passed_over else decision


def _reserving(decision: Decision, candidate: Candidate, settings: Settings) -> Decision:
    """Reserve resources for a VM's pod, also if it only prefers the node: it may be bound before the next pod."""
    if not settings.node_guard:
        return decision
    if decision.outcome is Outcome.PINNED:
        return replace(decision, reservation=candidate.pod_facts)
    may_fit = decision.outcome is Outcome.PREFERRED and decision.reason in MAY_FIT_REASONS
    if not may_fit or is_gated(candidate.pod) or not candidate.fits():
        return decision
    return replace(decision, reservation=replace(candidate.pod_facts, prefers=True))


def _place_share_manager(
    pod: JsonObject, namespace: str, catalog: Catalog, settings: Settings, record: Record
) -> Decision:
    """Place a share-manager pod on the node where most VMs use its volume, if the node guard allows it.

    The node is preferred, never required, so that Longhorn's failover always wins.
    """
    volume = text(pod, "metadata", "labels", VOLUME_LABEL)
    users = consumers_of(volume, catalog, settings)
    failing = failing_nodes(volume, catalog, settings)
    avoided = avoided_nodes(pod) | failing
    record(ConsumersFound(users, avoided))
    if not users.pods:
        return unchanged(Reason.NO_CONSUMER, Mode.PREFERRED, f"no opted-in VM uses volume {volume}")
    candidates = ranked_nodes(users, avoided)
    if not candidates:
        why = "the share-manager failed twice within ten minutes on" if failing else "the pod prefers to avoid"
        sentence = f"{why} the nodes of the VMs that use volume {volume}"
        return unchanged(Reason.NODE_AVOIDED, Mode.PREFERRED, sentence)

    # A share-manager pod mounts no claim, so no PV restricts it: Longhorn attaches the volume to the pod's node.
    # In a drain, the node of the migration's source is cordoned, and the new server belongs on the target's node.
    obstacles: dict[str, FailedCheck | None] = {}
    checks = CHECKS if settings.node_guard else ()
    comparisons = Comparisons()  # for all nodes together
    for node in candidates:
        candidate = Candidate(pod, namespace, node, (), catalog, comparisons=comparisons)
        record(NodeChecked(candidate, checks))
        obstacles[node] = first_failed_check(candidate, checks)
        if obstacles[node] is None:
            break
    else:
        node = candidates[0]
    record(NodeChosen(Choice(node, tuple(other for other in candidates if other != node))))
    claims = (ClaimFinding(users.claim, volume, node, Source.VIRT_LAUNCHER_POD),)
    if obstacle := obstacles[node]:
        sentence = f"{node} runs a VM of this volume but {obstacle.detail}, so no node affinity is added"
        return replace(unchanged(obstacle.reason, Mode.PREFERRED, sentence), node=node, claims=claims)
    vms = sum(vm.node == node for vm in users.pods)
    message = f"prefers {node}, which runs {vms} {'VM' if vms == 1 else 'VMs'} of this volume"
    placed = Decision(Outcome.PREFERRED, Reason.CO_SCHEDULED, message, Mode.PREFERRED, node, claims=claims)
    return replace(placed, recorded=True, passed_over=comparisons.passed_over)


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
