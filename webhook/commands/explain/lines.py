"""The output of `explain`: each step of a placement decision as lines of text."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from webhook.fleet.states import Status
from webhook.fleet.wording import if_started
from webhook.placement.affinity import CO_SCHEDULED_NODE, DECISION
from webhook.placement.catalog import Catalog
from webhook.placement.eligibility import STEERING_RULES
from webhook.placement.guard.candidate import Candidate
from webhook.placement.guard.comparison_limit import MAX_COMPARISONS
from webhook.placement.guard.feasibility import PIN_CHECKS, first_failed_check, untolerated_taint
from webhook.placement.injector import Injection, namespace_of
from webhook.placement.objects.facts import Pod
from webhook.placement.objects.fields import JsonObject, mapping, mappings, text
from webhook.placement.objects.longhorn import VOLUME_LABEL
from webhook.placement.objects.resources import format_quantity
from webhook.placement.reasons import COLD_REASONS, ClaimFinding, Outcome, Reason
from webhook.placement.settings import Action, Settings
from webhook.placement.trace import Trace
from webhook.placement.volume_consumers import claims_of
from webhook.placement.votes import Choice
from webhook.placement.wording import ADVICE, OPT_IN_DETAILS, SENTENCES

YES, NO, NEUTRAL = "✓", "✗", "·"

OBSERVED = "no, but CO_SCHEDULE_ACTION=observe evaluates every VM"
SCHEDULER_NAME_PATH = "/spec/schedulerName"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of output: a heading (level 0), or a finding below it.

    `mark` is the answer to a question, empty if the line answers none. Parentheses mark an answer that did not affect
    the decision.
    """

    words: str
    mark: str = ""
    level: int = 1


@dataclass(frozen=True, slots=True)
class Assumed:
    """The decision on a pod as if it broke none of the rules in `broken`."""

    injection: Injection
    broken: tuple[Reason, ...]


def describe_placement(pod: JsonObject) -> Iterator[str]:
    """Describe where a pod is, the scheduler's report, and the webhook's decision at its creation."""
    node, phase = text(pod, "spec", "nodeName"), text(pod, "status", "phase") or "no phase"
    yield f"pod {text(pod, 'metadata', 'name')}: {phase}, {f'on {node}' if node else 'not bound to a node'}"
    for condition in mappings(pod, "status", "conditions"):
        if (condition.get("type"), condition.get("status")) == ("PodScheduled", "False"):
            yield f"the scheduler reports: {text(condition, 'message')}"
    annotations = mapping(pod, "metadata", "annotations")
    yield f"decision at creation: {text(annotations, DECISION) or 'none (no annotation)'}"
    if target := text(annotations, CO_SCHEDULED_NODE):
        yield f"target node at creation: {target}{' (the pod runs there)' if target == node else ''}"


def describe_state(status: Status) -> Iterator[str]:
    """Describe where a VM is relative to its storage."""
    if status.machine.paused:
        yield "the VM is paused"
    if status.machine.migrating:
        yield "a live migration is in progress"
    words = f"{status.state}, {status.reason}" if status.reason else f"{status.state}"
    served = f": {status.storage_node} serves claim {status.claim}" if status.storage_node else ""
    yield f"{words}{served}"
    if status.start:
        yield f"if it started now: {if_started(status.start)}"
        if status.start.stopped:
            yield "below, the VM has stopped, and with it the share-managers that only this VM uses"


def describe_steps(
    trace: Trace, assumed: Collection[Reason], catalog: Catalog, settings: Settings, request: JsonObject
) -> Iterator[Line]:
    """Yield the lines for each step of a decision. The pod breaks the `assumed` rules, and the steps ignore that."""
    yield _answer("the request creates a pod", None if trace.rules else SENTENCES[Reason.NOT_A_POD_CREATION])
    if trace.rules:
        yield from _rules(trace, assumed)
    if trace.claims:
        yield Line("Which nodes serve the claims?", level=0)
    for finding in trace.claims:
        yield from _claim_path(finding, namespace_of(request), catalog, settings)
    if trace.consumers is not None:
        yield Line("Which VMs use the volume?", level=0)
        volume = text(request, "object", "metadata", "labels", VOLUME_LABEL)
        yield from _volume_consumers(volume, trace.consumers, catalog)
        yield from (Line(f"the pod prefers to avoid {node}", NEUTRAL, 2) for node in sorted(trace.avoided))
    if trace.choice:
        yield Line("Which node is the target?", level=0)
        yield from _votes(trace.choice, trace)
    if trace.leads_elsewhere:
        yield _answer("the migration may go to the share-manager's node", SENTENCES[Reason.MIGRATION_TARGET])
    for candidate in trace.candidates:
        yield from _node(candidate, trace)


