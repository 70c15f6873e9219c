"""The sentences about a VM of the fleet: the effect of a start, and the advice for the operator."""

from msgspec import Struct

from webhook.fleet.gitops import managed_by
from webhook.fleet.machine import Future, Machine, RefusedServer, Start, State, Status
from webhook.fleet.relocation.rules import REFUSED_STARTS, TRANSIENT, Move, Refusal, restart_helps
from webhook.placement.objects.fields import is_dns_subdomain, mappings, text
from webhook.placement.reasons import BEING_REPLACED, NEVER_SERVED_REASONS, Outcome, Reason
from webhook.placement.wording import ADVICE, NO_ACTION, Advice, no_action, restart_advice
from webhook.placement.wording import advice as decision_advice

_NOT_CONCERNED = {reason: ADVICE[reason] for reason in (*NEVER_SERVED_REASONS, Reason.SHARED_CLAIM_ONLY)} | {
    Reason.NO_CLAIMS: no_action("The VM mounts no claim.")
}
# The VM runs, so for any other reason, Longhorn should be serving its claim.
_UNSERVED = (Reason.CLAIM_NOT_FOUND, Reason.CLAIM_NOT_BOUND, Reason.SHARE_MANAGER_STARTING)
NAMED = 3  # of the other users
_RESTART = "restart"
_STOP_FIRST = "stop the VM, and start it once its share-manager has stopped"
_DELETE_FIRST = "delete the VMI, and create it again once its share-manager has stopped"
_ONCE = """'{"spec":{"runStrategy":"Once"}}'"""
_NOT_ENFORCED = (
    "a restart places the VM anywhere, because the webhook is not active; to check: kubevirt-scheduler doctor"
)
_CHECK_LONGHORN = Advice(
    "The VM runs, but no share-manager serves its claim: check the volume in Longhorn and the pod's Events."
)


def if_started(start: Start) -> str:
    """Return the effect of a start in a few words, such as "anywhere; if opted in: pinned to node-a"."""
    conditions = ["if opted in"] if start.stopped_by else []
    conditions += [] if start.enforced else ["with the webhook"]
    decision = start.decision
    if start.refused:
        return f"may fail on {start.refused}, as before"
    match start.future:
        case Future.PINNED:
            result = f"pinned to {decision.node}"
        case Future.PREFERS:
            why = "" if decision.reason is Reason.CO_SCHEDULED else f" ({decision.reason})"
            result = f"prefers {decision.node}{why}"
        case Future.FOLLOWS:
            result = "follows (if stopped first)" if start.lingering else "follows (cold start)"
        case _:
            return "anywhere" if decision.reason is Reason.COLD_START else f"anywhere ({decision.reason})"
    return f"anywhere; {' and '.join(conditions)}: {result}" if conditions else result


def next_step(status: Status, move: Move | Refusal) -> str:
    """Return what the operator can do: the verbs of the commands, or the advice. Empty if nothing."""
    if found := commands(status, move):
        words = ", then ".join(each.verb for each in found if each.verb)
        return f"{words}, or reboot the guest" if found[-1].verb == _RESTART and _reboots(status) else words
    found_advice = advise(status, move)
    return found_advice.text if found_advice.needed else ""


class Command(Struct, frozen=True):
    """A command for the operator's shell."""

    line: str
    verb: str  # what it does, in a word or two; empty if it only waits


def commands(status: Status, move: Move | Refusal) -> tuple[Command, ...]:
    """Return the commands that bring a VM that is apart to its storage, in their order. Empty if no command does."""
    machine, start = status.machine, status.start
    # A hand-written file may have other names, which a shell may take for a command.
    if status.state is not State.APART or not all(map(is_dns_subdomain, machine.key)):
        return ()
    if isinstance(move, Move):
        return (Command(_own_command("recolocate", machine), "recolocate"),)
    if start is None or not restart_helps(status, move):
        return ()
    managed = start.stopped_by is not None and (managed_by(machine.vm) or not machine.is_vm)
    opt_in = [Command(_own_command("opt-in", machine), "opt in")] if start.stopped_by else []
    return () if managed else (*opt_in, *_restarts(machine, start))


