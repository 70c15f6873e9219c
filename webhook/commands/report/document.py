"""The report on the fleet as a JSON object: its VMs, its nodes, and a summary."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from webhook.cluster.inventory import NodeLoad
from webhook.fleet.states import Start, State, Status
from webhook.fleet.wording import advice, if_started, next_step
from webhook.placement.objects.fields import JsonObject

# The keys of the summary and of a node's states, in the order of the report.
STATE_KEYS = {state: f"{state[0].lower()}{state[1:]}" for state in State}


def build_report(statuses: Sequence[Status], loads: Iterable[NodeLoad]) -> JsonObject:
    """Return the report. The nodes count the given VMs."""
    by_node: defaultdict[str | None, Counter[State]] = defaultdict(Counter)
    for status in statuses:
        by_node[status.node][status.state] += 1
    return {
        "vms": [describe(status) for status in statuses],
        "nodes": [_node(load, by_node[load.name]) for load in loads],
        "summary": summarize(statuses),
    }


def describe(status: Status) -> JsonObject:
    """Return one VM of the report."""
    machine = status.machine
    return {
        "namespace": machine.namespace,
        "name": machine.name,
        "optedIn": status.opted_in,
        "optedInBy": status.opted_in_by.value if status.opted_in else None,
        "node": status.node,
        "storageNode": status.storage_node,
        "claim": status.claim,
        "state": status.state.value,
        "reason": status.reason.value if status.reason else None,
        "paused": machine.paused,
        "migrating": machine.migrating,
        "ifStarted": _start(status.start, helps=status.start_helps) if status.start else None,
        "nextStep": next_step(status),
        "advice": advice(status),
    }


def _start(start: Start, *, helps: bool) -> JsonObject:
    decision = start.decision
    return {
        "outcome": decision.outcome.value,
        "reason": decision.reason.value,
        "node": decision.node,
        "stoppedBy": start.stopped_by.value if start.stopped_by else None,
        "cold": start.cold,
        "otherUsers": [{"kind": user.kind, "namespace": user.namespace, "name": user.name} for user in start.users],
        "together": helps,
        "text": if_started(start, together=helps),
    }


def _node(load: NodeLoad, states: Counter[State]) -> JsonObject:
    return {
        "name": load.name,
        "ready": load.ready,
        "cordoned": load.cordoned,
        "vms": states.total(),
        "states": {key: states[state] for state, key in STATE_KEYS.items()},
        "shareManagers": load.share_managers,
        "requested": {resource: round(share, 4) for resource, share in load.requested.items()},
    }


def summarize(statuses: Iterable[Status]) -> JsonObject:
    """Count the VMs by state, and the VMs that are apart by whether a restart would help."""
    states, after_restart, after_opt_in = Counter[State](), 0, 0
    for status in statuses:
        states[status.state] += 1
        if status.state is State.APART and status.start and status.start_helps:
            after_restart += 1
            after_opt_in += status.start.stopped_by is not None
    counts: JsonObject = {"vms": states.total()} | {key: states[state] for state, key in STATE_KEYS.items()}
    return counts | {"togetherAfterRestart": after_restart, "togetherAfterRestartNotOptedIn": after_opt_in}
