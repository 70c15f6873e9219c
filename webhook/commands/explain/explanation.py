"""The explanation of a pod or VM as a JSON object: its node, the steps of the decision on its next pod, and advice.

Each step is a section: a question with its findings.
"""

from collections.abc import Collection, Iterator

from msgspec import Struct
from msgspec.structs import replace

from webhook.catalog.inventory import Inventory
from webhook.catalog.kinds import read_pod
from webhook.catalog.store import Store
from webhook.commands.admission_requests import as_json, described, pod_name
from webhook.commands.report.document import describe
from webhook.commands.report.table import state_words
from webhook.fleet.forecast_catalog import forecast
from webhook.fleet.machine import Machine
from webhook.fleet.relocation.rules import Surroundings
from webhook.fleet.rendering.next_pod import before_scheduling
from webhook.fleet.simulation.plan import plan_move
from webhook.fleet.states import assess, assess_pod, excluded_by
from webhook.fleet.webhook import Webhook
from webhook.placement import wording
from webhook.placement.affinity import DECISION
from webhook.placement.catalog import Catalog
from webhook.placement.eligibility import ineligible_reason
from webhook.placement.guard.candidate import Candidate
from webhook.placement.guard.comparison_limit import MAX_COMPARISONS
from webhook.placement.guard.feasibility import PIN_CHECKS, first_failed_check, untolerated_taint
from webhook.placement.injector import inject, predict
from webhook.placement.objects.facts import Pod
from webhook.placement.objects.fields import JsonObject, text
from webhook.placement.objects.longhorn import VOLUME_LABEL
from webhook.placement.objects.pod import Manifest
from webhook.placement.objects.pod_object import PodObject
from webhook.placement.objects.resources import format_quantity
from webhook.placement.reasons import ClaimFinding, Decision, OptedInBy, Outcome, Reason
from webhook.placement.review import Review, review_of
from webhook.placement.settings import MigrationTargets, Settings
from webhook.placement.trace import Trace
from webhook.placement.votes import Choice
from webhook.placement.voting_consumers import claims_of
from webhook.placement.wording import ADVICE, SENTENCES, unchanged

FOLLOWED = (
    "No action needed: the webhook leaves such a pod unchanged, and steers the next share-manager pod to its node."
)


class Finding(Struct, frozen=True):
    """One line."""

    text: str
    holds: bool | None = None  # the answer to a question; None if the line answers none
    decisive: bool = True  # False if the answer did not affect the decision


class Section(Struct, frozen=True):
    """A heading and the lines below it."""

    title: str
    findings: tuple[Finding, ...]


def explain_pod(pod: PodObject, catalog: Store, settings: Settings) -> JsonObject:
    """Explain an existing pod that runs no VM."""
    namespace = pod.metadata.key[0]
    manifest = Manifest(pod, namespace)
    created = Manifest(before_scheduling(pod), namespace)
    found = explain_review(review_of(created, settings), catalog, settings)
    fact = read_pod(pod)
    placement = [*_placement(manifest)]
    if fact and settings.steering and (followed := assess_pod(fact, catalog, settings)):
        served = f"which {followed.storage_node} serves" if followed.storage_node else "which no node serves now"
        placement.append(
            f"opted in: {followed.state}. The share-manager of claim {followed.claim}, {served}, follows it"
        )
        found["advice"] = [FOLLOWED]
    return found | {"steps": [Section("Where is the pod?", tuple(map(Finding, placement))), *found["steps"]]}


def explain_machine(machine: Machine, inventory: Inventory, webhook: Webhook) -> JsonObject:
    """Explain where a VM is, and the decision on its next pod. Without that pod, there is no decision."""
    settings = webhook.settings
    around = Surroundings(webhook.predicting)
    catalog = inventory.store
    status = assess(machine, catalog, around.settings)
    vm = describe(status, plan_move(status, around, catalog), inventory.volume_data())
    stopped = status.start.stopped if status.start else ()
    placement = _placement(machine.manifest) if machine.manifest else ("no pod runs the VM",)
    findings = (*placement, *_state(vm, stops=bool(stopped)))
    found: JsonObject = {"steps": [], "decision": None, "ifEligible": None, "patch": None, "warnings": []}
    if machine.template is not None:
        found = explain_review(review_of(machine.template, settings), forecast(catalog, stopped), settings)
    where = Section("Where is the VM?", tuple(map(Finding, findings)))
    own = {"name": "/".join(machine.key), "vm": vm, "steps": [where, *found["steps"]], "advice": [vm["advice"]]}
    return found | own


