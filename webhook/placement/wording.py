"""The sentences that operators read: the message of a decision, the advice for each reason, and the warnings."""

from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from webhook.placement.objects.pod import DECIDING_CLAIM_ANNOTATION
from webhook.placement.reasons import (
    NEVER_SERVED_REASONS,
    ClaimFinding,
    Decision,
    LocalNodes,
    Mode,
    OptedInBy,
    Outcome,
    Reason,
)
from webhook.placement.settings import OPT_IN_KEY
from webhook.placement.votes import Choice, voters

MAX_WARNING_LENGTH = 120  # API server clients truncate or drop longer warnings

SENTENCES = {
    Reason.NOT_A_POD_CREATION: "the request does not create a pod",
    Reason.NOT_VIRT_LAUNCHER: "the pod is not a virt-launcher pod",
    Reason.NOT_FROM_KUBEVIRT: "the pod is not created by KubeVirt's controller",
    Reason.NOT_OPTED_IN: "the VM is not opted in",
    Reason.MIGRATION_TARGET: "the pod is a live-migration target, and KubeVirt chooses its node",
    Reason.EPHEMERAL_PROVISIONING: "the pod is KubeVirt's dummy pod, which only provisions a claim",
    Reason.ALREADY_BOUND: "the pod is already bound to a node",
    Reason.NO_CLAIMS: "the pod mounts no claim",
    Reason.ALREADY_INJECTED: "the pod already has the webhook's terms",
    Reason.NOT_FROM_LONGHORN: "the pod is not created by Longhorn's manager",
    Reason.STEERING_OFF: "share-manager pods are not steered, because settings.steering is false",
    Reason.NOT_REVIEWED: "the webhook did not review the running pod",
    Reason.VOTES_CHANGED: "the node still serves a claim of the VM, but another node serves more of them by now",
    Reason.SCHEDULED_ELSEWHERE: "the node was only preferred, and the scheduler chose another node",
    Reason.CACHE_NOT_SYNCED: "the caches are not synced yet, and the request cannot wait any longer",
    Reason.DEADLINE_EXCEEDED: "the request waited until the API server's timeout was nearly over",
}


class Advice(Struct, frozen=True):
    """What an operator can do, in one or two sentences."""

    text: str
    needed: bool = True  # False: the sentences say why there is nothing to do

    def __str__(self) -> str:
        return self.text


def no_action(*sentences: str) -> Advice:
    """Return the advice to do nothing, with sentences that say why."""
    return Advice(" ".join(["No action needed.", *sentences]), needed=False)


def _opt_in(key: str) -> Advice:
    return Advice(f'Annotate the VM\'s spec.template with {key}: "true" and restart it.')