def _restarts(machine: Machine, start: Start) -> list[Command]:
    """Return the commands that restart a VM, so that its share-managers follow it: if need be, they stop first."""
    if not start.lingering:
        return [_restart(machine)]
    pods = " ".join(f"pod/{name}" for _, name in start.lingering.pods)
    wait = Command(f"kubectl wait --for=delete {pods} -n {start.lingering.pods[0][0]} --timeout=10m", "")
    again = start_command(machine, halted=True)
    starts = [Command(again, "start")] if again else []
    return [Command(stop_command(machine), "stop" if machine.is_vm else "recreate the VMI"), wait, *starts]


def _reboots(status: Status) -> bool:
    """Return whether a reboot inside the guest makes a new pod, like a restart."""
    machine = status.machine
    return machine.strategy == "Always" and text(machine.vmi, "spec", "domain", "rebootPolicy") == "Terminate"


def _own_command(verb: str, machine: Machine) -> str:
    return f"kubevirt-scheduler {verb} {_named(machine)} --yes"


def restart_command(machine: Machine) -> str:
    """Return the command that restarts a VM, or deletes a VMI without a VM.

    KubeVirt refuses to restart a VM with run strategy Once, and starts it again when its VMI is gone: `syncRunStrategy`
    in pkg/virt-controller/watch/vm/vm.go, `RestartVMRequestHandler` in pkg/virt-api/rest/lifecycle.go.
    """
    return _restart(machine).line


def _restart(machine: Machine) -> Command:
    match machine.strategy:
        case None | "Once":
            return Command(f"kubectl delete vmi {_named(machine)}", "recreate the VMI")
        case "Halted":
            return Command(f"virtctl start {_named(machine)}", "start")
    return Command(f"virtctl restart {_named(machine)}", _RESTART)


def migrate_command(machine: Machine) -> str:
    """Return the command that migrates a VM to any node."""
    return f"virtctl migrate {_named(machine)}"


def stop_command(machine: Machine) -> str:
    """Return the command that stops a VM, or deletes a VMI without a VM."""
    return f"{'virtctl stop' if machine.is_vm else 'kubectl delete vmi'} {_named(machine)}"


def start_command(machine: Machine, *, halted: bool = False) -> str:
    """Return the command that starts a VM again. `halted`: `virtctl stop` has stopped it. Empty if there is no command.

    The manifest of a VMI without a VM creates it again. Nobody wants to start a VM that was stopped before the drain.
    With run strategy Always, KubeVirt starts a VM as soon as a node can run it, and with Once when the VMI that has
    ended is gone. It refuses `virtctl start` then. `virtctl stop` replaces these two by Halted, and `virtctl start`
    replaces that by Always: https://github.com/kubevirt/kubevirt/blob/d923fdb8/pkg/virt-api/rest/lifecycle.go
    """
    match machine.strategy, halted:
        case (None, _) | ("Always" | "Halted", False):
            return ""
        case "Once", False:
            return f"kubectl delete vmi {_named(machine)}"
        case "Once", True:
            return f"kubectl patch vm {_named(machine)} --type merge -p {_ONCE}"
    return f"virtctl start {_named(machine)}"


def _named(machine: Machine) -> str:
    return f"{machine.name} -n {machine.namespace}"


def _opt_in_words(status: Status) -> str:
    """Return a clause that says how to opt a VM in."""
    machine, annotation = status.machine, f'{status.opt_in_key}: "true"'
    if not machine.is_vm:
        return f"annotate the VMI in its manifest with {annotation}"
    if program := managed_by(machine.vm):
        return f"annotate the VM's spec.template with {annotation} at its source, because {program} manages it"
    return f"opt the VM in: {_own_command('opt-in', machine)}"