def explain_review(review: Review, catalog: Catalog, settings: Settings) -> JsonObject:
    """Explain the decision on a review.

    `ifEligible` is the decision if no rule of eligibility ended it; None if no rule does.
    """
    trace = Trace()
    injection = inject(review, catalog, settings, trace)
    by, namespace = injection.decision.opted_in_by, review.manifest.namespace
    ignored = _ignorable(review, by, settings)
    assumed = None
    if injection.decision.reason in ignored:
        assumed = _if_eligible(review, by, ignored, catalog, settings, trace)
    sections = list(_steps(trace, ignored if assumed else (), review, catalog, settings))
    key = settings.opt_in_annotations[0]
    advice = [each.text for each in wording.advice(injection.decision, key)]
    if assumed and assumed.outcome is Outcome.UNCHANGED:
        advice += [each.text for each in wording.advice(assumed, key)]
    if injection.decision.reason is Reason.NOT_OPTED_IN and (
        setting := excluded_by(catalog.namespace(namespace), settings)
    ):
        advice = [f"Nothing opts in VMs of namespace {namespace}: {setting} excludes it."]
    return as_json(injection) | {
        "name": pod_name(review),
        "vm": None,
        "steps": sections,
        "ifEligible": described(assumed) if assumed else None,
        "advice": list(dict.fromkeys(advice)),
    }


def _ignorable(review: Review, by: OptedInBy, settings: Settings) -> tuple[Reason, ...]:
    """Return the rules that the pod breaks and that `ifEligible` ignores."""
    migrates = review.manifest.is_migration_target and settings.migration_targets is not MigrationTargets.PREFER
    broken = {Reason.NOT_OPTED_IN: by is OptedInBy.NOTHING, Reason.MIGRATION_TARGET: migrates}
    return tuple(reason for reason, is_broken in broken.items() if is_broken)


def _if_eligible(  # noqa: PLR0913, PLR0917 (what the decision depends on)
    review: Review, by: OptedInBy, ignored: Collection[Reason], catalog: Catalog, settings: Settings, trace: Trace
) -> Decision:
    """Return the decision if the `ignored` rules held. The next rule that doesn't hold ends it."""
    rules = tuple(rule for rule in trace.rules if rule.reason not in ignored)
    trace.broken = ineligible_reason(review.manifest, by, settings, rules)
    if trace.broken:
        return replace(unchanged(trace.broken, review.mode), opted_in_by=by)
    return predict(review.manifest.as_start(), by, catalog, settings, trace)


def _placement(manifest: Manifest) -> Iterator[str]:
    """Describe where a pod is, the scheduler's report, and the webhook's decision at its creation."""
    node, status = manifest.spec.node_name, manifest.pod.status
    where = f"on {node}" if node else "not bound to a node"
    yield f"pod {manifest.metadata.name}: {status.phase or 'no phase'}, {where}"
    scheduled = status.condition("PodScheduled")
    if scheduled.status == "False":
        yield f"the scheduler reports: {scheduled.message}"
    yield f"decision at creation: {text(manifest.annotations, DECISION) or 'none (no annotation)'}"


def _state(vm: JsonObject, *, stops: bool) -> Iterator[str]:
    """Describe where a VM of the report is relative to its storage. `stops`: a share-manager stops with the VM."""
    words = ", ".join(filter(None, (state_words(vm), vm["reason"])))
    data = f" (dataLocality: {vm['data']['text']})" if vm["data"]["text"] else ""
    yield f"{words}: {vm['storageNode']} serves claim {vm['claim']}{data}" if vm["storageNode"] else words
    if vm["ifStarted"]:
        yield f"if it started now: {vm['ifStarted']['text']}"
    if stops:
        yield "below, the VM has stopped, and with it the share-managers that only this VM uses"


def _steps(
    trace: Trace, ignored: Collection[Reason], review: Review, catalog: Catalog, settings: Settings
) -> Iterator[Section]:
    """Yield a section for each step of a decision. The pod breaks the `ignored` rules, and the steps ignore that."""
    if trace.rules:
        yield Section("Does the webhook handle the new pod?", tuple(_rules(trace, ignored)))
    if trace.claims:
        namespace = review.manifest.namespace
        found = [line for each in trace.claims for line in claim_findings(each, namespace, catalog, settings)]
        yield Section("Which nodes serve the claims?", tuple(found))
    if trace.consumers is not None:
        volume = review.manifest.labels.get(VOLUME_LABEL, "")
        yield Section("Which pods use the volume?", tuple(_volume_consumers(volume, trace, catalog)))
    if trace.choice:
        yield Section("Which node is the target?", tuple(_target(trace, trace.choice)))
    for candidate in trace.candidates:
        yield Section(f"Can {candidate.node_name} run the pod?", tuple(_node(candidate, trace)))