NO_ACTION = no_action()
_WHAT_TO_DO = {
    Reason.NOT_FROM_KUBEVIRT: "If KubeVirt created the pod, name its account in settings.kubevirtAccounts.",
    Reason.ALREADY_BOUND: "Remove spec.nodeName from the pod, or leave the pod where it is.",
    Reason.NO_CLAIMS: "Give the VM a disk from a PersistentVolumeClaim, or remove the annotation.",
    Reason.CLAIM_NOT_FOUND: "Correct the claim's name in the VM and restart it, or restore the claim with its data.",
    Reason.CLAIM_NOT_BOUND: "Check why the claim is not bound: kubectl describe pvc.",
    Reason.SHARE_MANAGER_STARTING: (
        "If that takes minutes, find out why: kubectl describe pods -A -l longhorn.io/share-manager=VOLUME."
    ),
    Reason.SHARED_CLAIM_ONLY: "If the shared claim should decide, name it in the annotation of the VM's template.",
    Reason.CACHE_STALE: "Check the webhook's connection to the API server: /readyz and the log report the error.",
    Reason.NODE_NOT_FOUND: "Check the ShareManager's status.ownerID: it names a node that the cluster does not have.",
    Reason.NODE_NOT_READY: "Check the node. Longhorn moves the share-manager if the node stays unreachable.",
    Reason.NODE_CORDONED: "Uncordon the node, or stop all users of the volume so that its share-manager moves.",
    Reason.NODE_TAINTED: "Add a toleration to the VM, or keep share-managers off the node (Longhorn's node selector).",
    Reason.NODE_MISMATCH: "Change the VM's nodeSelector or node affinity, or keep share-managers off the node.",
    Reason.VOLUME_MISMATCH: "Check the node affinity of the PVs: the node cannot reach one of the VM's volumes.",
    Reason.NODE_FULL: "Free resources on the node, or stop all users of the volume so that its share-manager moves.",
    Reason.POD_AFFINITY: "Make the required pod (anti-)affinity preferred: it excludes the node of the share-manager.",
    Reason.UNJUDGED: "Remove the named field, bind the claim, or check the CSI driver. Then the next start is pinned.",
    Reason.START_FAILED: "Check the Events of the VM's earlier pods. Once the VM has run, it is pinned again.",
    Reason.SHARE_MANAGER_MOVED: "At its next start, the webhook pins the VM to the share-manager's new node.",
    Reason.PENDING_TOO_LONG: "Check the pod's Events for the scheduler's reason.",
    Reason.NOT_SCHEDULED: "Run the scheduler that the pod names, or change the VM's schedulerName and start it again.",
    Reason.NOT_REVIEWED: "Restart the VM: its pod is older than the opt-in, or the webhook did not answer in time.",
    Reason.VOTES_CHANGED: "Restart the VM: another node serves more of its claims by now.",
    Reason.SCHEDULED_ELSEWHERE: "Follow the advice of report. A VM with the mode preferred is never pinned.",
    Reason.NOT_FROM_LONGHORN: "If Longhorn created the pod, check settings.longhornNamespace.",
    Reason.STEERING_OFF: "Set settings.steering=true to have share-manager pods follow their VMs.",
    Reason.NO_CONSUMER: "No action needed unless an opted-in pod uses the volume; then check its PV's spec.claimRef.",
    Reason.NODE_AVOIDED: "If the share-manager keeps failing on that node, check its log and the node.",
    Reason.CACHE_NOT_SYNCED: "Check /readyz and the log of the webhook.",
    Reason.DEADLINE_EXCEEDED: "Give the webhook more CPU, or run another replica.",
    Reason.INTERNAL_ERROR: "Find this reason in the webhook's log, and report the traceback.",
}
_WHY_NOTHING = {
    Reason.NOT_A_POD_CREATION: "the webhook handles only the creation of pods.",
    Reason.NOT_VIRT_LAUNCHER: "the webhook handles only virt-launcher pods.",
    Reason.MIGRATION_TARGET: "the webhook decides again at the VM's next start.",
    Reason.EPHEMERAL_PROVISIONING: "the webhook decides when KubeVirt creates the VM's own pod.",
    Reason.CLAIM_NOT_RWX: "only ReadWriteMany volumes have a share-manager. Others follow the VM.",
    Reason.NOT_LONGHORN: "only volumes of the CSI driver driver.longhorn.io have a share-manager.",
    Reason.NO_SHARE_MANAGER_EVER: "Block and migratable volumes have no share-manager.",
    Reason.NO_SHARE_MANAGER: "the share-manager starts after the VM.",
    Reason.RELEASED: "the webhook may pin the VM to this node again after an hour.",
}
ADVICE: Mapping[Reason, Advice] = {
    **{reason: Advice(sentences) for reason, sentences in _WHAT_TO_DO.items()},
    **{reason: Advice(f"No action needed: {why}", needed=False) for reason, why in _WHY_NOTHING.items()},
    Reason.NOT_OPTED_IN: _opt_in(OPT_IN_KEY),
    Reason.ALREADY_INJECTED: no_action("In a VM's template, the annotation and terms are stale: remove them."),
    Reason.CO_SCHEDULED: NO_ACTION,
    Reason.COLD_START: NO_ACTION,
}

# The beginning of the warning in the response to a dry run that gets no annotation; `doctor` looks for it.
OBSERVED = "kubevirt-scheduler: pod unchanged: "

_FAILURES = frozenset({Reason.DEADLINE_EXCEEDED, Reason.INTERNAL_ERROR})
_OPTED_IN_BY = {OptedInBy.NAMESPACE: "its namespace", OptedInBy.STORAGE_CLASS: "its StorageClass"}
# The end of a sentence about a node that the guard refused.
PREFERRED_ONLY = "so it is preferred instead of required"

# Warn only about what a user can change: warnings about normal operation train users to ignore warnings.
_ACTIONABLE = frozenset(
    {Reason.CLAIM_NOT_FOUND, Reason.CLAIM_NOT_RWX, Reason.NOT_LONGHORN, Reason.NO_SHARE_MANAGER_EVER}
)
# Besides a cold claim, such a claim is no problem.
_NORMAL = NEVER_SERVED_REASONS | {Reason.NO_SHARE_MANAGER}


def unchanged(reason: Reason, mode: Mode, message: str = "") -> Decision:
    """Return a decision that leaves the pod's affinity unchanged. The default message is the reason's sentence."""
    by = OptedInBy.UNKNOWN if reason in _FAILURES else OptedInBy.NOTHING
    return Decision(Outcome.UNCHANGED, reason, message or SENTENCES[reason], mode, opted_in_by=by)


