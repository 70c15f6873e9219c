"""The report on the fleet as a JSON object: its VMs, its nodes, and a summary."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from webhook.catalog.inventory import Inventory, NodeLoad, node_loads
from webhook.fleet.machine import Future, Start, State, Status
from webhook.fleet.nfs import over_nfs, summarize_nfs
from webhook.fleet.relocation.rules import NOT_PLANNED, Hindrance, Move, Refusal, Surroundings
from webhook.fleet.simulation.plan import Proposal, make_plan, plan_move, together_after_restart
from webhook.fleet.states import Workload
from webhook.fleet.traffic import Traffic, crossing, summarize_traffic
from webhook.fleet.volumes import VolumeData
from webhook.fleet.wording import advise, commands, if_started, next_step
from webhook.placement.catalog import Catalog
from webhook.placement.objects.facts import Key
from webhook.placement.objects.fields import JsonObject

# The keys of the summary and of a node's states, in the order of the report.
STATE_KEYS = {state: f"{state[0].lower()}{state[1:]}" for state in State}
WORDS = {"notConcerned": "not concerned"}  # for those keys that are no words
LOCAL = {True: "local", False: "remote", None: ""}
NO_DATA = VolumeData()
NAMED = 5  # of the VMs without a disk
DATA_RIGHTS = "the right to list volumes.longhorn.io and replicas.longhorn.io"


def build_report(
    statuses: Sequence[Status], inventory: Inventory, around: Surroundings, *, planned: bool
) -> JsonObject:
    """Return the report. The nodes count the given VMs. Unless `planned`, it has no plan, and no VM has a move."""
    catalog = inventory.store
    apart = [each for each in statuses if each.state is State.APART]
    plan = {each.status.machine.key: each for each in make_plan(apart, catalog, around)} if planned else {}
    helped = together_after_restart(apart, catalog, around) if planned else []
    alone = dict(_alone(plan.values(), catalog, around))
    by_node: defaultdict[str | None, Counter[State]] = defaultdict(Counter)
    for status in statuses:
        by_node[status.node][status.state] += 1
    traffic = {each.machine.key: crossing(each, around.rates) for each in statuses} if around.rates else {}
    if traffic:
        statuses = sorted(statuses, key=lambda each: traffic[each.machine.key], reverse=True)
    servers = inventory.servers(around.settings)
    nfs = {each.machine.key: over_nfs(each, catalog, servers) for each in statuses}
    volumes = inventory.volume_data()
    return {
        "vms": [
            describe(status, alone.get(status.machine.key, NOT_PLANNED), volumes)
            | {"plan": describe_proposal(plan.get(status.machine.key))}
            | {"traffic": traffic[status.machine.key].as_json() if traffic else None}
            | {"nfs": nfs[status.machine.key].as_json()}
            for status in statuses
        ],
        "nodes": [_node(load, by_node[load.name]) for load in node_loads(catalog, around.settings)],
        "summary": _summary(sum(by_node.values(), Counter()), apart, plan.values(), helped, traffic)
        | {"nfs": summarize_nfs(nfs.values()), "data": _summarize_data(statuses, volumes)}
        | {"outages": _summarize_outages(statuses)},
    }


def _alone(plan: Collection[Proposal], catalog: Catalog, around: Surroundings) -> Iterator[tuple[Key, Move | Refusal]]:
    """Yield how live migration can move each VM alone. Other moves of the plan may keep the guard from admitting it."""
    moves = any(isinstance(each.result, Move) for each in plan)
    for proposal in plan:
        status, result = proposal.status, proposal.result
        if moves and isinstance(result, Refusal) and result.hindrance is Hindrance.GUARD:
            result = plan_move(status, around, catalog)
        yield status.machine.key, result


def describe_workloads(workloads: Sequence[Workload]) -> tuple[list[JsonObject], JsonObject]:
    """Return the opted-in pods that run no VM, and their number by state."""
    counts = Counter(each.state for each in workloads)
    listed = ", ".join(f"{counts[state]} {STATE_KEYS[state]}" for state in State if counts[state])
    text = f"opted-in pods that are no VMs: {listed or 'none'}"
    keys = ("namespace", "name", "node", "storageNode", "claim", "state")
    fields = ((*each.pod.key, each.pod.node, each.storage_node, each.claim, each.state.value) for each in workloads)
    rows = [JsonObject(zip(keys, row, strict=True)) for row in fields]
    states = State.TOGETHER, State.APART, State.UNSERVED
    return rows, {STATE_KEYS[state]: counts[state] for state in states} | {"text": text}


def _summarize_data(statuses: Iterable[Status], volumes: Mapping[str, VolumeData]) -> JsonObject:
    """Count the VMs whose share-manager runs, by whether its node has a healthy replica."""
    counts = Counter(is_local(each, volumes) for each in statuses if each.storage_node and each.volume)
    parts = [f"{number} {LOCAL[key]}" for key in (True, False) if (number := counts[key])]
    unread = "no right to list volumes.longhorn.io and replicas.longhorn.io, or a file without them"
    parts += [f"unknown for {counts[None]} ({unread})"] if counts[None] else []
    text = f"data of the volumes: {', '.join(parts)}" if parts else ""
    return {"local": counts[True], "remote": counts[False], "unknown": counts[None], "text": text}


def _summarize_outages(statuses: Iterable[Status]) -> JsonObject:
    """Count the running VMs that have no disk, because no node takes its share-manager."""
    found = {"/".join(each.machine.key): each.outage.message for each in statuses if each.outage}
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    listed = ", ".join(list(found)[:NAMED]) + more
    plural = "VM runs" if len(found) == 1 else "VMs run"
    words = f"{len(found)} {plural} without a disk, because the scheduler refuses its share-manager: {listed}"
    return {"vms": len(found), "text": f"{words} ({next(iter(found.values()))})" if found else ""}


def is_local(status: Status, volumes: Mapping[str, VolumeData]) -> bool | None:
    """Return whether the share-manager of a VM runs beside a healthy replica, None if that is unknown."""
    return volumes.get(status.volume, NO_DATA).is_local_to(status.storage_node)


def _summary(
    states: Counter[State],
    apart: Sequence[Status],
    plan: Iterable[Proposal],
    helped: Sequence[Status],
    traffic: Mapping[Key, Traffic],
) -> JsonObject:
    """Count the VMs by state, and the VMs that are apart by what would bring them together."""
    counts = {key: states[state] for state, key in STATE_KEYS.items()}
    moves = sum(each.action == "migrate" for each in plan)
    to_opt_in = sum(bool(each.start and each.start.stopped_by) for each in helped)
    to_stop = sum(bool(each.start and each.start.lingering) for each in helped)
    listed = ", ".join(f"{number} {WORDS.get(key, key)}" for key, number in counts.items() if number)
    text = f"{states.total()} {'VM' if states.total() == 1 else 'VMs'}{': ' * bool(listed)}{listed}"
    crossed = summarize_traffic(traffic.values()) if traffic else None
    text += f"; {crossed['text']}" if crossed else ""
    if apart:
        text += f"; {moves} of {len(apart)} would be together after recolocate" if moves else ""
        text += f"; {len(helped)} of {len(apart)} would be together after a restart"
        conditions = ((to_opt_in, "only after opt-in"), (to_stop, "only if stopped first"))
        needed = ", ".join(f"{number} {condition}" for number, condition in conditions if number)
        text += f" ({needed})" if needed else ""
    after = {"togetherAfterRestart": len(helped), "togetherAfterRestartNotOptedIn": to_opt_in}
    return (
        {"vms": states.total()} | counts | after | {"togetherAfterRecolocate": moves, "traffic": crossed, "text": text}
    )


def describe_proposal(proposal: Proposal | None) -> JsonObject | None:
    """Return what the plan for all VMs does with one that is apart; None for others."""
    if proposal is None:
        return None
    result = proposal.result
    word, detail = (result.word, result.detail) if isinstance(result, Refusal) else (None, None)
    return {"action": proposal.action, "reason": word, "detail": detail, "gainBytes": proposal.gain}


def describe(status: Status, move: Move | Refusal, volumes: Mapping[str, VolumeData]) -> JsonObject:
    """Return one VM of the report. `move` is how live migration can move this VM alone."""
    machine = status.machine
    data = volumes.get(status.volume, NO_DATA)
    local = data.is_local_to(status.storage_node)
    words = ", ".join(filter(None, (data.locality, LOCAL[local])))
    return {
        "namespace": machine.namespace,
        "name": machine.name,
        "kind": "VirtualMachine" if machine.is_vm else "VirtualMachineInstance",
        "optedIn": status.opted_in,
        "optedInBy": status.opted_in_by.value if status.opted_in else None,
        "optInPending": status.opt_in_pending,
        "optedOut": status.opted_out,
        "excludedBy": status.excluded_by or None,
        "node": status.node,
        "storageNode": status.storage_node,
        "claim": status.claim,
        "data": {"locality": data.locality or None, "local": local, "text": words},
        "outage": _outage(status),
        "state": status.state.value,
        "reason": status.reason.value if status.reason else None,
        "paused": machine.paused,
        "migrating": machine.migrating,
        "ifStarted": _start(status.start) if status.start else None,
        "nextStep": next_step(status, move),
        "advice": advise(status, move).text,
        "commands": [each.line for each in commands(status, move)],
    }


def _outage(status: Status) -> JsonObject | None:
    """Return the share-manager without which a running VM has no disk."""
    refused = status.outage
    return {"pod": "/".join(refused.pod), "message": refused.message} if refused else None


def _start(start: Start) -> JsonObject:
    decision = start.decision
    return {
        "outcome": decision.outcome.value,
        "reason": decision.reason.value,
        "node": decision.node,
        "stoppedBy": start.stopped_by.value if start.stopped_by else None,
        "cold": start.cold,
        "otherUsers": [{"kind": user.kind, "namespace": user.namespace, "name": user.name} for user in start.users],
        "future": (start.future if start.enforced and not start.stopped_by else Future.ANYWHERE).value,
        "together": start.helps,
        "stopFirst": bool(start.lingering),
        "text": if_started(start),
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
