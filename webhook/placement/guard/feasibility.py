"""The node guard: check whether a node can run a pod before the pod is pinned.

A required affinity to a node that can't run the pod leaves the VM Pending forever, which is worse than remote storage.
So the guard applies the scheduler's own rules before the scheduler does. A check passes if its facts are unknown.
"""

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter

from msgspec import Struct

from webhook.placement.affinity import MAX_TERMS, PREFERRED, WEIGHT, matches_no_node, unpinnable_part
from webhook.placement.guard.candidate import Candidate
from webhook.placement.guard.comparison_limit import LimitExceeded
from webhook.placement.guard.pod_affinity import TOO_MANY_COMPARISONS
from webhook.placement.objects.facts import MAX_START_FAILURES, Taint, Volume
from webhook.placement.objects.fields import is_dns_subdomain, mappings, strings
from webhook.placement.objects.pod import Manifest
from webhook.placement.objects.pod_object import Container
from webhook.placement.objects.resources import format_quantity
from webhook.placement.objects.selectors import node_matches, zones_match
from webhook.placement.reasons import Reason

STALE_MINUTES = 5  # a quiet watch gets a bookmark every minute
# Details of failures that other modules report, too.
NOT_FOUND = "does not exist"
STARTING = "has no running share-manager yet"
NODE_AFFINITY_MISMATCH = "does not match the pod's required node affinity"
ARCHITECTURE = "kubernetes.io/arch"
CORDON = Taint("node.kubernetes.io/unschedulable", effect="NoSchedule")


class FailedCheck(Struct, frozen=True):
    """The first check that failed."""

    reason: Reason
    detail: str  # a predicate of the node, such as "is cordoned": it follows the node's name


def _tolerated(candidate: Candidate, taint: Taint) -> bool:
    """Return whether the pod tolerates the taint. A toleration with an unknown operator tolerates nothing."""
    tolerations = candidate.manifest.spec.tolerations
    candidate.comparisons.spend(1 + len(tolerations))
    for toleration in tolerations:
        if toleration.effect not in ("", taint.effect):
            continue
        if toleration.operator == "Exists" and toleration.key in ("", taint.key):
            return True
        is_equal = toleration.key == taint.key and toleration.value == taint.value
        if toleration.operator in ("", "Equal") and is_equal:
            return True
    return False


def _stale(candidate: Candidate) -> str | None:
    stale = candidate.catalog.stale_resources()
    if not stale:
        return None
    return f"may have changed: the webhook received no update of {' and '.join(stale)} for {STALE_MINUTES} minutes"


def _not_found(candidate: Candidate) -> str | None:
    return NOT_FOUND if candidate.node is None and candidate.catalog.all_nodes() else None


def _not_ready(candidate: Candidate) -> str | None:
    return "is not Ready" if candidate.node and candidate.node.ready is False else None


def _cordoned(candidate: Candidate) -> str | None:
    node = candidate.node
    return "is cordoned" if node and node.unschedulable and not _tolerated(candidate, CORDON) else None


def untolerated_taint(candidate: Candidate) -> Taint | None:
    """Return the first taint of the node that keeps the pod away, None if the pod tolerates all."""
    for taint in candidate.node.taints if candidate.node else ():
        if taint.effect in ("NoSchedule", "NoExecute") and not _tolerated(candidate, taint):
            return taint
    return None


def _tainted(candidate: Candidate) -> str | None:
    # The owner of a VM reads this: only `explain` names the taints and the free resources of a node.
    return "has a taint that the pod does not tolerate" if untolerated_taint(candidate) else None


def _node_mismatch(candidate: Candidate) -> str | None:
    node = candidate.node
    if node is None:
        return None
    selector, spend = candidate.manifest.spec.node_selector, candidate.comparisons.spend
    spend(len(selector))
    for key, value in selector.items():
        if node.labels.get(key) != value:
            return f"does not match the pod's nodeSelector {key}={value}"
    terms = candidate.manifest.node_terms
    is_evaluated = candidate.manifest.requires_nodes and len(terms) <= MAX_TERMS
    if is_evaluated and not node_matches(terms, node.name, node.labels, spend):
        return NODE_AFFINITY_MISMATCH
    return _emulated(candidate)


def _emulated(candidate: Candidate) -> str | None:
    # With CrossArchitectureVirtualization, the pod only prefers its architecture. KubeVirt emulates the CPU elsewhere.
    preferred = mappings(candidate.manifest.affinity, "nodeAffinity", PREFERRED)
    actual = candidate.node.labels.get(ARCHITECTURE) if candidate.node and preferred else None
    for term in preferred if actual else ():
        expressions = mappings(term, "preference", "matchExpressions") if term.get("weight") == WEIGHT else []
        candidate.comparisons.spend(1 + len(expressions))
        for each in expressions:
            if each.get("key") == ARCHITECTURE and actual not in strings(each, "values"):
                return f"has architecture {actual}, and the pod prefers its native one"
    return None


