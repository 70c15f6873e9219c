"""The sentences about a VM of the fleet: the effect of a start, and the advice for the operator."""

from webhook.fleet.states import Start, State, Status
from webhook.fleet.volume_users import keep_running
from webhook.placement.objects.fields import text
from webhook.placement.reasons import Outcome, Reason
from webhook.placement.wording import ADVICE, NO_ACTION, restart_advice
from webhook.placement.wording import advice as decision_advice

OPT_IN = 'annotate the VM\'s spec.template with kubevirt-scheduler/co-schedule: "true"'

_NOT_CONCERNED = {
    Reason.NO_CLAIMS: f"{NO_ACTION} The VM mounts no claim.",
    Reason.CLAIM_NOT_RWX: f"{NO_ACTION} Only ReadWriteMany volumes have a share-manager.",
    Reason.NOT_LONGHORN: f"{NO_ACTION} Only Longhorn volumes have a share-manager.",
    Reason.NO_SHARE_MANAGER_EVER: f"{NO_ACTION} Block and migratable volumes have no share-manager.",
}
# The VM runs, so Longhorn should be serving its claim.
_UNSERVED = {
    Reason.CLAIM_NOT_FOUND: ADVICE[Reason.CLAIM_NOT_FOUND],
    Reason.CLAIM_NOT_BOUND: ADVICE[Reason.CLAIM_NOT_BOUND],
    Reason.SHARE_MANAGER_STARTING: ADVICE[Reason.SHARE_MANAGER_STARTING],
    Reason.SHARE_MANAGER_UNASSIGNED: f"{NO_ACTION} Longhorn has not chosen the share-manager's owner yet.",
}
_UNKNOWN_START = "The next start is unknown: a field of the VM or of its pod is malformed."
_CHECK_LONGHORN = (
    "The VM runs, but no share-manager serves its claim: check the volume in Longhorn and the pod's Events."
)


def if_started(start: Start, *, together: bool) -> str:
    """Return the effect of a start in a few words, such as "not opted in; if opted in: pinned to node-a".

    `together` means that the start would place the VM on the node of its storage.
    """
    decision = start.decision
    if start.cold:
        result = "cold start"
    elif decision.reason is Reason.COLD_START:
        result = "together: the share-manager follows the VM" if together else "anywhere"
    elif decision.outcome is Outcome.PINNED:
        result = f"pinned to {decision.node}"
    elif decision.outcome is Outcome.PREFERRED:
        result = f"prefers {decision.node} ({decision.reason})"
    else:
        result = f"unchanged ({decision.reason})"
    return f"not opted in; if opted in: {result}" if start.stopped_by else result


def next_step(status: Status) -> str:
    """Return what the operator can do, shorter than `advice` for the most frequent cases. Empty if nothing."""
    if status.state is State.APART and status.start_helps and status.claim not in status.machine.hotplugged:
        if status.machine.migrating:
            return "wait for the migration"
        restart = "restart" if status.machine.is_vm else "recreate the VMI"
        return f"opt in, then {restart}" if status.start and status.start.stopped_by else restart
    words = advice(status)
    return "" if words.startswith(NO_ACTION) else words


def advice(status: Status) -> str:
    """Return one or two sentences about what the operator can do."""
    machine = status.machine
    match status.state:
        case State.TOGETHER:
            return NO_ACTION
        case State.NOT_CONCERNED:
            return _NOT_CONCERNED[status.reason or Reason.NO_CLAIMS]
        case State.WAITING:
            return _advice_while_waiting(status)
        case State.STOPPED:
            return _advice_before_start(status)
        case State.UNSERVED:
            if text(machine.manifest, "status", "phase") == "Pending":  # bound, and its volumes are being attached
                return f"{NO_ACTION} The VM is starting, and Longhorn starts its share-manager."
            return _UNSERVED.get(status.reason or Reason.NO_SHARE_MANAGER, _CHECK_LONGHORN)
    if machine.migrating:
        return "Wait for the live migration to end."
    return _advice_when_apart(status)


def _advice_while_waiting(status: Status) -> str:
    machine = status.machine
    if status.reason is Reason.NOT_SCHEDULED:
        return f"{_sentence(status.detail)} {ADVICE[status.reason]}"
    if status.detail:
        pin = machine.pod.pin.node if machine.pod and machine.pod.pin else status.storage_node
        restart = restart_advice(machine.namespace, machine.name, machine.strategy)
        return _sentence(f"pinned to {pin}, but {pin} {status.detail}; {restart}")
    name = machine.pod.name if machine.pod else ""
    return f"Check why the scheduler finds no node: kubectl describe pod {name} -n {machine.namespace}."


def _advice_before_start(status: Status) -> str:
    start = status.start
    if start is None:
        return _UNKNOWN_START
    if reason := _never_served(start):
        return _NOT_CONCERNED[reason]
    if start.stopped_by:
        return _sentence(f"{OPT_IN} before the next start")
    if start.decision.outcome is Outcome.PINNED:
        return f"{NO_ACTION} The next start is pinned to {start.decision.node}."
    if start.decision.reason is Reason.COLD_START:
        return " ".join([*decision_advice(start.decision), _sentence(start.decision.message)])
    return " ".join([ADVICE[start.decision.reason], *_other_users(start, status)])


def _never_served(start: Start) -> Reason | None:
    """Return why no claim of the next pod is ever served, or None if one may be."""
    reasons = [finding.reason for finding in start.decision.claims] or [start.decision.reason]
    return reasons[0] if all(reason in _NOT_CONCERNED for reason in reasons) else None


def _advice_when_apart(status: Status) -> str:
    start = status.start
    if status.claim in status.machine.hotplugged:
        return f"Live-migrate the VM to {status.storage_node}: a hotplugged disk does not decide where a VM starts."
    steps = [OPT_IN] if start and start.stopped_by else []
    if start is None or not status.start_helps:
        hindrance = [ADVICE[_hindrance(start)], *_other_users(start, status)] if start else [_UNKNOWN_START]
        return " ".join([*map(_sentence, steps), *hindrance])
    if start.cold:
        result = "its share-manager has no other user, so it stops with the VM and restarts on the VM's node"
    elif start.decision.reason is Reason.COLD_START:
        result = "the share-manager of its disk then follows it"
    else:
        result = f"its pod is then pinned to {start.decision.node}, where {keep_running(start.users)}"
    restart = "restart the VM" if status.machine.is_vm else "delete and recreate the VMI"
    return _sentence(f"{', then '.join([*steps, restart])}: {result}")


def _hindrance(start: Start) -> Reason:
    """Return why a start does not help. A VM that only prefers the node has no reason but the scheduler's choice."""
    reason = start.decision.reason
    return Reason.SCHEDULED_ELSEWHERE if reason is Reason.CO_SCHEDULED else reason


def _other_users(start: Start, status: Status) -> list[str]:
    if not start.users:
        return []
    return [_sentence(f"{keep_running(start.users)} on {start.decision.node or status.storage_node}")]


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."