def advice(decision: Decision, key: str = OPT_IN_KEY) -> tuple[Advice, ...]:
    """Return what to do about a decision. If no claim has a node, that depends on the reason of each claim.

    `key` is the annotation that opts in a VM.
    """
    if decision.reason is Reason.NOT_OPTED_IN:
        return (_opt_in(key),)
    reasons: Iterable[Reason] = [decision.reason]
    if decision.reason in (Reason.COLD_START, Reason.NO_SHARE_MANAGER):
        without_node = [claim.reason for claim in decision.claims if claim.reason and claim.decides]
        cold = decision.reason is Reason.COLD_START
        reasons = [reason for reason in without_node if not (cold and reason in _NORMAL)] or reasons
    return tuple(dict.fromkeys(ADVICE[reason] for reason in reasons))


def _claims(names: list[str]) -> str:
    return f"{'claim' if len(names) == 1 else 'claims'} {', '.join(names)}"


def _served(findings: Iterable[ClaimFinding], node: str) -> str:
    return _claims([finding.claim for finding in findings if finding.node == node and finding.decides])


def placed(findings: tuple[ClaimFinding, ...], choice: Choice, mode: Mode) -> str:
    """Return the message for a VM that is pinned to the node of its storage or prefers that node."""
    verb = "pinned to" if mode is Mode.REQUIRED else "prefers"
    served = f"{verb} {choice.node}, which serves {_served(findings, choice.node)}"
    return "; ".join([served, *(f"{other} serves {_served(findings, other)}" for other in choice.others)])


def softened(  # noqa: PLR0913 (what the sentence says)
    findings: tuple[ClaimFinding, ...], choice: Choice, detail: str, outcome: Outcome, *, avoids: bool, contested: bool
) -> str:
    """Return the message for a VM that is not pinned to the node of its storage.

    `detail` is a predicate of the node, such as "is cordoned". `avoids` means that the VM prefers other nodes.
    `contested` means that pods which are pinned to the node, but not bound yet, need its free resources.
    """
    verb = "serves" if choice.certain else "will probably serve"
    if outcome is Outcome.PREFERRED:
        result = PREFERRED_ONLY
    elif avoids:
        result = f"so other nodes are preferred{' while pinned VMs wait to start there' if contested else ''}"
    else:
        result = "so no node affinity is added"
    return f"{choice.node} {verb} {_served(findings, choice.node)} but {detail}, {result}"


def unpinned(node: str, detail: str) -> str:
    """Return the message for a VM whose pin is removed, because its pod has changed since."""
    return f"was pinned to {node}, but the pod has changed and {node} {detail}, {PREFERRED_ONLY}"


def shared_claim_only(shared: ClaimFinding) -> str:
    """Return the message for a VM that has only shared claims, or whose own disks never have a share-manager."""
    return (
        f"no share-manager serves a disk that only this VM mounts, and shared claim {shared.claim} does not decide; "
        f"to let it decide, annotate the VM's template: {DECIDING_CLAIM_ANNOTATION}: {shared.claim}"
    )


def unserved(findings: Iterable[ClaimFinding]) -> str:
    """Return the message for a VM whose deciding claims have no node, with the reason for each of them."""
    return f"no node serves {_claims([f'{each.claim} ({each.reason})' for each in findings if each.decides])}"


def cold_start(
    findings: Iterable[ClaimFinding], selector: Mapping[str, str], local: LocalNodes, *, steering: bool
) -> str:
    """Return the message for a VM whose share-managers start after it. `steering` means that they follow the VM.

    `selector` is the VM's nodeSelector. The VM prefers the `local` nodes.
    """
    deciding = [finding for finding in findings if finding.decides]
    cold = [finding for finding in deciding if finding.follows]
    one = len(cold) == 1
    servers = f"the {'share-manager' if one else 'share-managers'} of {_claims([each.claim for each in cold])}"
    servers += f", which {cold[0].detail}," if one else ""
    # The syntax of `kubectl get nodes --selector`.
    selectors = (",".join(f"{each.key} in ({','.join(each.values)})" for each in finding.limits) for finding in cold)
    labels = " or ".join(dict.fromkeys(filter(None, selectors)))
    required = (each for finding in cold for each in finding.limits)
    if any(each.key in selector and selector[each.key] not in each.values for each in required):
        message = f"the VM's nodeSelector excludes nodes that match {labels}, and {servers} can only run there"
    elif labels:
        message = f"the VM prefers nodes that match {labels}, because {servers} can only run there"
    elif steering:
        follow = "follows it if it" if one else "follow it if they"
        starts = "starts on any node" if not local.nodes else prefers_replicas(local)
        message = f"the VM {starts}, and {servers} {follow} can run there"
    else:
        message = f"the VM and {servers} start on any node"
    if local.nodes and labels:
        message += f"; it {prefers_replicas(local)}"
    problems = [finding for finding in deciding if finding.reason not in _NORMAL and not finding.follows]
    return f"{message}; {unserved(problems)}" if problems else message


