"""The node guard: check whether a node can run a pod before the pod is pinned.

A required affinity to a node that can't run the pod leaves the VM Pending forever, which is worse than remote storage.
So the guard applies the scheduler's own rules before the scheduler does. A check passes if its facts are unknown.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from webhook.placement.catalog import Catalog, Node, Pod, Volume
from webhook.placement.claims import mounted_claims
from webhook.placement.decision import Reason
from webhook.placement.podaffinity import InterPodAffinity
from webhook.placement.podfacts import pod_facts
from webhook.placement.resources import PODS, format_quantity
from webhook.placement.selectors import REQUIRED, node_matches, required_terms, selects_namespaces
from webhook.placement.shape import JsonObject, mapping, mappings, text

MAX_NODE_SELECTOR_TERMS = (
    1000  # limit per node affinity: to add the pin to a term and to verify the patch takes 0.05 ms
)
CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


@dataclass(frozen=True)  # no slots: cached_property needs a __dict__
class Candidate:
    """A pod, its target node, and the PVs of the claims that it mounts."""

    pod: JsonObject
    namespace: str
    node_name: str
    volumes: tuple[Volume, ...]
    catalog: Catalog

    @property
    def node(self) -> Node | None:
        """Return the target node, or None if it is unknown."""
        return self.catalog.node(self.node_name)

    @cached_property
    def pod_facts(self) -> Pod:
        """Return the facts of the pod as if it ran on the target node.

        A pod without a name gets the UID of its VMI instead: the store's reservations use that UID, too.
        """
        labels = mapping(self.pod, "metadata", "labels")
        name = text(self.pod, "metadata", "name") or text(labels, "kubevirt.io/created-by")
        return pod_facts(self.pod, self.namespace, name, self.node_name)

    @cached_property
    def pod_affinity(self) -> InterPodAffinity:
        """Return the evaluator of required pod (anti-)affinity for this pod and the pods around the node."""
        affinity_terms = required_terms(self.pod, self.namespace, "podAffinity")
        return InterPodAffinity(self.pod_facts, affinity_terms, self.catalog)


class ResourceFit(NamedTuple):
    """A pod's request for one resource and the free amount on a node: CPU in millicores, others in whole units."""

    resource: str
    requested: int
    free: int


@dataclass(frozen=True, slots=True)
class FailedCheck:
    """The first check that failed, and the failure in words."""

    reason: Reason
    detail: str


def tolerates(pod: JsonObject, taint: JsonObject) -> bool:
    """Return whether the pod tolerates the taint. A toleration with an unknown operator tolerates nothing."""
    for toleration in mappings(pod, "spec", "tolerations"):
        if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
            continue
        operator, key = toleration.get("operator") or "Equal", text(toleration, "key")
        if operator == "Exists" and key in ("", text(taint, "key")):
            return True
        if operator == "Equal" and key == text(taint, "key") and text(toleration, "value") == text(taint, "value"):
            return True
    return False


def resource_fits(candidate: Candidate) -> list[ResourceFit]:
    """Compare the pod's requests with the node's free resources. Empty if the allocatable resources are unknown."""
    node = candidate.node
    if node is None or node.allocatable is None:
        return []
    load = candidate.catalog.requested(node.name, candidate.pod_facts.key)
    return [
        ResourceFit(resource, requested, node.allocatable.get(resource, 0) - load.get(resource, 0))
        for resource, requested in candidate.pod_facts.requests.items()
        # Every kubelet reports its pod capacity, so a node without one comes from a hand-written file.
        if resource != PODS or PODS in node.allocatable
    ]


def _not_found(candidate: Candidate) -> str | None:
    if candidate.node is None and candidate.catalog.has_nodes():
        return "it does not exist"
    return None


def _not_ready(candidate: Candidate) -> str | None:
    return "it is not Ready" if candidate.node and candidate.node.ready is False else None


def _cordoned(candidate: Candidate) -> str | None:
    node = candidate.node
    return "it is cordoned" if node and node.unschedulable and not tolerates(candidate.pod, CORDON) else None


def _tainted(candidate: Candidate) -> str | None:
    for taint in candidate.node.taints if candidate.node else ():
        if taint.get("effect") in ("NoSchedule", "NoExecute") and not tolerates(candidate.pod, taint):
            return f"it has the taint {text(taint, 'key')}:{taint['effect']}"
    return None


def _node_mismatch(candidate: Candidate) -> str | None:
    node = candidate.node
    if node is None:
        return None
    for key, value in mapping(candidate.pod, "spec", "nodeSelector").items():
        if node.labels.get(key) != value:
            return f"the pod's nodeSelector {key}={value} does not select it"
    affinity = mapping(candidate.pod, "spec", "affinity", "nodeAffinity")
    required = affinity.get(REQUIRED)
    if isinstance(required, dict) and not node_matches(required, node.name, node.labels):
        return "the pod's required node affinity does not select it"
    return None


