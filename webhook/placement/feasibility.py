"""Why a node could not take this pod, or nothing: the node guard.

A required affinity to a node that can't take the pod leaves the VM Pending for ever: worse than remote storage. So
these are the scheduler's own rules, asked before it is. What is unknown passes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from webhook.placement.catalog import Catalog, Node, Pod, Volume
from webhook.placement.decision import Reason
from webhook.placement.podaffinity import InterPodAffinity
from webhook.placement.podfacts import pod_facts
from webhook.placement.resources import PODS, format_quantity
from webhook.placement.selectors import REQUIRED, node_matches, required_terms, selects_namespaces
from webhook.placement.shape import JsonObject, mapping, mappings, text

TERMS = 1000  # of a node affinity; a pin goes into each, and is proven there, at 0.05 ms a term
CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


@dataclass(frozen=True)  # without slots, where nothing can be cached
class Candidate:
    """A pod, the node meant for it, and the PVs of the claims that it mounts."""

    pod: JsonObject
    namespace: str
    node_name: str
    volumes: tuple[Volume, ...]
    catalog: Catalog

    @property
    def node(self) -> Node | None:
        """The node, None where it is not known."""
        return self.catalog.node(self.node_name)

    @cached_property
    def pod_facts(self) -> Pod:
        """The pod as others will see it on the node. While it has no name, the uid of its VMI is one: store.vm_of."""
        labels = mapping(self.pod, "metadata", "labels")
        name = text(self.pod, "metadata", "name") or text(labels, "kubevirt.io/created-by")
        return pod_facts(self.pod, self.namespace, name, self.node_name)

    @cached_property
    def pod_affinity(self) -> InterPodAffinity:
        """The pods around the node."""
        affinity_terms = required_terms(self.pod, self.namespace, "podAffinity")
        return InterPodAffinity(self.pod_facts, affinity_terms, self.catalog)


class ResourceFit(NamedTuple):
    """One resource that a pod asks for on a node: cpu in milli, all others in whole units."""

    resource: str
    requested: int
    free: int


@dataclass(frozen=True, slots=True)
class FailedCheck:
    """The first check that failed, and in what way."""

    reason: Reason
    detail: str


def tolerates(pod: JsonObject, taint: JsonObject) -> bool:
    """Say whether one of the pod's tolerations is for this taint. An operator that we do not know tolerates nothing."""
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
    """Compare what the pod asks for with what the node has left, resource by resource; empty where it is not told."""
    node = candidate.node
    if node is None or node.allocatable is None:
        return []
    load = candidate.catalog.requested(node.name, candidate.pod_facts.key)
    return [
        ResourceFit(resource, requested, node.allocatable.get(resource, 0) - load.get(resource, 0))
        for resource, requested in candidate.pod_facts.requests.items()
        # Every kubelet tells how many pods it takes. A node that does not was written by hand.
        if resource != PODS or PODS in node.allocatable
    ]


def _missing(candidate: Candidate) -> str | None:
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


def _mismatched(candidate: Candidate) -> str | None:
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


def _unreachable(candidate: Candidate) -> str | None:
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
            asked, free = (
                format_quantity(item.resource, item.requested),
                format_quantity(item.resource, max(item.free, 0)),
            )
            if asked == free:  # told apart by less than what is written
                asked, free = str(item.requested), str(item.free)
            return f"it is full ({item.resource}: {asked} asked for, {free} free)"
    return None


def _repelled(candidate: Candidate) -> str | None:
    return candidate.pod_affinity.conflict()


def unjudged_field(pod: JsonObject) -> str | None:
    """Name the first field by which the scheduler might refuse the node and which we do not judge."""
    spec = mapping(pod, "spec")
    if any(item.get("whenUnsatisfiable") == "DoNotSchedule" for item in mappings(spec, "topologySpreadConstraints")):
        return "topologySpreadConstraints"
    if spec.get("resourceClaims"):
        return "resourceClaims"
    for kind in ("containers", "initContainers"):
        if any(port.get("hostPort") for item in mappings(spec, kind) for port in mappings(item, "ports")):
            return f"{kind}[].ports[].hostPort"
    if len(mappings(spec, "affinity", "nodeAffinity", REQUIRED, "nodeSelectorTerms")) > TERMS:
        return f"affinity.nodeAffinity, of more than {TERMS} terms,"
    for kind in ("podAffinity", "podAntiAffinity"):
        terms = mappings(spec, "affinity", kind, REQUIRED)
        if any(selects_namespaces(term) for term in terms):
            return f"affinity.{kind}'s namespaceSelector"
    return None


def _unjudged(candidate: Candidate) -> str | None:
    field = unjudged_field(candidate.pod)
    what = f"the pod's spec.{field}" if field else candidate.pod_affinity.unjudged()
    return f"{what} is not judged" if what else None


@dataclass(frozen=True, slots=True)
class Check:
    """One question about the node. `ask` answers with what is in the way, or None."""

    reason: Reason
    question: str
    ask: Callable[[Candidate], str | None]


CHECKS = (
    Check(Reason.NODE_NOT_FOUND, "does it exist?", _missing),
    Check(Reason.NODE_NOT_READY, "is it Ready?", _not_ready),
    Check(Reason.NODE_CORDONED, "is it free of a cordon?", _cordoned),
    Check(Reason.NODE_TAINTED, "does the pod tolerate its taints?", _tainted),
    Check(Reason.NODE_MISMATCH, "do nodeSelector and required node affinity select it?", _mismatched),
    Check(Reason.VOLUME_MISMATCH, "does the node affinity of the claims' PVs select it?", _unreachable),
    Check(Reason.NODE_FULL, "has it room?", _full),
    Check(Reason.POD_AFFINITY, "does required pod (anti-)affinity allow it?", _repelled),
    Check(Reason.UNJUDGED, "can all that the pod asks for be judged?", _unjudged),
)


def run_checks(candidate: Candidate) -> Iterator[tuple[Check, str | None]]:
    """Ask one check after the other."""
    return ((check, check.ask(candidate)) for check in CHECKS)


def first_failed_check(candidate: Candidate) -> FailedCheck | None:
    """Return the first check that fails, or None where the node can take the pod."""
    return next((FailedCheck(check.reason, detail) for check, detail in run_checks(candidate) if detail), None)