def advise(status: Status, move: Move | Refusal) -> Advice:
    """Return one or two sentences about what the operator can do. `move` is how live migration can move the VM."""
    machine = status.machine
    if refused := status.outage:
        return Advice(f"Its I/O hangs: {_why_without_disk(refused)}")
    match status.state:
        case State.TOGETHER:
            return NO_ACTION
        case State.NOT_CONCERNED:
            return _NOT_CONCERNED[status.reason or Reason.NO_CLAIMS]
        case State.WAITING:
            return Advice(_advice_while_waiting(status))
        case State.STOPPED:
            return _advice_before_start(status)
        case State.UNSERVED:
            # A Pending pod is bound, and its volumes are being attached.
            if machine.manifest and machine.manifest.pod.status.phase == "Pending":
                return no_action("The VM is starting, and Longhorn starts its share-manager.")
            if any(each.detail == BEING_REPLACED for each in status.claims):
                return no_action(f"Its share-manager {BEING_REPLACED}.")
            return ADVICE[status.reason] if status.reason in _UNSERVED else _CHECK_LONGHORN
    return Advice(_advice_when_apart(status, move))


def _why_without_disk(refused: RefusedServer) -> str:
    """Return two sentences about a share-manager that the scheduler refuses."""
    namespace, name = refused.pod
    problem = f"the scheduler finds no node for its share-manager: {refused.message.rstrip('.')}"
    return f"{problem}. Let a node run it: kubectl describe pod {name} -n {namespace}."


def _advice_while_waiting(status: Status) -> str:
    machine, start = status.machine, status.start
    if missing := _missing_claim(machine, start):
        return missing
    if status.reason is Reason.NOT_SCHEDULED:
        return f"{_sentence(status.detail)} {ADVICE[status.reason]}"
    if status.detail:
        pin = machine.pod.pin.node if machine.pod and machine.pod.pin else status.storage_node
        problem = f"Pinned to {pin}, but {pin} {status.detail}"
        if start and start.enforced and start.future is Future.PINNED and start.decision.node == pin:
            return f"{problem}; a restart would pin it there again. {ADVICE[status.reason or Reason.CO_SCHEDULED]}"
        return f"{problem}; {restart_advice(machine.namespace, machine.name, machine.strategy)}."
    if machine.manifest and not machine.manifest.pod.status.condition("PodScheduled").type:
        scheduler = machine.manifest.spec.scheduler
        return f"Wait: no scheduler has evaluated the pod yet; it names {scheduler}. {ADVICE[Reason.NOT_SCHEDULED]}"
    name = machine.pod.name if machine.pod else ""
    return f"Check why the scheduler finds no node: kubectl describe pod {name} -n {machine.namespace}."


def _unknown_start(machine: Machine) -> str:
    if machine.missing:
        return f"The next start is unknown: {machine.missing} is missing, or you may not read it."
    return "The next start is unknown: a field of the VM or of its pod is malformed."


def _missing_claim(machine: Machine, start: Start | None) -> str:
    claims = start.decision.claims if start else ()
    missing = next((each.claim for each in claims if each.reason is Reason.CLAIM_NOT_FOUND), "")
    if not missing:
        return ""
    volumes = mappings(machine.vm, "spec", "template", "spec", "volumes")
    if any(text(each, "dataVolume", "name") == missing for each in volumes):  # CDI would adopt an empty one as finished
        return f"Claim {missing} does not exist yet: kubectl describe datavolume {missing} -n {machine.namespace}."
    return f"The VM cannot start, because claim {missing} does not exist. {ADVICE[Reason.CLAIM_NOT_FOUND]}"


def _advice_before_start(status: Status) -> Advice:
    start = status.start
    if start is None:
        return Advice(_unknown_start(status.machine))
    if missing := _missing_claim(status.machine, start):
        return Advice(missing)
    if reason := _never_served(start):
        return _NOT_CONCERNED[reason]
    if status.opted_out:
        return no_action(f"{_opted_out(status)}.")
    if not start.enforced:
        return Advice(_sentence(_NOT_ENFORCED))
    if start.stopped_by:
        return Advice(_sentence(f"before the next start, {_opt_in_words(status)}"))
    if start.decision.outcome is Outcome.PINNED:
        return no_action(f"The next start is pinned to {start.decision.node}.")
    if start.apart:
        return Advice(_sentence(start.apart))
    return _advice_without_pin(start)