def _unpinnable_terms(candidate: Candidate) -> str | None:
    manifest = candidate.manifest
    part = unpinnable_part(manifest.node_terms, manifest.annotations, candidate.node_name)
    return f"cannot be checked against the pod's spec.affinity.nodeAffinity ({part})" if part else None


def _volume_mismatch(candidate: Candidate) -> str | None:
    return _unreachable(candidate, (*candidate.volumes, *candidate.hotpluggable_volumes))


def _unreachable(candidate: Candidate, volumes: Iterable[Volume]) -> str | None:
    node = candidate.node
    if node is None:
        return None
    for volume in volumes:
        if volume.node_affinity is not None:
            terms = mappings(volume.node_affinity, "nodeSelectorTerms")
            if not node_matches(terms, "", node.labels, candidate.comparisons.spend):
                return f"does not match the node affinity of PV {volume.name}"
        if volume.zones and not zones_match(volume.zones, node.labels):
            return f"does not match the zone or region label of PV {volume.name}"
    return None


def _full(candidate: Candidate) -> str | None:
    for item in candidate.resource_fits():
        if item.requested > item.free:
            return f"lacks {item.resource} (requested {format_quantity(item.resource, item.requested)})"
    return None


def _pod_affinity_conflict(candidate: Candidate) -> str | None:
    return candidate.pod_affinity.verdict.conflict


# In C: a pod has dozens of volumes and mounts.
_EPHEMERAL = attrgetter("ephemeral")
_HOST_PORT = attrgetter("host_port")
_BIND_MOUNT_OPTIONS = attrgetter("bind_mount_options")


def _unsupported_fields(manifest: Manifest) -> Iterator[str]:
    spec = manifest.spec
    if any(constraint.when_unsatisfiable == "DoNotSchedule" for constraint in spec.topology_spread_constraints):
        yield "topologySpreadConstraints"
    if spec.resource_claims:
        yield "resourceClaims"
    if any(map(_EPHEMERAL, spec.volumes)):  # its claim does not exist yet
        yield "volumes[].ephemeral"
    for kind, containers in (("containers", spec.containers), ("initContainers", spec.init_containers)):
        for container in containers:
            for field in _unsupported_fields_of(container):
                yield f"{kind}[].{field}"
    if spec.host_network and spec.host_users is False:  # only some nodes declare this feature
        yield "hostUsers"
    if spec.scheduling_gates:  # by the time when the gates are removed, the node may be full
        yield "schedulingGates"


def _unsupported_fields_of(container: Container) -> Iterator[str]:
    if any(map(_HOST_PORT, container.ports)):
        yield "ports[].hostPort"
    # Only some nodes declare these features: kube-scheduler, plugin NodeDeclaredFeatures.
    if any(rule.action == "RestartAllContainers" for rule in container.restart_policy_rules):
        yield "restartPolicyRules[].action"
    if any(map(_BIND_MOUNT_OPTIONS, container.volume_mounts)):
        yield "volumeMounts[].bindMountOptions"


def _constraints(candidate: Candidate) -> Iterator[str]:
    """Yield what the guard can't evaluate, and by which the scheduler might reject the node."""
    for field in _unsupported_fields(candidate.manifest):
        yield f"the pod's spec.{field}"
    if candidate.comparisons.left < 0:
        yield TOO_MANY_COMPARISONS
    unsupported = candidate.pod_affinity.verdict.unsupported
    if candidate.pod_affinity.passed_over and not candidate.is_restartable():
        yield "the required pod anti-affinity of pods in other namespaces, and the webhook cannot restart this VM"
    if unsupported:
        yield unsupported
    # The scheduler's VolumeBinding may need another node for a claim, for example with WaitForFirstConsumer.
    for name in candidate.claims_without_volume:
        claim = candidate.catalog.claim(candidate.namespace, name)
        if claim and not claim.is_bound(candidate.catalog.volume(claim.volume_name)):
            yield f"claim {name}, which has no PV yet"
    # Without a registered driver, the kubelet can't mount the volume, and the bound pod waits. Longhorn's driver may be
    # missing on the node of a share-manager, whose pod mounts no claim.
    found = candidate.catalog.csi_node(candidate.node_name)
    for volume in candidate.volumes:
        if found and volume.driver and volume.driver not in found.unlimited:
            yield f"PV {volume.name}, because CSI driver {volume.driver} limits its volumes there or is not registered"
    # The scheduler allocates such a device of a DeviceClass with the plugin DynamicResources, on some node.
    for name in candidate.unreported_resources:
        yield f"the request for {name}, which no node reports"


def _unsupported(candidate: Candidate) -> str | None:
    constraint = next(_constraints(candidate), None)
    return f"cannot be checked against {constraint}" if constraint else None


def _released(candidate: Candidate) -> str | None:
    vm = candidate.pod_facts.vm
    if vm and candidate.node_name in candidate.catalog.released_nodes(candidate.namespace, vm):
        return "may leave the VM Pending, because an earlier pod of the VM was unschedulable there within the last hour"
    return None