def _volume_mismatch(candidate: Candidate) -> str | None:
    node = candidate.node
    if node is None:
        return None
    for volume in candidate.volumes:
        if volume.node_affinity is not None and not node_matches(volume.node_affinity, "", node.labels):
            return f"the node affinity of PV {volume.name} does not select it"
    return None


def _full(candidate: Candidate) -> str | None:
    for item in resource_fits(candidate):
        if item.requested > item.free:
            requested, free = (
                format_quantity(item.resource, item.requested),
                format_quantity(item.resource, max(item.free, 0)),
            )
            if requested == free:  # rounding hides the difference, so print exact amounts
                requested, free = str(item.requested), str(item.free)
            return f"it is full ({item.resource}: {requested} asked for, {free} free)"
    return None


def _pod_affinity_conflict(candidate: Candidate) -> str | None:
    return candidate.pod_affinity.conflict()


def unsupported_field(pod: JsonObject) -> str | None:
    """Return the first field by which the scheduler might reject the node and that the guard can't evaluate."""
    spec = mapping(pod, "spec")
    if any(item.get("whenUnsatisfiable") == "DoNotSchedule" for item in mappings(spec, "topologySpreadConstraints")):
        return "topologySpreadConstraints"
    if spec.get("resourceClaims"):
        return "resourceClaims"
    for kind in ("containers", "initContainers"):
        if any(port.get("hostPort") for item in mappings(spec, kind) for port in mappings(item, "ports")):
            return f"{kind}[].ports[].hostPort"
    if len(mappings(spec, "affinity", "nodeAffinity", REQUIRED, "nodeSelectorTerms")) > MAX_NODE_SELECTOR_TERMS:
        return f"affinity.nodeAffinity, of more than {MAX_NODE_SELECTOR_TERMS} terms,"
    for kind in ("podAffinity", "podAntiAffinity"):
        terms = mappings(spec, "affinity", kind, REQUIRED)
        if any(selects_namespaces(term) for term in terms):
            return f"affinity.{kind}'s namespaceSelector"
    return None


def _unbound_claim(candidate: Candidate) -> str | None:
    # The scheduler's VolumeBinding may need another node for it, for example with WaitForFirstConsumer.
    for name in mounted_claims(candidate.pod):
        claim = candidate.catalog.claim(candidate.namespace, name)
        if claim and not claim.volume_name:
            return f"claim {name}, which has no PV yet,"
    return None


def _scheduling_gates(candidate: Candidate) -> str | None:
    # The scheduler considers the pod only after the gates are removed. By then, the node may be full.
    return "the pod's spec.schedulingGates" if mapping(candidate.pod, "spec").get("schedulingGates") else None


def _unsupported(candidate: Candidate) -> str | None:
    field = unsupported_field(candidate.pod)
    constraint = (
        (f"the pod's spec.{field}" if field else None)
        or candidate.pod_affinity.unjudged()
        or _unbound_claim(candidate)
        or _scheduling_gates(candidate)
    )
    return f"{constraint} is not judged" if constraint else None


@dataclass(frozen=True, slots=True)
class Check:
    """One condition on the node. `find_failure` returns the failure in words, or None if the check passes."""

    reason: Reason
    question: str
    find_failure: Callable[[Candidate], str | None]


CHECKS = (
    Check(Reason.NODE_NOT_FOUND, "does it exist?", _not_found),
    Check(Reason.NODE_NOT_READY, "is it Ready?", _not_ready),
    Check(Reason.NODE_CORDONED, "is it free of a cordon?", _cordoned),
    Check(Reason.NODE_TAINTED, "does the pod tolerate its taints?", _tainted),
    Check(Reason.NODE_MISMATCH, "do nodeSelector and required node affinity select it?", _node_mismatch),
    Check(Reason.VOLUME_MISMATCH, "does the node affinity of the claims' PVs select it?", _volume_mismatch),
    Check(Reason.NODE_FULL, "has it room?", _full),
    Check(Reason.POD_AFFINITY, "does required pod (anti-)affinity allow it?", _pod_affinity_conflict),
    Check(Reason.UNJUDGED, "can all that the pod asks for be judged?", _unsupported),
)


def run_checks(candidate: Candidate) -> Iterator[tuple[Check, str | None]]:
    """Yield each check with its failure in words, or with None if the check passes."""
    return ((check, check.find_failure(candidate)) for check in CHECKS)


def first_failed_check(candidate: Candidate) -> FailedCheck | None:
    """Return the first check that fails, or None if the node can run the pod."""
    return next((FailedCheck(check.reason, detail) for check, detail in run_checks(candidate) if detail), None)
