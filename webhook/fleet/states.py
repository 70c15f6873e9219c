"""The whole fleet: the node of each VM, the node of its storage, and the decision if the VM started now.

`report`, `explain`, the metrics and the dashboard use this module, so they never disagree.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from webhook.fleet.next_pod import as_if_eligible, creation_request
from webhook.fleet.release import why_not_scheduled, why_pin_fails
from webhook.fleet.volume_users import VolumeUser, other_users
from webhook.placement.affinity import CO_SCHEDULED_NODE
from webhook.placement.catalog import Catalog
from webhook.placement.eligibility import recorded_reason
from webhook.placement.injector import without_patch
from webhook.placement.objects.facts import Pod
from webhook.placement.objects.fields import JsonObject, mapping, text
from webhook.placement.opt_in import Applicant, new_applicant, opted_in_by, stored_applicant
from webhook.placement.reasons import NEVER_SERVED_REASONS, ClaimFinding, Decision, OptedInBy, Outcome, Reason
from webhook.placement.resolve import resolve_claims
from webhook.placement.settings import Action, Settings
from webhook.placement.votes import choose, voters


class State(StrEnum):
    """Where a VM is relative to its storage."""

    TOGETHER = "Together"
    APART = "Apart"
    UNSERVED = "Unserved"
    WAITING = "Waiting"
    STOPPED = "Stopped"
    NOT_CONCERNED = "NotConcerned"


# A claim with one of these reasons never has a share-manager.


@dataclass(frozen=True, slots=True)
class Machine:
    """A VM, or a VMI without a VM.

    `applicant` decides on the opt-in of its next pod. `pod` holds the facts of the virt-launcher pod that runs the VM,
    None if none does. `hotplugged` are the claims that its hotplug pods mount. `strategy` is the VM's run strategy,
    empty if the VM is unknown, None for a VMI without a VM. The caches don't hold the rest: `manifest` is the same pod
    as the API server stores it, and `template` the pod that KubeVirt would create now; None if unknown.
    `age` is the age of the pod in seconds.
    """

    namespace: str
    name: str
    applicant: Applicant
    pod: Pod | None = None
    hotplugged: tuple[str, ...] = ()
    strategy: str | None = ""
    migrating: bool = False
    paused: bool = False
    manifest: JsonObject | None = None
    template: JsonObject | None = None
    age: float | None = None

    @property
    def is_vm(self) -> bool:
        """Return whether it is a VM. If the VM of a VMI is unknown, it counts as one: only few VMIs have none."""
        return self.strategy is not None


@dataclass(frozen=True, slots=True)
class Start:
    """The decision if the VM started or restarted now.

    `stopped_by` names the rule of eligibility that would end the decision. The decision itself ignores that rule.
    `users` are the first of the other VMs and pods that use the volumes that the target node serves. `cold` means that
    a running VM is the only user: their share-managers stop with the VM, and follow the VM at the next start. `error`
    is the exception behind an `InternalError`.
    """

    decision: Decision
    stopped_by: Reason | None = None
    cold: bool = False
    users: tuple[VolumeUser, ...] = ()
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """The state of one VM. `claim` is the claim that decides, `storage_node` the node of its share-manager.

    `reason` explains the state. `detail` adds why a pinned pod can't be scheduled, empty for all others. `start` is
    None if the next pod is unknown. `start_helps` means that a start would place the VM on the node of its storage.
    `opted_in_by` is what opts in the VM's next pod.
    """

    machine: Machine
    state: State
    reason: Reason | None = None
    claim: str | None = None
    storage_node: str | None = None
    detail: str = ""
    start: Start | None = None
    start_helps: bool = False
    opted_in_by: OptedInBy = OptedInBy.NOTHING

    @property
    def opted_in(self) -> bool:
        """Return whether the VM's next pod is opted in."""
        return self.opted_in_by is not OptedInBy.NOTHING

    @property
    def node(self) -> str | None:
        """Return the node that the VM's pod is bound to."""
        return (self.machine.pod.node if self.machine.pod else None) or None


@dataclass(frozen=True, slots=True)
class _Storage:
    findings: tuple[ClaimFinding, ...]
    claim: str | None = None
    node: str | None = None


def survey(machines: Iterable[Machine], catalog: Catalog, settings: Settings) -> Iterator[Status]:
    """Yield the status of each machine, in order."""
    return (assess(machine, catalog, settings) for machine in machines)


def assess(machine: Machine, catalog: Catalog, settings: Settings) -> Status:
    """Return the status of one machine. Without its template, the status has no start."""
    applicant = machine.applicant
    if machine.template is not None:
        applicant = new_applicant(machine.template, machine.namespace, settings)
    by = opted_in_by(applicant, catalog, settings)
    storage = _storage(machine, catalog, settings)
    status = replace(_state(machine, storage, by, catalog, settings), opted_in_by=by)
    if machine.template is None:
        return status
    start = _start(machine, storage, by, catalog, settings)
    if status.reason is None:
        status = replace(status, reason=start.decision.reason)
    if machine.pod is None:
        served = (each.claim for each in voters(start.decision.claims) if each.node == start.decision.node)
        status = replace(status, storage_node=start.decision.node, claim=next(served, None))
    return replace(status, start=start, start_helps=_helps(start, settings))