def _rules(step: Trace, assumed: Collection[Reason]) -> Iterator[Line]:
    is_share_manager = step.rules is STEERING_RULES
    kind = "yes, so it follows its VM" if is_share_manager else "no"
    yield Line(f"share-manager pod: {kind}", NEUTRAL)
    for rule in step.rules:
        if rule.reason in assumed or rule.reason is step.broken:
            yield _answer(rule.question, SENTENCES[rule.reason])
        elif rule.reason is Reason.NOT_OPTED_IN:
            yield Line(f"{rule.question}: {OPT_IN_DETAILS.get(step.opted_in_by, OBSERVED)}", YES)
        else:
            yield Line(rule.question, YES)
        if rule.reason is step.broken:
            return
    if assumed:
        yield Line(f"the next steps assume that the pod is {_eligible(assumed)}", NEUTRAL)


def _eligible(broken: Iterable[Reason]) -> str:
    words = {Reason.NOT_OPTED_IN: "opted in", Reason.MIGRATION_TARGET: "not a live-migration target"}
    return " and ".join(words[reason] for reason in broken)


def describe_decision(injection: Injection, settings: Settings, assumed: Assumed | None = None) -> Iterator[Line]:
    """Yield the lines for the decision, the effect of its patch, and the warnings."""
    decision = injection.decision
    yield Line("Decision", level=0)
    yield Line(f"{decision.outcome}, {decision.reason}: {decision.message}")
    if assumed:
        would_be = assumed.injection.decision
        yield Line(f"if {_eligible(assumed.broken)}: {would_be.outcome}, {would_be.reason}: {would_be.message}")
    yield Line(f"Patch: {_patch_effect(injection, settings)}")
    for warning in injection.warnings:
        if decision.message[:30] not in warning:  # the decision line above has the full text
            yield Line(f"Warning: {warning}")


def describe_advice(advice: Iterable[str]) -> Iterator[Line]:
    """Yield the lines of advice."""
    yield Line("What to do", level=0)
    yield from map(Line, advice)


def _answer(question: str, failure: str | None, *, decisive: bool = True) -> Line:
    mark = NO if failure else YES
    return Line(f"{question}: {failure}" if failure else question, mark if decisive else f"({mark})")


def _claim_path(finding: ClaimFinding, namespace: str, catalog: Catalog, settings: Settings) -> Iterator[Line]:
    claim = catalog.claim(namespace, finding.claim)
    path = [f"claim {finding.claim}"]
    if claim and claim.volume_name:
        path.append(f"PV {claim.volume_name}{'' if catalog.volume(claim.volume_name) else ' (unknown)'}")
    if finding.volume:
        path.append(f"volume {finding.volume}")
    yield Line(" → ".join(path), NEUTRAL)
    if finding.volume:
        yield from _servers(finding.volume, catalog, settings.longhorn_namespace)
    if finding.reason:
        mark = NEUTRAL if finding.reason in COLD_REASONS else NO
        yield Line(f"{finding.reason}. {ADVICE[finding.reason]}", mark, 2)
    if finding.node and finding.reason:
        yield Line(
            f"{finding.node} runs other VMs of the volume, so the webhook steers the share-manager there", NEUTRAL, 2
        )
    elif finding.node:
        yield Line(f"served by {finding.node} (source: {finding.source})", YES, 2)


def _servers(volume: str, catalog: Catalog, longhorn_namespace: str) -> Iterator[Line]:
    for pod in catalog.share_manager_pods(longhorn_namespace, volume):
        yield Line(f"share-manager pod {pod.name}: {_location(pod)}", NEUTRAL, 2)
    if manager := catalog.share_manager(longhorn_namespace, volume):
        state, owner = manager.state or "no state yet", manager.owner or "no node"
        deleting = ", being deleted" if manager.deleting else ""
        yield Line(f"ShareManager: {state}, owned by {owner}{deleting}", NEUTRAL, 2)


