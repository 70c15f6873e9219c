"""Decide on a review, from eligibility to patch: a pure function of (review, catalog, settings)."""

from msgspec import Struct
from msgspec.structs import replace

from webhook.placement import eligibility, replicas, resolve, votes, wording
from webhook.placement.catalog import Catalog
from webhook.placement.guard import feasibility
from webhook.placement.guard.candidate import Candidate, releases_pins
from webhook.placement.guard.comparison_limit import Comparisons
from webhook.placement.guard.feasibility import FailedCheck
from webhook.placement.guard.pins import is_gated, pinned_by_webhook
from webhook.placement.objects.fields import Malformed
from webhook.placement.objects.kubevirt import EVICTION_SOURCE, HOSTNAME
from webhook.placement.objects.longhorn import VOLUME_LABEL
from webhook.placement.objects.pod import Manifest
from webhook.placement.opt_in import opted_in_by
from webhook.placement.patch import Operation, patch_for
from webhook.placement.reasons import (
    MAY_FIT_REASONS,
    NEVER_SERVED_REASONS,
    ClaimFinding,
    Decision,
    Mode,
    OptedInBy,
    Outcome,
    Reason,
    Subject,
)
from webhook.placement.review import Review
from webhook.placement.settings import Action, Settings
from webhook.placement.trace import Trace
from webhook.placement.votes import Choice
from webhook.placement.voting_consumers import avoided_nodes, claims_of, consumers_of, has_users, kind_of, ranked_nodes
from webhook.placement.wording import unchanged


class Injection(Struct, frozen=True):
    """A decision, and what the response needs besides."""

    decision: Decision
    patch: list[Operation] | None = None  # None if nothing changes
    warnings: tuple[str, ...] = ()  # for the pod's creator
    error: Exception | None = None  # the exception behind an `InternalError`; the caller logs it
    applied: bool = True  # False in observe mode: the patch is None, and nothing may be reserved or recorded
    unseen: bool = False  # a watch will show an object that the decision lacked, and that is some milliseconds old


def inject(review: Review, catalog: Catalog | None, settings: Settings, trace: Trace | None = None) -> Injection:
    """Decide on a review and build the patch. A catalog of None means that the cache is not synced yet.

    Fills the `trace`. Never raises: a VM that starts unmodified is better than a VM that does not start.
    """
    try:
        decision = decide(review, catalog, settings, trace)
        warnings = _warnings(decision, review)
        if settings.action is Action.OBSERVE:
            return Injection(decision, warnings=warnings, applied=False)
        return Injection(decision, patch_for(decision, review.manifest, settings) or None, warnings)
    except Exception as error:  # noqa: BLE001 (fail open; the caller logs it)
        return failed(error, settings)


def failed(error: Exception, settings: Settings) -> Injection:
    """Return what leaves the pod unchanged after an error: an `InternalError`, unless the pod is malformed."""
    if isinstance(error, Malformed):  # the API server would reject the pod, too
        decision = unchanged(Reason.UNJUDGED, settings.affinity_mode, f"the pod is malformed ({error})")
        decision = replace(decision, opted_in_by=OptedInBy.UNKNOWN)
        return Injection(decision, warnings=(wording.warning(decision.message),))
    # Report only the exception's type: its message may quote the pod, and a pod may contain a passphrase.
    sentence = f"the webhook failed ({type(error).__name__}) and left the pod unchanged"
    return Injection(unchanged(Reason.INTERNAL_ERROR, settings.affinity_mode, sentence), error=error)


