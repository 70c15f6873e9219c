"""The explanation of a claim, and of a node: the VMs that use them, as a JSON object like the one of a pod."""

from collections.abc import Iterable, Iterator

from webhook.catalog.inventory import Inventory, node_loads
from webhook.commands.explain.explanation import Finding, Section, claim_findings
from webhook.fleet.machine import Status
from webhook.fleet.relocation.rules import Surroundings
from webhook.fleet.simulation.plan import plan_move
from webhook.fleet.states import assess
from webhook.fleet.volumes import users_of
from webhook.fleet.webhook import Webhook
from webhook.fleet.wording import next_step
from webhook.placement.objects.facts import Key, Node
from webhook.placement.objects.fields import JsonObject
from webhook.placement.resolve import resolve
from webhook.placement.wording import ADVICE, NO_ACTION


def explain_claim(key: Key, inventory: Inventory, webhook: Webhook) -> JsonObject:
    """Explain which node serves an existing claim, and which VMs and pods use its volume."""
    store, settings = inventory.store, webhook.settings
    found = resolve(key[1], key[0], store, settings)
    statuses = [each for each in _statuses(inventory, webhook) if key in _claims(each)]
    names = {each.machine.key for each in statuses}
    others = [user for user in users_of(found.volume or "", store) if (user.namespace, user.name) not in names]
    lines = [*_lines(statuses), *(Finding(str(user)) for user in dict.fromkeys(others))]
    sections = [
        Section("Which node serves the claim?", tuple(claim_findings(found, key[0], store, settings))),
        Section("Which VMs and pods use it?", tuple(lines or [Finding("none")])),
    ]
    advice = list(_next_steps(statuses, inventory, webhook))
    return _explained("/".join(key), sections, advice or [str(ADVICE[found.reason] if found.reason else NO_ACTION)])


def explain_node(node: Node, inventory: Inventory, webhook: Webhook) -> JsonObject:
    """Explain the state of a node, which VMs run on it, and which VMs elsewhere it serves."""
    statuses = list(_statuses(inventory, webhook))
    here = [each for each in statuses if each.node == node.name]
    served = [each for each in statuses if each.node not in (None, node.name) and each.storage_node == node.name]
    sections = [
        Section("Can the node run VMs?", tuple(_state(node, inventory, webhook))),
        Section("Which VMs run on it?", tuple(_lines(here)) or (Finding("none"),)),
        Section("Which VMs elsewhere does it serve?", tuple(_lines(served)) or (Finding("none"),)),
    ]
    steps = _next_steps([*here, *served], inventory, webhook)
    return _explained(node.name, sections, [*steps, f"Before a drain: kubevirt-scheduler drain-check {node.name}"])


def _statuses(inventory: Inventory, webhook: Webhook) -> Iterator[Status]:
    settings = webhook.predicting
    return (assess(each, inventory.store, settings) for each in inventory.machines(settings))


def _claims(status: Status) -> set[Key]:
    """Return the claims of a VM that its pod mounts, or else the claims that its next pod mounts."""
    machine, start = status.machine, status.start
    findings = status.claims or (start.decision.claims if start else ())
    return {(machine.namespace, each.claim) for each in findings}


def _lines(statuses: Iterable[Status]) -> Iterator[Finding]:
    for each in statuses:
        on = f" on {each.node}" if each.node else ""
        served = f": {each.storage_node} serves claim {each.claim}" if each.storage_node else ""
        yield Finding(f"VM {'/'.join(each.machine.key)}{on}, {each.state}{served}")


def _next_steps(statuses: Iterable[Status], inventory: Inventory, webhook: Webhook) -> Iterator[str]:
    around = Surroundings(webhook.predicting)
    for each in statuses:
        if step := next_step(each, plan_move(each, around, inventory.store)):
            yield f"VM {'/'.join(each.machine.key)}: {step}"


def _state(node: Node, inventory: Inventory, webhook: Webhook) -> Iterator[Finding]:
    yield Finding("Ready", node.ready)
    yield Finding("not cordoned", not node.unschedulable)
    for taint in node.taints:
        yield Finding(f"taint {taint.key}:{taint.effect}")
    load = next(each for each in node_loads(inventory.store, webhook.settings) if each.name == node.name)
    for resource, share in load.requested.items():
        yield Finding(f"{resource}: {share:.0%} requested", share < 1)
    yield Finding(f"share-managers: {load.share_managers}")


def _explained(name: str, sections: list[Section], advice: list[str]) -> JsonObject:
    """Return an explanation without a decision."""
    empty: JsonObject = {"vm": None, "decision": None, "ifEligible": None, "patch": None, "warnings": []}
    return {"name": name, "steps": sections, "advice": advice} | empty
