"""The whole fleet: the node of each VM, the node of its storage, and the decision if the VM started now.

`report`, `explain`, the metrics and the dashboard use this module, so they never disagree.
"""

from msgspec import Struct
from msgspec.structs import replace

from webhook.fleet.machine import Machine, State, Status
from webhook.fleet.release import why_not_scheduled, why_pin_fails
from webhook.fleet.starts import forecast_start
from webhook.placement.affinity import CO_SCHEDULED_NODE, recorded_reason
from webhook.placement.catalog import Catalog
from webhook.placement.objects.facts import Namespace, Pod
from webhook.placement.objects.selectors import selects
from webhook.placement.opt_in import opted_in_by, opts_out
from webhook.placement.reasons import NEVER_SERVED_REASONS, OptedInBy, Reason
from webhook.placement.resolve import resolve, resolve_claims
from webhook.placement.settings import Settings
from webhook.placement.votes import choose, voters

NAMESPACE_NAME = "kubernetes.io/metadata.name"  # the label with the name of a namespace


class Workload(Struct, frozen=True):
    """An opted-in pod that runs no VM. Its state is like a VM's."""

    pod: Pod
    state: State
    claim: str  # the claim that decides
    volume: str  # its Longhorn volume
    storage_node: str | None  # the node of its share-manager


def assess_pod(pod: Pod, catalog: Catalog, settings: Settings) -> Workload | None:
    """Return the state of a pod, None if no share-manager follows it."""
    bound = pod.claims and pod.node and pod.alive and not pod.belongs_to_vm
    if not bound or opted_in_by(pod, catalog, settings) is OptedInBy.NOTHING:
        return None
    claims = [resolve(name, pod.namespace, catalog, settings) for name in pod.claims]
    served = [each for each in claims if each.reason is None] or [each for each in claims if each.volume]
    choice = choose(served)
    node = choice.node if choice else None
    deciding = next((each for each in served if node in (None, each.node)), None)
    state = State.TOGETHER if node == pod.node else State.APART
    state = State.UNSERVED if node is None else state
    return Workload(pod, state, deciding.claim, deciding.volume or "", node) if deciding else None


def assess(machine: Machine, catalog: Catalog, settings: Settings) -> Status:
    """Return the status of one machine. Without its template, the status has no start."""
    applicant = machine.template or machine.applicant
    by = opted_in_by(applicant, catalog, settings)
    opted_out = by is OptedInBy.NOTHING and opts_out(applicant, catalog, settings)
    key = settings.opt_in_annotations[0]
    excluded = excluded_by(catalog.namespace(machine.namespace), settings)
    status = Status(machine, State.STOPPED, opted_in_by=by, opted_out=opted_out, excluded_by=excluded, opt_in_key=key)
    if machine.pod is not None:
        status = _of_pod(status, machine.pod, catalog, settings)
        runs_opted_in = opted_in_by(machine.pod, catalog, settings) is not OptedInBy.NOTHING
        status = replace(status, opt_in_pending=status.opted_in and bool(machine.pod.claims) and not runs_opted_in)
    if machine.template is None:
        return status
    start = forecast_start(status, catalog, settings)
    if machine.pod is None:
        served = (each.claim for each in voters(start.decision.claims) if each.node == start.decision.node)
        status = replace(status, storage_node=start.decision.node, claim=next(served, None))
    return replace(status, start=start, reason=status.reason or start.decision.reason)