def decide(review: Review, catalog: Catalog | None, settings: Settings, trace: Trace | None = None) -> Decision:
    """Decide which node the pod should run on, and why. Fills the `trace`. Raises Malformed."""
    trace = trace or Trace()
    if review.malformed:
        raise Malformed(review.malformed)
    if not review.creates_pod:
        return unchanged(Reason.NOT_A_POD_CREATION, settings.affinity_mode)
    manifest, mode = review.manifest, review.mode
    steered = review.subject is Subject.SHARE_MANAGER
    rules = eligibility.STEERING_RULES if steered else eligibility.RULES
    by = opted_in_by(manifest, catalog, settings) if manifest.is_virt_launcher and not steered else OptedInBy.NOTHING
    broken = eligibility.ineligible_reason(manifest, by, settings, rules)
    trace.rules, trace.opted_in_by, trace.broken = rules, by, broken
    if steered:
        if broken or catalog is None:
            return unchanged(broken or Reason.CACHE_NOT_SYNCED, Mode.PREFERRED)
        return place_share_manager(manifest, catalog, settings, trace)
    if broken is Reason.ALREADY_INJECTED and catalog is not None:
        decision = _check_pin_again(manifest, mode, catalog, settings, trace)
    elif broken or catalog is None:
        decision = unchanged(broken or Reason.CACHE_NOT_SYNCED, mode)
    else:
        return place(manifest, mode, by, catalog, settings, trace)
    return _opted_in(decision, by)


def place(  # noqa: PLR0913, PLR0917 (what the decision depends on)
    manifest: Manifest,
    mode: Mode,
    by: OptedInBy,
    catalog: Catalog,
    settings: Settings,
    trace: Trace | None = None,
) -> Decision:
    """Decide on the pod of a VM as if it were eligible. `by` is what opts the VM in. Fills the `trace`."""
    return _opted_in(_place_virt_launcher(manifest, mode, by, catalog, settings, trace or Trace()), by)


def predict(
    manifest: Manifest, by: OptedInBy, catalog: Catalog, settings: Settings, trace: Trace | None = None
) -> Decision:
    """Decide like `place`, and as if an annotation opted in a VM that nothing opts in. Never raises, like `inject`."""
    mode, _ = eligibility.mode_of(manifest.annotations, settings)
    by = OptedInBy.ANNOTATION if by is OptedInBy.NOTHING else by
    try:
        return place(manifest, mode, by, catalog, settings, trace)
    except Exception as error:  # noqa: BLE001 (one malformed object must not fail the whole report)
        return failed(error, settings).decision


def _opted_in(decision: Decision, by: OptedInBy) -> Decision:
    decision = replace(decision, opted_in_by=by)
    return wording.with_opt_in(decision) if decision.recorded else decision


def _check_pin_again(manifest: Manifest, mode: Mode, catalog: Catalog, settings: Settings, trace: Trace) -> Decision:
    """Evaluate the guard again for a pod that the webhook has pinned, and remove the pin if the guard refuses.

    Another webhook may have changed the pod since, for example added a sidecar (`reinvocationPolicy: IfNeeded`).
    """
    node = pinned_by_webhook(manifest)
    if not node or mode is Mode.PREFERRED:
        return unchanged(Reason.ALREADY_INJECTED, mode)
    candidate = Candidate(manifest, node, catalog, releases=releases_pins(settings))
    checks = feasibility.CHECKS if settings.node_guard else ()
    trace.candidates, trace.checks = [candidate], checks
    obstacle = feasibility.first_failed_check(candidate, checks)
    if obstacle is None:
        reservation = candidate.pod_facts if settings.node_guard else None
        return replace(unchanged(Reason.ALREADY_INJECTED, mode), reservation=reservation)
    claims = resolve.resolve_all(manifest, catalog, settings)
    message = wording.unpinned(node, obstacle.detail)
    return Decision(Outcome.PREFERRED, obstacle.reason, message, mode, node, claims=claims, recorded=True, unpins=True)


