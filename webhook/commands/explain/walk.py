"""Trace a decision for `explain`: each condition that the decision evaluates, and the result."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from webhook.fleet.next_pod import as_if_eligible
from webhook.placement import consumers, resolve, votes
from webhook.placement.affinity import matches_no_node
from webhook.placement.catalog import Catalog
from webhook.placement.eligibility import (
    RULES,
    STEERING_RULES,
    Rule,
    ineligible_reason,
    is_pod_creation,
    is_share_manager_pod,
    mode_of,
    pinned_by_webhook,
    username,
)
from webhook.placement.guard.candidate import Candidate, ResourceFit, pinning_replicas, resource_fits
from webhook.placement.guard.feasibility import INVALID_NAME, NODE_AFFINITY_MISMATCH, contest, run_checks
from webhook.placement.injector import candidate_for, namespace_of
from webhook.placement.migration import leads_elsewhere
from webhook.placement.objects.facts import Claim, Pod, ShareManager, Volume
from webhook.placement.objects.fields import JsonObject, is_dns_subdomain, mapping
from webhook.placement.objects.kubevirt import is_migration_target
from webhook.placement.opt_in import new_applicant, opted_in_by
from webhook.placement.reasons import ClaimFinding, Mode, OptedInBy, Reason
from webhook.placement.settings import Settings
from webhook.placement.votes import Choice
from webhook.placement.wording import OPT_IN_DETAILS, SENTENCES, STARTING


@dataclass(frozen=True, slots=True)
class Answer:
    """A condition and whether it holds. `holds` is None if neither answer ends the decision.

    `question` states the condition. `decisive` is False if the check is not in force, or if an earlier answer was
    decisive.
    """

    question: str
    holds: bool | None
    detail: str = ""
    decisive: bool = True


@dataclass(frozen=True, slots=True)
class ClaimPath:
    """The objects on the path from one claim to its node."""

    finding: ClaimFinding
    claim: Claim | None
    volume: Volume | None
    servers: tuple[Pod, ...]
    manager: ShareManager | None


@dataclass(frozen=True, slots=True)
class VolumeUsers:
    """The objects on the path from a share-manager pod's volume to the VMs that use it."""

    volume: str
    pvs: tuple[Volume, ...]
    mounting: tuple[Pod, ...]
    consumers: tuple[Pod, ...]
    avoided: frozenset[str]


@dataclass(frozen=True, slots=True)
class Guard:
    """The node guard's answers for one node, and the pod's requests against its free resources."""

    node: str
    answers: tuple[Answer, ...]
    resource_fits: tuple[ResourceFit, ...]

    @property
    def passes(self) -> bool:
        """Return whether no check in force fails."""
        return all(answer.holds or not answer.decisive for answer in self.answers)


@dataclass(frozen=True, slots=True)
class Walk:
    """The steps of the decision on one pod, up to the step that ended it.

    `assumes` names the rules that the pod breaks and that end the decision. The later steps are those of a pod that
    breaks none of them.
    """

    rules: tuple[Answer, ...]
    chains: tuple[ClaimPath, ...] = ()
    served: VolumeUsers | None = None
    choice: Choice | None = None
    guards: tuple[Guard, ...] = ()
    assumes: tuple[Reason, ...] = ()


def walk(request: JsonObject, catalog: Catalog, settings: Settings) -> Walk:
    """Trace the decision on a request. Raises what the decision itself raises for a malformed pod."""
    pod, namespace = mapping(request, "object"), namespace_of(request)
    if not is_pod_creation(request):
        return Walk((Answer("the request creates a pod", False, SENTENCES[Reason.NOT_A_POD_CREATION]),))
    is_share_manager = is_share_manager_pod(pod, namespace, settings)
    by, broken = OptedInBy.NOTHING, tuple[Reason, ...]()
    if not is_share_manager:
        by = opted_in_by(new_applicant(pod, namespace, settings), catalog, settings)
        pod, broken = as_if_eligible(pod, by, settings)
        by = OptedInBy.ANNOTATION if Reason.NOT_OPTED_IN in broken else by
    rules = (
        Answer("the request creates a pod", True),
        Answer("share-manager pod", None, "yes, so it follows its VM" if is_share_manager else "no"),
        *_evaluated(STEERING_RULES if is_share_manager else RULES, pod, by, broken, settings, username(request)),
    )
    if rules[-1].holds is False:
        reason = None if is_share_manager else ineligible_reason(pod, by, settings, username(request))
        injected = reason is Reason.ALREADY_INJECTED
        return _walk_pinned(rules, pod, namespace, catalog, settings) if injected else Walk(rules)
    walk_pod = _walk_share_manager if is_share_manager else _walk_virt_launcher
    return replace(walk_pod(rules, pod, namespace, catalog, settings), assumes=broken)


