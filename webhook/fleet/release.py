"""Why a pinned pod that stays Pending can't be scheduled, and why the webhook may not delete it.

A pod's node affinity can't be changed later. So the only way to release a VM from its pin is to delete the Pending pod:
KubeVirt then starts the VM again.
"""

from collections.abc import Collection
from typing import NamedTuple

from webhook.placement import resolve
from webhook.placement.catalog import Catalog
from webhook.placement.eligibility import MODE_ANNOTATION
from webhook.placement.guard.candidate import Candidate
from webhook.placement.guard.feasibility import CHECKS, GUARD_REASONS, FailedCheck, first_failed_check
from webhook.placement.guard.pins import pinned_by_webhook
from webhook.placement.objects.facts import MAX_START_FAILURES, VirtualMachine, VirtualMachineInstance
from webhook.placement.objects.pod import Manifest
from webhook.placement.reasons import Mode, Reason
from webhook.placement.settings import Settings
from webhook.placement.votes import choose

# Seconds. The scheduler may wait for more than the guard knows, such as the victims of a preemption, which have a grace
# period, or the cluster autoscaler.
PENDING_LIMIT = 300
# Seconds. A scheduler evaluates a new pod within milliseconds. One that is being upgraded is away for longer.
UNSCHEDULED_AFTER = 30
MAX_RELEASES = MAX_START_FAILURES  # within an hour

# These checks don't show that the pin can't hold: they only keep a new pod from being pinned.
_NO_OBSTACLES = frozenset({Reason.RELEASED, Reason.START_FAILED})
RELEASE_REASONS = (
    *(reason for reason in GUARD_REASONS if reason not in _NO_OBSTACLES and reason is not Reason.CACHE_STALE),
    Reason.SHARE_MANAGER_MOVED,
    Reason.PENDING_TOO_LONG,
)
# The reasons of pinned pods that stay Pending.
PENDING_REASONS = (*RELEASE_REASONS, Reason.NOT_SCHEDULED)


class Loss(NamedTuple):
    """The loss of an unschedulable pinned pod: its node, and when this replica saw it first and last, in seconds."""

    node: str
    seen: float
    at: float


def why_pin_fails(manifest: Manifest, catalog: Catalog, settings: Settings, seconds: float) -> FailedCheck | None:
    """Return why the pod can't be scheduled on the node that it is pinned to, or None if the pin may still hold.

    `seconds` is how long the scheduler has not found a node for the pod. None for a pod that the webhook did not pin,
    for a bound pod, and as long as the caches are stale. A pod that the scheduler has nominated for the node waits for
    the victims of its preemption until `PENDING_LIMIT`: released earlier, it would leave them to die for nothing.
    """
    node = pinned_by_webhook(manifest)
    # In the mode `preferred`, the webhook requires no node: the user does.
    user_pinned = manifest.annotations.get(MODE_ANNOTATION) == Mode.PREFERRED
    if not node or user_pinned or manifest.spec.node_name or seconds < settings.release_after:
        return None
    if manifest.pod.status.nominated_node_name == node and seconds <= PENDING_LIMIT:
        return None
    claims = resolve.resolve_all(manifest, catalog, settings)
    checks = [check for check in CHECKS if check.reason not in _NO_OBSTACLES]
    obstacle = first_failed_check(Candidate(manifest, node, catalog), checks)
    if obstacle and obstacle.reason is Reason.CACHE_STALE:
        return None
    choice = choose(claims)
    # If the node still serves a claim, only the votes have changed: another node serves more claims now.
    still_serves = any(claim.node == node and claim.decides for claim in claims)
    if obstacle is None and choice and choice.certain and not still_serves:
        detail = f"no longer runs the share-manager, which is now on {choice.node}"
        return FailedCheck(Reason.SHARE_MANAGER_MOVED, detail)
    if obstacle or seconds <= PENDING_LIMIT:
        return obstacle
    detail = f"did not receive the pod from the scheduler within {PENDING_LIMIT // 60} minutes"
    return FailedCheck(Reason.PENDING_TOO_LONG, detail)


def why_not_scheduled(manifest: Manifest, seconds: float | None) -> str:
    """Return a clause about a pod that no scheduler has evaluated, empty for any other pod.

    `seconds` is the age of the pod, None if unknown.
    """
    evaluated = manifest.spec.node_name or manifest.pod.status.condition("PodScheduled").type
    if evaluated or seconds is None or seconds < UNSCHEDULED_AFTER:
        return ""
    return f"no scheduler has evaluated the pod for {int(seconds)} s; it names {manifest.spec.scheduler}"


def why_kept(
    vm: VirtualMachine | None,
    vmi: VirtualMachineInstance | None,
    losses: Collection[Loss],
    seen: float,
    settings: Settings,
) -> str:
    """Return a clause about why the webhook may not delete a pinned pod of this VM or VMI, empty if it may.

    A VirtualMachineInstanceReplicaSet replaces a failed VMI. `vm` is None for a VMI without a VM. `losses` are the pods
    that the VM, or the replica set, lost within the last hour, and `seen` is when this replica saw the pod first.
    """
    releases = len(losses)
    if not settings.release:
        return "the release of pins is disabled"
    if not settings.node_guard:  # only the guard knows that the VM was released
        return "the node guard is disabled, so the webhook would pin the VM's next pod again"
    if vmi and vmi.in_replica_set:
        # Only the pods that came after its first loss count. Those that waited before can't loop: the webhook softens
        # their successors.
        first = min((each.at for each in losses), default=seen)
        releases = sum(each.seen >= first for each in losses) if seen >= first else 0
        return f"its replica set lost {releases} pinned pods within an hour" if releases >= MAX_RELEASES else ""
    if vm is None:
        return "the webhook found no VirtualMachine of this name"
    if not vm.restarts:
        return "the VM's run strategy does not restart it"
    if vm.start_failures >= MAX_START_FAILURES:
        return f"the VM failed to start {vm.start_failures} times in a row"
    if releases >= MAX_RELEASES:
        return f"the VM lost {releases} pinned pods within an hour"
    return ""