def _place_virt_launcher(  # noqa: PLR0913, PLR0917 (what the decision depends on)
    manifest: Manifest, mode: Mode, by: OptedInBy, catalog: Catalog, settings: Settings, trace: Trace
) -> Decision:
    """Pin a VM's pod to the node that serves most of its claims, or only prefer that node if there is an obstacle.

    A live-migration target only prefers it, and only if the migration may go there.
    """
    claims = resolve.resolve_all(manifest, catalog, settings, by)
    choice = votes.choose(claims)
    trace.claims, trace.choice = claims, choice
    if manifest.is_migration_target:
        mode = Mode.PREFERRED
        leads_elsewhere = choice is not None and _leads_elsewhere(manifest, choice.node, catalog)
        trace.leads_elsewhere = leads_elsewhere
        if choice is None or leads_elsewhere:
            return unchanged(Reason.MIGRATION_TARGET, mode)
    elif choice is None:
        return replace(_unserved(claims, manifest, mode, catalog, settings), claims=claims, recorded=True)

    candidate = Candidate(manifest, choice.node, catalog, releases=releases_pins(settings), serves=choice.certain)
    trace.candidates = [candidate]
    decision = _placed(claims, choice, candidate, mode, settings, trace)
    return decision if manifest.is_migration_target else _reserving(decision, candidate, settings)


def _unserved(
    claims: tuple[ClaimFinding, ...], manifest: Manifest, mode: Mode, catalog: Catalog, settings: Settings
) -> Decision:
    """Decide on a VM whose deciding claims have no node."""
    deciding = [claim for claim in claims if claim.decides]
    never_served = all(claim.reason in NEVER_SERVED_REASONS for claim in deciding)
    shared = [claim for claim in claims if claim.node and not claim.decides and not claim.persistent_state]
    if not deciding:  # all claims are shared
        shared = sorted(claims, key=lambda claim: claim.persistent_state)
    if never_served and shared and all(claim.claim != manifest.deciding_claim for claim in claims):
        return unchanged(Reason.SHARED_CLAIM_ONLY, mode, wording.shared_claim_only(shared[0]))
    if any(claim.follows for claim in deciding):
        local = replicas.local_nodes(claims, manifest, catalog, settings)
        message = wording.cold_start(claims, manifest.spec.node_selector, local, steering=settings.steering)
        return replace(unchanged(Reason.COLD_START, mode, message), replica_nodes=local.nodes)
    return unchanged(Reason.NO_SHARE_MANAGER, mode, wording.unserved(claims))


def _leads_elsewhere(manifest: Manifest, node: str, catalog: Catalog) -> bool:
    """Return whether the migration must go to a node other than `node`.

    It must if the VM already runs on `node`, if the target names its own node, or if a descheduler evicted the VM.
    """
    if EVICTION_SOURCE in manifest.annotations:
        return True
    pods = (pod for claim in manifest.claims for pod in catalog.mounting_pods(manifest.namespace, claim))
    runs_there = any(pod.node == node and pod.alive and pod.vmi_uid == manifest.vmi_uid for pod in pods)
    return runs_there or HOSTNAME in manifest.spec.node_selector


def _placed(  # noqa: PLR0913, PLR0917 (what the decision depends on)
    claims: tuple[ClaimFinding, ...],
    choice: Choice,
    candidate: Candidate,
    mode: Mode,
    settings: Settings,
    trace: Trace,
) -> Decision:
    """Pin a pod to the chosen node, or only prefer the node, or prefer others if pinned pods need the node."""
    required = mode is Mode.REQUIRED
    checks = feasibility.checks_in_force(required=required, certain=choice.certain, node_guard=settings.node_guard)
    obstacle = feasibility.first_failed_check(candidate, checks)
    contested = feasibility.contest(candidate) if settings.node_guard and (obstacle or not required) else None
    trace.checks = checks
    trace.contested = contested.detail if contested else ""
    avoids = False
    if problem := obstacle or contested:
        reason = problem.reason
        unseen = feasibility.first_failed_check(candidate, feasibility.UNSEEN) if settings.node_guard else None
        is_emulated = unseen is not None and unseen.reason is Reason.NODE_MISMATCH
        no_term = is_emulated or reason is Reason.NODE_NOT_FOUND
        avoids = bool(contested or unseen) and not no_term
        outcome = Outcome.UNCHANGED if avoids or no_term else Outcome.PREFERRED
        message = wording.softened(claims, choice, problem.detail, outcome, avoids=avoids, contested=bool(contested))
    else:
        reason = Reason.CO_SCHEDULED
        outcome = Outcome.PINNED if required else Outcome.PREFERRED
        message = wording.placed(claims, choice, mode)
    conflict = bool(choice.others)
    decision = Decision(outcome, reason, message, mode, choice.node, conflict, claims, recorded=True, avoids=avoids)
    return replace(decision, passed_over=True) if candidate.pod_affinity.passed_over else decision