def _evaluated(  # noqa: PLR0913, PLR0917 (what the rules ask)
    rules: Iterable[Rule], pod: JsonObject, by: OptedInBy, broken: Collection[Reason], settings: Settings, user: str
) -> Iterator[Answer]:
    for rule in rules:
        if rule.reason in broken:
            yield Answer(rule.question, False, SENTENCES[rule.reason])
        elif rule.holds(pod, by, settings, user):
            yield Answer(rule.question, True, OPT_IN_DETAILS[by] if rule.reason is Reason.NOT_OPTED_IN else "")
        else:
            yield Answer(rule.question, False, SENTENCES[rule.reason])
            return


def _walk_virt_launcher(
    rules: tuple[Answer, ...], pod: JsonObject, namespace: str, catalog: Catalog, settings: Settings
) -> Walk:
    findings = resolve.resolve_all(pod, namespace, catalog, settings)
    chains = tuple(_chain(finding, namespace, catalog, settings.longhorn_namespace) for finding in findings)
    choice = votes.choose(findings)
    if choice is None:
        return Walk(rules, chains)
    if is_migration_target(pod) and leads_elsewhere(pod, namespace, choice.node, catalog):
        answer = Answer("the migration may go to the share-manager's node", False, SENTENCES[Reason.MIGRATION_TARGET])
        return Walk((*rules, answer), chains, choice=choice)
    candidate = candidate_for(pod, namespace, choice.node, findings, catalog, pinning_replicas(catalog, settings))
    required = mode_of(pod, settings)[0] is Mode.REQUIRED and not is_migration_target(pod)
    checks = _checks(candidate, in_force=required and settings.node_guard and choice.certain)
    if not choice.certain:
        checks.insert(0, ("runs the share-manager", STARTING, True))
    if not is_dns_subdomain(choice.node):
        checks.insert(0, ("valid node name", INVALID_NAME, True))
    if matches_no_node(pod):
        checks.append(("a required node affinity that can match a node", NODE_AFFINITY_MISMATCH, required))
    if settings.node_guard and (contested := contest(candidate)):
        checks.append(("may be preferred", f"{contested.detail}, and pinned pods wait to start there", True))
    return Walk(rules, chains, choice=choice, guards=(_guard(candidate, checks),))


def _walk_pinned(
    rules: tuple[Answer, ...], pod: JsonObject, namespace: str, catalog: Catalog, settings: Settings
) -> Walk:
    if not (node := pinned_by_webhook(pod)):
        return Walk(rules)
    findings = resolve.resolve_all(pod, namespace, catalog, settings)
    candidate = candidate_for(pod, namespace, node, findings, catalog)
    required = mode_of(pod, settings)[0] is Mode.REQUIRED
    checks = _checks(candidate, in_force=required and settings.node_guard)
    return Walk(rules, guards=(_guard(candidate, checks),))


def _chain(finding: ClaimFinding, namespace: str, catalog: Catalog, longhorn_namespace: str) -> ClaimPath:
    claim = catalog.claim(namespace, finding.claim)
    volume = catalog.volume(claim.volume_name) if claim else None
    if finding.volume is None:
        return ClaimPath(finding, claim, volume, (), None)
    servers = catalog.share_manager_pods(longhorn_namespace, finding.volume)
    return ClaimPath(finding, claim, volume, tuple(servers), catalog.share_manager(longhorn_namespace, finding.volume))


def _walk_share_manager(
    rules: tuple[Answer, ...], pod: JsonObject, namespace: str, catalog: Catalog, settings: Settings
) -> Walk:
    found, avoided = consumers.find_consumers(pod, catalog, settings), consumers.avoided_nodes(pod)
    pvs = tuple(catalog.volumes_by_handle(found.volume))
    claims = consumers.claims_of(found.volume, catalog)
    mounting = {pod.key: pod for claim in claims for pod in catalog.mounting_pods(*claim)}
    served = VolumeUsers(found.volume, pvs, tuple(mounting.values()), found.pods, avoided)
    nodes, guards = consumers.ranked_nodes(found, avoided), []
    for node in nodes:
        candidate = Candidate(pod, namespace, node, (), catalog)
        guards.append(_guard(candidate, _checks(candidate, in_force=settings.node_guard)))
        if guards[-1].passes:
            break
    if not guards:
        return Walk(rules, served=served)
    node = guards[-1].node if guards[-1].passes else nodes[0]
    choice = Choice(node, tuple(other for other in nodes if other != node))
    return Walk(rules, served=served, choice=choice, guards=tuple(guards))


def _checks(candidate: Candidate, *, in_force: bool) -> list[tuple[str, str | None, bool]]:
    checks = run_checks(candidate)
    return [(check.question, detail, in_force) for check, detail in checks if detail or not check.quiet]


def _guard(candidate: Candidate, checks: Iterable[tuple[str, str | None, bool]]) -> Guard:
    answers: list[Answer] = []
    for question, detail, in_force in checks:
        decided = any(answer.decisive and not answer.holds for answer in answers)
        failure = f"{candidate.node_name} {detail}" if detail else ""
        answers.append(Answer(question, not detail, failure, in_force and not decided))
    return Guard(candidate.node_name, tuple(answers), tuple(resource_fits(candidate)))