def _start_failed(candidate: Candidate) -> str | None:
    # The kubelet may refuse the VM for a cause that no check knows.
    if candidate.vm is None or candidate.vm.start_failures < MAX_START_FAILURES:
        return None
    return f"may refuse the VM, which failed to start {candidate.vm.start_failures} times in a row"


class Check(Struct, frozen=True):
    """One condition on the node."""

    reason: Reason
    question: str
    find_failure: Callable[[Candidate], str | None]  # returns the detail of a FailedCheck, or None if the check passes
    quiet: bool = False  # `explain` shows it only if it fails


_EXISTS = Check(Reason.NODE_NOT_FOUND, "exists", _not_found)
_STARTS = Check(Reason.START_FAILED, "the last two starts of this VM did not fail", _start_failed, quiet=True)
CHECKS = (
    Check(Reason.CACHE_STALE, "caches are up to date", _stale, quiet=True),
    _EXISTS,
    Check(Reason.NODE_NOT_READY, "Ready", _not_ready),
    Check(Reason.NODE_CORDONED, "not cordoned", _cordoned),
    Check(Reason.NODE_TAINTED, "taints tolerated by the pod", _tainted),
    Check(Reason.NODE_MISMATCH, "selected by nodeSelector and required node affinity", _node_mismatch),
    Check(Reason.VOLUME_MISMATCH, "selected by the node affinity and the zones of the claims' PVs", _volume_mismatch),
    Check(Reason.NODE_FULL, "enough free resources", _full),
    Check(Reason.POD_AFFINITY, "allowed by required pod (anti-)affinity", _pod_affinity_conflict),
    Check(Reason.RELEASED, "no unschedulable pod of this VM deleted in the last hour", _released, quiet=True),
    _STARTS,
    Check(Reason.UNJUDGED, "nothing that the guard can't evaluate", _unsupported),
)
GUARD_REASONS = tuple(check.reason for check in CHECKS)

# The conditions of a pin that don't depend on the guard.
_VALID_NAME = Check(
    Reason.NODE_NOT_FOUND,
    "valid node name",
    # The API server would reject the pod with such a term.
    lambda candidate: None if is_dns_subdomain(candidate.node_name) else "is not a valid node name",
    quiet=True,
)
_SERVING = Check(
    Reason.SHARE_MANAGER_STARTING,
    "runs the share-manager",
    lambda candidate: None if candidate.serves else STARTING,
    quiet=True,
)
_MATCHES_A_NODE = Check(
    Reason.NODE_MISMATCH,
    "a required node affinity that can match a node",
    lambda candidate: (
        NODE_AFFINITY_MISMATCH
        if candidate.manifest.requires_nodes and matches_no_node(candidate.manifest.node_terms)
        else None
    ),  # no term can carry the pin
    quiet=True,
)
_CAN_BE_PINNED = Check(Reason.UNJUDGED, "few required terms, none of which names a node", _unpinnable_terms, quiet=True)
PIN_CHECKS = (_VALID_NAME, *CHECKS, _CAN_BE_PINNED, _MATCHES_A_NODE)
# What the scheduler doesn't check. A preference of weight 100 would draw the pod to such a node again and again.
UNSEEN = (
    Check(Reason.NODE_MISMATCH, "of the architecture that the pod prefers", _emulated, quiet=True),
    _STARTS,
    Check(
        Reason.VOLUME_MISMATCH,
        "selected by the PVs of the hotpluggable claims",
        lambda candidate: _unreachable(candidate, candidate.hotpluggable_volumes),
        quiet=True,
    ),
)


def checks_in_force(*, required: bool, certain: bool, node_guard: bool) -> tuple[Check, ...]:
    """Return the checks on the node of a VM's claims, in order.

    A preference can't leave the pod Pending. `certain` means that a share-manager serves a claim there.
    """
    unseen = UNSEEN if node_guard else ()
    if not certain:
        return (_VALID_NAME, _EXISTS, *unseen, _SERVING)
    if not required:
        return (_VALID_NAME, *unseen)
    return PIN_CHECKS if node_guard else (_VALID_NAME, _CAN_BE_PINNED, _MATCHES_A_NODE)


def first_failed_check(candidate: Candidate, checks: Iterable[Check] = CHECKS) -> FailedCheck | None:
    """Return the first check that fails, or None if the node can run the pod."""
    for check in checks:
        try:
            detail = check.find_failure(candidate)
        except LimitExceeded:  # the last check reports it
            continue
        if detail:
            return FailedCheck(check.reason, detail)
    return None


def contest(candidate: Candidate) -> FailedCheck | None:
    """Return the check that fails because pods that are about to run on the node need its free resources.

    A pod that only prefers the node might be bound first. Then one of the pinned pods could never be scheduled.
    """
    if all(pod.key == candidate.pod_facts.key for pod in candidate.catalog.unbound_pods(candidate.node_name)):
        return None
    reasons = Reason.NODE_FULL, Reason.POD_AFFINITY
    return first_failed_check(candidate, [check for check in CHECKS if check.reason in reasons])