def _reserving(decision: Decision, candidate: Candidate, settings: Settings) -> Decision:
    """Reserve resources for a VM's pod, also if it only prefers the node: it may be bound before the next pod."""
    if not settings.node_guard:
        return decision
    if decision.outcome is Outcome.PINNED:
        return replace(decision, reservation=candidate.pod_facts)
    may_fit = decision.outcome is Outcome.PREFERRED and decision.reason in MAY_FIT_REASONS
    if not may_fit or is_gated(candidate.manifest) or not candidate.fits():
        return decision
    return replace(decision, reservation=replace(candidate.pod_facts, prefers=True))


def place_share_manager(
    manifest: Manifest, catalog: Catalog, settings: Settings, trace: Trace | None = None
) -> Decision:
    """Place a share-manager pod on the node where most VMs or pods use its volume, if the node guard allows it.

    The node is preferred, never required, so that Longhorn's failover always wins. Fills the `trace`.
    """
    trace = trace or Trace()
    volume = manifest.labels.get(VOLUME_LABEL, "")
    users = consumers_of(volume, catalog, settings)
    avoided = avoided_nodes(manifest.affinity)
    trace.consumers, trace.avoided = users, avoided
    if not users:
        decision = unchanged(Reason.NO_CONSUMER, Mode.PREFERRED, f"no opted-in VM or pod uses volume {volume}")
        return replace(decision, user_unseen=not has_users(volume, catalog))
    kind, source = kind_of(users)
    nodes = ranked_nodes(users, avoided)
    if not nodes:
        sentence = f"the pod prefers to avoid the nodes of the {kind}s that use volume {volume}"
        return unchanged(Reason.NODE_AVOIDED, Mode.PREFERRED, sentence)

    # A share-manager pod mounts no claim, so no PV restricts it: Longhorn attaches the volume to the pod's node.
    # In a drain, the node of the migration's source is cordoned, and the new server belongs on the target's node.
    obstacles: dict[str, FailedCheck | None] = {}
    candidates = list[Candidate]()
    checks = feasibility.CHECKS if settings.node_guard else ()
    trace.candidates, trace.checks = candidates, checks
    comparisons = Comparisons()  # for all nodes together
    for node in nodes:
        candidates.append(Candidate(manifest, node, catalog, comparisons=comparisons))
        obstacles[node] = feasibility.first_failed_check(candidates[-1], checks)
        if obstacles[node] is None:
            break
    else:
        node = nodes[0]
    trace.choice = Choice(node, tuple(other for other in nodes if other != node))
    claim = claims_of(volume, catalog)[0][1]
    claims = (ClaimFinding(claim, volume, node, source),)
    by = opted_in_by(next(user for user in users if user.node == node), catalog, settings)
    if obstacle := obstacles[node]:
        sentence = f"{node} runs a {kind} of this volume but {obstacle.detail}, so no node affinity is added"
        return replace(unchanged(obstacle.reason, Mode.PREFERRED, sentence), node=node, claims=claims, opted_in_by=by)
    number = sum(user.node == node for user in users)
    message = f"prefers {node}, which runs {number} {kind}{'' if number == 1 else 's'} of this volume"
    placed = Decision(Outcome.PREFERRED, Reason.CO_SCHEDULED, message, Mode.PREFERRED, node, claims=claims)
    passed_over = any(candidate.pod_affinity.passed_over for candidate in candidates)
    return replace(placed, recorded=True, passed_over=passed_over, opted_in_by=by)


def _warnings(decision: Decision, review: Review) -> tuple[str, ...]:
    # In observe mode, the webhook also decides on VMs that are not opted in. Don't warn their users.
    if not decision.recorded or decision.opted_in_by is OptedInBy.NOTHING:
        return ()
    named = review.manifest.deciding_claim
    return wording.warnings(decision, review.unknown_mode, "" if named in review.manifest.claims else named)