def _location(pod: Pod) -> str:
    location = f"on {pod.node}" if pod.node else "not bound to a node"
    return location if pod.alive else f"{location}, terminating or not running"


def _volume_consumers(volume: str, consumers: Collection[Pod], catalog: Catalog) -> Iterator[Line]:
    pvs = list(catalog.volumes_by_handle(volume))
    for pv in pvs:
        claim = f"claim {'/'.join(pv.claim)}" if pv.claim else "no claimRef"
        yield Line(f"volume {volume} → PV {pv.name} → {claim}", NEUTRAL)
    if not pvs:
        yield Line(f"volume {volume} → no known PV", NEUTRAL)
    mounting = {pod.key: pod for claim in claims_of(volume, catalog) for pod in catalog.mounting_pods(*claim)}
    for pod in mounting.values():
        has_vote = pod in consumers
        exclusion = "" if has_vote else "; no vote: the pod must be opted in, bound, and Pending or Running"
        yield Line(f"{'/'.join(pod.key)}: {_location(pod)}{exclusion}", YES if has_vote else NO, 2)
    if not mounting:
        yield Line("no virt-launcher pod mounts the volume", NO, 2)


def _votes(choice: Choice, trace: Trace) -> Iterator[Line]:
    votes: defaultdict[str, list[str]] = defaultdict(list)
    for finding in trace.claims:
        if finding.node:
            votes[finding.node].append(f"claim {finding.claim}")
    for pod in trace.consumers or ():
        votes[pod.node].append(f"VM pod {'/'.join(pod.key)}")
    for node in sorted(votes, key=lambda name: (choice.node, *choice.others, name).index(name)):
        has_vote = node in (choice.node, *choice.others)
        mark = YES if node == choice.node else NO
        yield Line(f"{node}: {', '.join(votes[node])}{'' if has_vote else ' (no vote)'}", mark)


def _node(candidate: Candidate, step: Trace) -> Iterator[Line]:
    """Yield the lines for all checks on a node, also those after the first failure: operators fix each."""
    candidate.comparisons.left = MAX_COMPARISONS  # the decision may have used up those of its review
    failed, in_force = False, True
    yield Line(f"Can {candidate.node_name} run the pod?", level=0)
    for check in dict.fromkeys((*step.checks, *PIN_CHECKS)):
        found = first_failed_check(candidate, (check,))
        detail = found.detail if found else None
        if detail or not check.quiet:
            decisive = check in step.checks and not failed
            in_force = in_force and decisive
            yield _answer(check.question, f"{candidate.node_name} {detail}" if detail else None, decisive=decisive)
            failed = failed or bool(decisive and detail)
    if step.contested:
        detail = f"{candidate.node_name} {step.contested}, and pinned pods wait to start there"
        yield _answer("may be preferred", detail, decisive=not failed)
        in_force = in_force and not failed
    if not in_force:
        yield Line("Parentheses mark checks that did not affect the decision.")
    if taint := untolerated_taint(candidate):
        yield Line(f"untolerated taint: {text(taint, 'key')}:{taint['effect']}", NO)
    if fits := candidate.resource_fits():
        yield Line(f"Does {candidate.node_name} have enough free resources?", level=0)
    for fit in fits:
        requested, free = format_quantity(fit.resource, fit.requested), format_quantity(fit.resource, max(fit.free, 0))
        yield Line(f"{fit.resource}: requested {requested}, free {free}", YES if fit.requested <= fit.free else NO)


def _patch_effect(injection: Injection, settings: Settings) -> str:
    if settings.action is Action.OBSERVE:
        return "none, because the webhook only observes, or is not called"
    if not injection.patch:
        return "none, the pod stays unchanged"
    decision, paths = injection.decision, [operation["path"] for operation in injection.patch]
    effects = []
    if any(path.startswith("/spec/affinity") for path in paths):
        verb = "requires and prefers" if decision.outcome is Outcome.PINNED else "prefers"
        effects.append(f"{verb} {decision.node}")
    effects.extend(
        f"sets schedulerName to {operation['value']}"
        for operation in injection.patch
        if operation["path"] == SCHEDULER_NAME_PATH
    )
    if any(path.startswith("/metadata/annotations") for path in paths):
        effects.append("records the decision in the annotations")
    return f"{', '.join(effects)} ({len(paths)} {'operation' if len(paths) == 1 else 'operations'})"