def _helps(start: Start, settings: Settings) -> bool:
    if settings.action is Action.OBSERVE:  # or the webhook is not called, see `Webhook.predicting`
        return False
    follows = start.cold or start.decision.reason is Reason.COLD_START
    return start.decision.outcome is Outcome.PINNED or (follows and settings.steering)


def _storage(machine: Machine, catalog: Catalog, settings: Settings) -> _Storage:
    """Find the claim that decides. A hotplugged claim decides only if no claim of the pod itself has a node.

    Its rank counts beside the claims of the pod: an ISO that other VMs mount too doesn't decide for a VM with a disk.
    """
    pod = machine.pod
    if pod is None:
        return _Storage(())
    findings: tuple[ClaimFinding, ...] = ()
    resolved = _resolved(pod.claims, pod, catalog, settings)
    hotplugged = _resolved((*pod.claims, *machine.hotplugged), pod, catalog, settings)[len(pod.claims) :]
    for own in (resolved, hotplugged):
        findings += tuple(finding for finding in own if finding.decides)
        choice = choose(own)
        if choice and choice.certain:
            claim = next(each.claim for each in voters(own) if each.node == choice.node and not each.reason)
            return _Storage(findings, claim, choice.node)
    return _Storage(findings)


def _resolved(names: tuple[str, ...], pod: Pod, catalog: Catalog, settings: Settings) -> tuple[ClaimFinding, ...]:
    return resolve_claims(names, pod.namespace, pod.vmi_uid, pod.deciding_claim, catalog, settings)


def _state(machine: Machine, storage: _Storage, by: OptedInBy, catalog: Catalog, settings: Settings) -> Status:
    pod = machine.pod
    if pod is None:
        return Status(machine, State.STOPPED)
    if not storage.findings:
        return Status(machine, State.NOT_CONCERNED, Reason.NO_CLAIMS)
    concerned = [finding for finding in storage.findings if finding.reason not in NEVER_SERVED_REASONS]
    if not concerned:
        first = storage.findings[0]
        return Status(machine, State.NOT_CONCERNED, first.reason, first.claim)
    claim, node = storage.claim or concerned[0].claim, storage.node
    if not pod.node:
        reason, detail = _why_waiting(machine, pod, catalog, settings)
        return Status(machine, State.WAITING, reason, claim, node, detail)
    if node is None:
        return Status(machine, State.UNSERVED, concerned[0].reason, claim)
    if node == pod.node:
        return Status(machine, State.TOGETHER, Reason.CO_SCHEDULED, claim, node)
    return Status(machine, State.APART, _why_apart(machine, pod, storage, by, catalog, settings), claim, node)


def _why_waiting(machine: Machine, pod: Pod, catalog: Catalog, settings: Settings) -> tuple[Reason | None, str]:
    if machine.manifest is None:
        return None, ""
    if detail := why_not_scheduled(machine.manifest, machine.age):
        return Reason.NOT_SCHEDULED, detail
    obstacle = why_pin_fails(machine.manifest, pod.namespace, catalog, settings, settings.release_after)
    if obstacle:
        return obstacle.reason, obstacle.detail
    return recorded_reason(machine.manifest), ""


def _why_apart(  # noqa: PLR0913, PLR0917 (what its caller knows)
    machine: Machine, pod: Pod, storage: _Storage, by: OptedInBy, catalog: Catalog, settings: Settings
) -> Reason | None:
    if opted_in_by(stored_applicant(pod), catalog, settings) is OptedInBy.NOTHING:
        return Reason.NOT_OPTED_IN if by is OptedInBy.NOTHING else Reason.NOT_REVIEWED
    if not pod.claims:  # all claims are hotplugged
        return Reason.NO_CLAIMS
    if machine.manifest is None:
        return None
    reason = recorded_reason(machine.manifest)
    if reason is not None and text(machine.manifest, "metadata", "annotations", CO_SCHEDULED_NODE) == pod.node:
        still_serves = any(finding.node == pod.node and not finding.reason for finding in storage.findings)
        return Reason.VOTES_CHANGED if still_serves else Reason.SHARE_MANAGER_MOVED
    if reason in (Reason.CO_SCHEDULED, Reason.COLD_START):  # after a cold start, the share-manager was scheduled later
        return Reason.SCHEDULED_ELSEWHERE
    if pod.is_migration_target:
        return Reason.MIGRATION_TARGET
    return reason or Reason.NOT_REVIEWED


def _start(machine: Machine, storage: _Storage, by: OptedInBy, catalog: Catalog, settings: Settings) -> Start:
    template, broken = as_if_eligible(mapping(machine.template), by, settings)
    injection = without_patch(creation_request(template, settings), catalog, settings)
    served = _served_claims(storage, injection.decision)
    vmi = machine.pod.vmi_uid if machine.pod else ""
    users = other_users(served, machine.namespace, vmi, catalog)
    cold = storage.node is not None and not users
    return Start(injection.decision, next(iter(broken), None), cold, users, injection.error)


def _served_claims(storage: _Storage, decision: Decision) -> list[ClaimFinding]:
    """Return the claims that the target node serves. Without a target, such as for a hotplugged claim, its node now."""
    for claims, node in ((decision.claims, decision.node), (storage.findings, storage.node)):
        if found := [each for each in claims if each.node == node and each.decides and not each.reason]:
            return found
    return []