def prefers_replicas(local: LocalNodes) -> str:
    """Return a predicate of a VM that prefers nodes with a replica."""
    *others, last = local.nodes
    names, have = (f"{', '.join(others)} and {last}", "have") if others else (last, "has")
    return f"prefers {names}, which {have} a replica of {_claims(list(local.claims))}"


def observed(decision: Decision) -> str:
    """Return the warning that reports a decision in the response to a dry run that gets no annotation."""
    return truncated(f"{OBSERVED}{decision.reason}: {decision.message}")


def with_opt_in(decision: Decision) -> Decision:
    """Add to the message what opted the VM in, unless that is the VM's own annotation."""
    words = _OPTED_IN_BY.get(decision.opted_in_by)
    return replace(decision, message=f"{decision.message} (opted in by {words})") if words else decision


def released(node: str, detail: str) -> str:
    """Return the message for a VM whose Pending pod the webhook deleted."""
    return f"was pinned to {node}, but {node} {detail}; the webhook deleted the Pending pod so that the VM starts again"


def stuck(node: str, detail: str, why_kept: str, restart: str) -> str:
    """Return the message for a VM whose Pending pod the webhook may not delete. `restart` is its `restart_advice`."""
    kept = f"the webhook does not delete this Pending pod, because {why_kept}"
    return f"pinned to {node}, but {node} {detail}; {kept}; {restart}"


def restart_advice(namespace: str, name: str, strategy: str | None) -> str:
    """Return the commands with which a user releases a VM from its pin.

    `strategy` is the VM's run strategy, empty if unknown, None for a VMI without a VM. KubeVirt's source:
    `StartVMRequestHandler` and `StopVMRequestHandler` in pkg/virt-api/rest/lifecycle.go.
    """
    if strategy is None:
        delete = f"kubectl delete vmi {name} -n {namespace}"
        return f"delete the VMI, and create it again unless a controller does: {delete}"
    start = f"virtctl start {name} -n {namespace}"
    if strategy == "Halted":  # somebody has stopped the VM already
        return f"start the VM once its pod is gone: {start}"
    # KubeVirt refuses to start a VM (409) until its old VMI is gone.
    words = f"stop the VM, and start it once its pod is gone: virtctl stop {name} -n {namespace}, then {start}"
    return f"{words}, which changes its run strategy from Once to Always" if strategy == "Once" else words


def warning(sentence: str) -> str:
    """Return a warning as API server clients display it."""
    return truncated(f"kubevirt-scheduler: {sentence}")


def truncated(sentence: str) -> str:
    """Truncate a warning to the length that API server clients display."""
    return sentence if len(sentence) <= MAX_WARNING_LENGTH else sentence[: MAX_WARNING_LENGTH - 3] + "..."


def warnings(decision: Decision, unknown_mode: str | None, unknown_claim: str = "") -> tuple[str, ...]:
    """Return warnings that a user can act on, each at most 120 characters.

    `unknown_mode` is the value of the pod's mode annotation if that is not a known mode. `unknown_claim` is the claim
    that the pod names as the one that decides, if the pod does not mount it.
    """
    found = []
    if unknown_mode is not None:
        found.append(
            f"co-schedule-mode: expected 'required' or 'preferred', using {decision.mode} instead of {unknown_mode!r}"
        )
    if unknown_claim:
        found.append(f"co-schedule-claim: the VM mounts no claim {unknown_claim!r}, so it has no effect")
    if decision.conflict:
        nodes = dict.fromkeys(finding.node for finding in voters(decision.claims) if finding.node)
        others = ", ".join(node for node in nodes if node != decision.node)
        found.append(f"several nodes serve the claims: {decision.node} is the target node, not {others}")
    if decision.node and decision.reason not in (Reason.CO_SCHEDULED, Reason.SHARE_MANAGER_STARTING):
        found.append(f"{decision.reason}: {decision.message}")
    reasons = {finding.reason for finding in decision.claims if finding.decides}
    if reasons and reasons <= _ACTIONABLE:
        found.append(decision.message)
    return tuple(map(warning, found))