def _rules(trace: Trace, ignored: Collection[Reason]) -> Iterator[Finding]:
    if trace.opted_in_by is OptedInBy.NOTHING:  # a webhook that only observes evaluates every VM
        ignored = {*ignored, Reason.NOT_OPTED_IN}
    for rule in trace.rules:
        broken = rule.reason in ignored or rule.reason is trace.broken
        yield Finding(f"{rule.question}: {SENTENCES[rule.reason]}" if broken else rule.question, not broken)
        if rule.reason is trace.broken:
            return


def claim_findings(finding: ClaimFinding, namespace: str, catalog: Catalog, settings: Settings) -> Iterator[Finding]:
    """Yield what leads from a claim to its node, or why it has none."""
    claim = catalog.claim(namespace, finding.claim)
    longhorn = settings.longhorn_namespace
    path = ["claim " + finding.claim, *([f"PV {claim.volume_name}"] if claim and claim.volume_name else [])]
    yield Finding(" → ".join([*path, *([f"volume {finding.volume}"] if finding.volume else [])]))
    if finding.volume and (pod := catalog.share_manager_pod(longhorn, finding.volume)):
        yield Finding(f"share-manager pod {pod.name}: {_location(pod)}")
    if finding.volume and (manager := catalog.share_manager(longhorn, finding.volume)):
        deleting = ", being deleted" if manager.deleting else ""
        yield Finding(f"ShareManager: {manager.state or 'no state'}, owned by {manager.owner or 'no node'}{deleting}")
    if finding.reason:
        holds = None if finding.reason is Reason.NO_SHARE_MANAGER else False
        which = f": the share-manager {finding.detail}" if finding.detail else ""
        # What helps depends on what creates the claim: see the advice on the VM.
        is_missing = finding.reason is Reason.CLAIM_NOT_FOUND
        words = ": the claim does not exist" if is_missing else f"{which}. {ADVICE[finding.reason]}"
        yield Finding(f"{finding.reason}{words}", holds)
        if finding.node:
            yield Finding(f"{finding.node} runs other pods of the volume, which the share-manager will follow")
    elif finding.node:
        vote = "" if finding.decides else "; no vote"
        yield Finding(f"served by {finding.node} (source: {finding.source}){vote}", holds=True)


def _location(pod: Pod) -> str:
    location = f"on {pod.node}" if pod.node else "not bound to a node"
    return location if pod.alive else f"{location}, terminating or not running"


def _volume_consumers(volume: str, trace: Trace, catalog: Catalog) -> Iterator[Finding]:
    for pv in catalog.volumes_by_handle(volume):
        claim = f"claim {'/'.join(pv.claim)}" if pv.claim else "no claimRef"
        yield Finding(f"volume {volume} → PV {pv.name} → {claim}")
    consumers = trace.consumers or ()
    queries = (catalog.mounting_pods, catalog.other_mounting_pods)
    mounting = {pod.key: pod for query in queries for claim in claims_of(volume, catalog) for pod in query(*claim)}
    for pod in mounting.values():
        votes = pod in consumers
        only_vms = any(each.belongs_to_vm for each in consumers) and not pod.belongs_to_vm
        must = "VMs decide" if only_vms else "the pod must be opted in, bound, and Pending or Running"
        yield Finding(f"{'/'.join(pod.key)}: {_location(pod)}{'' if votes else f'; no vote: {must}'}", votes)
    for node in sorted(trace.avoided):
        yield Finding(f"the pod prefers to avoid {node}")


def _target(trace: Trace, choice: Choice) -> Iterator[Finding]:
    yield Finding(choice.node, holds=True)
    yield from (Finding(node, holds=False) for node in choice.others)
    if trace.leads_elsewhere:
        yield Finding(SENTENCES[Reason.MIGRATION_TARGET], holds=False)


def _node(candidate: Candidate, trace: Trace) -> Iterator[Finding]:
    """Yield the findings of all checks on a node, also those after the first failure: operators fix each."""
    candidate.comparisons.left = MAX_COMPARISONS  # the decision may have used up those of its review
    failed = False
    for check in dict.fromkeys((*trace.checks, *PIN_CHECKS)):
        found = first_failed_check(candidate, (check,))
        if found or not check.quiet:
            decisive = check in trace.checks and not failed
            words = f"{check.question}: {candidate.node_name} {found.detail}" if found else check.question
            yield Finding(words, not found, decisive)
            failed = failed or bool(decisive and found)
    if trace.contested:
        problem = f"{candidate.node_name} {trace.contested}, and pinned pods wait to start there"
        yield Finding(problem, holds=False, decisive=not failed)
    if taint := untolerated_taint(candidate):
        yield Finding(f"untolerated taint: {taint.key}:{taint.effect}", holds=False)
    for fit in candidate.resource_fits():
        requested, free = (format_quantity(fit.resource, each) for each in (fit.requested, max(fit.free, 0)))
        yield Finding(f"{fit.resource}: requested {requested}, free {free}", fit.requested <= fit.free)