def _advice_without_pin(start: Start) -> Advice:
    cold = [_sentence(start.decision.message)] if start.decision.reason is Reason.COLD_START else []
    found = decision_advice(start.decision)
    sentences = " ".join([*(each.text for each in found), *cold, *_other_users(start)])
    return Advice(sentences, needed=found[0].needed)


def _opted_out(status: Status) -> str:
    return f"{status.excluded_by} excludes the VM's namespace" if status.excluded_by else "The VM is opted out"


def _never_served(start: Start) -> Reason | None:
    """Return why no claim of the next pod is ever served, or None if one may be."""
    reasons = [finding.reason for finding in start.decision.claims] or [start.decision.reason]
    return reasons[0] if all(reason in _NOT_CONCERNED for reason in reasons) else None


def _advice_when_apart(status: Status, move: Move | Refusal) -> str:
    machine, start = status.machine, status.start
    if status.opted_out:
        return f"{_opted_out(status)}, so it stays where it is."
    if isinstance(move, Move):
        later = f" To keep it there at its next start, {_opt_in_words(status)}." if start and start.stopped_by else ""
        return f"Live-migrate it to {move.target}: {_own_command('recolocate', machine)}.{later}"
    if move.hindrance in TRANSIENT:
        return _sentence(f"wait, and look again: {move.detail}")
    return _advice_to_restart(status, move.detail)


def _advice_to_restart(status: Status, hindrance: str) -> str:
    """Return what a restart needs and does. `hindrance` is why the VM can't migrate to its storage."""
    machine, start = status.machine, status.start
    if status.claim in machine.hotplugged and (start is None or not start.helps):
        refused = "A restart does not help: a hotplugged disk does not decide where a VM starts."
        return f"{refused} What hinders live migration: {hindrance}."
    if start is None:
        return _unknown_start(status.machine)
    if not start.enforced:
        return _sentence(_NOT_ENFORCED)
    steps = [_opt_in_words(status)] if start.stopped_by else []
    if not start.helps:
        return " ".join([*map(_sentence, steps), _hindrance(start), *_other_users(start)])
    if start.lingering:
        lines = " && ".join(each.line for each in _restarts(machine, start))
        steps.append(f"{_STOP_FIRST if machine.is_vm else _DELETE_FIRST}: {lines}")
    elif machine.strategy in (None, "Halted"):
        steps.append(restart_advice(machine.namespace, machine.name, machine.strategy))
    else:
        reboot = ", or reboot its guest" if _reboots(status) else ""
        steps.append(f"restart the VM{reboot}: {restart_command(machine)}")
    if start.future is Future.PINNED:
        results = [f"Its pod is then pinned to {start.decision.node}.", *_other_users(start)]
    else:
        results = ["Its share-manager has no other user then, so it follows the VM."]
        if start.lingering:
            results.append(f"After a restart, it would still run on {status.storage_node} ({start.lingering.reason}).")
    return " ".join([_sentence(", then ".join(steps)), *results])


def _hindrance(start: Start) -> str:
    """Return why a restart doesn't bring the VM and its share-manager together."""
    if start.apart:
        return _sentence(start.apart)
    decision = start.decision
    if start.refused:
        return f"A restart may end on {start.refused} again, which {REFUSED_STARTS}. {ADVICE[Reason.START_FAILED]}"
    if decision.reason is Reason.CO_SCHEDULED:
        return f"A restart only prefers {decision.node}. To have the VM pinned, remove the mode preferred."
    if decision.reason is Reason.COLD_START:
        return "After a restart, the share-manager may run on any node, because steering is off."
    return ADVICE[decision.reason].text


def _other_users(start: Start) -> list[str]:
    """Name those that keep the share-manager running, so that the decision is for its node."""
    users = ", ".join(map(str, start.users[:NAMED]))
    return [f"The share-manager on {start.decision.node} keeps running for {users}."] * bool(users)


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."