def _of_pod(status: Status, pod: Pod, catalog: Catalog, settings: Settings) -> Status:
    status = _with_storage(status, pod, catalog, settings)
    deciding = [each for each in status.claims if each.decides]
    concerned = [each for each in deciding if each.reason not in NEVER_SERVED_REASONS]
    if not concerned:
        first = next(iter(deciding or status.claims), None)
        if first is None:
            return replace(status, state=State.NOT_CONCERNED, reason=Reason.NO_CLAIMS, claim=None)
        reason = first.reason if deciding else Reason.SHARED_CLAIM_ONLY
        return replace(status, state=State.NOT_CONCERNED, reason=reason, claim=first.claim)
    status = replace(status, claim=status.claim or concerned[0].claim)
    if not pod.node:
        reason, detail = _why_waiting(status.machine, catalog, settings)
        return replace(status, state=State.WAITING, reason=reason, detail=detail)
    if status.storage_node is None:
        return replace(status, state=State.UNSERVED, reason=concerned[0].reason)
    if status.storage_node == pod.node:
        return replace(status, state=State.TOGETHER, reason=Reason.CO_SCHEDULED)
    return replace(status, state=State.APART, reason=_why_apart(status, pod, catalog, settings))


def _with_storage(status: Status, pod: Pod, catalog: Catalog, settings: Settings) -> Status:
    """Find the claim that decides. A hotplugged claim decides only if no claim of the pod itself has a node.

    Its rank counts beside the claims of the pod: an ISO that other VMs mount too doesn't decide for a VM with a disk.
    """
    rest = pod.namespace, pod.vmi_uid, pod.deciding_claim, catalog, settings, status.opted_in_by
    own = resolve_claims(pod.claims, *rest)
    more = status.machine.hotplugged
    hotplugged = resolve_claims((*pod.claims, *more), *rest)[len(own) :] if more else ()
    status = replace(status, claims=(*own, *hotplugged))
    for claims in (own, hotplugged):
        choice = choose(claims)
        if choice and choice.certain:
            claim = next(each.claim for each in voters(claims) if each.node == choice.node and not each.reason)
            return replace(status, claim=claim, storage_node=choice.node)
    return status


def _why_waiting(machine: Machine, catalog: Catalog, settings: Settings) -> tuple[Reason | None, str]:
    if machine.manifest is None:
        return None, ""
    if detail := why_not_scheduled(machine.manifest, machine.age):
        return Reason.NOT_SCHEDULED, detail
    obstacle = why_pin_fails(machine.manifest, catalog, settings, settings.release_after)
    if obstacle:
        return obstacle.reason, obstacle.detail
    return recorded_reason(machine.manifest.annotations), ""


def _why_apart(status: Status, pod: Pod, catalog: Catalog, settings: Settings) -> Reason | None:
    manifest = status.machine.manifest
    if opted_in_by(pod, catalog, settings) is OptedInBy.NOTHING:
        return Reason.NOT_REVIEWED if status.opted_in else Reason.NOT_OPTED_IN
    if not pod.claims:  # all claims are hotplugged
        return Reason.NO_CLAIMS
    if manifest is None:
        return None
    reason = recorded_reason(manifest.annotations)
    if reason is not None and manifest.annotations.get(CO_SCHEDULED_NODE) == pod.node:
        still_serves = any(each.node == pod.node and each.decides and not each.reason for each in status.claims)
        return Reason.VOTES_CHANGED if still_serves else Reason.SHARE_MANAGER_MOVED
    if reason in (Reason.CO_SCHEDULED, Reason.COLD_START):  # after a cold start, the share-manager was scheduled later
        return Reason.SCHEDULED_ELSEWHERE
    if pod.is_migration_target:
        return Reason.MIGRATION_TARGET
    return reason or Reason.NOT_REVIEWED


def excluded_by(namespace: Namespace | None, settings: Settings) -> str:
    """Return the setting by which nothing opts in the VMs of a namespace, empty without one, or if it is unknown."""
    labels = namespace.labels if namespace else {}
    excluding = (each for each in settings.namespace_selector if namespace and not selects((each,), labels))
    if (requirement := next(excluding, None)) is None:
        return ""
    by_name = requirement.key == NAMESPACE_NAME and requirement.operator == "NotIn"
    return f"webhook.{'excludedNamespaces' if by_name else 'namespaceSelector'}"
