"""The nodes that can run a pod, by the scheduler's rules."""

from collections.abc import Callable, Collection, Sequence

from msgspec import Struct

from webhook.fleet.starts import SCHEDULER_CHECKS
from webhook.placement.catalog import Catalog
from webhook.placement.guard.candidate import Candidate
from webhook.placement.guard.feasibility import first_failed_check
from webhook.placement.objects.facts import Pod
from webhook.placement.reasons import Reason

NO_NODE = "no other node can run it"


class Places(Struct, frozen=True):
    """The nodes that can run a pod."""

    nodes: tuple[str, ...] = ()
    sure: bool = False  # one of them can, wherever other VMs go
    problem: str = NO_NODE  # why none of them can
    pod: Pod | None = None  # the pod


def find_places(
    candidate: Callable[[str, Catalog], Candidate],
    catalog: Catalog,
    others: Catalog | None,
    most: int | None,
    among: Collection[str] = (),
) -> Places:
    """Return the first nodes that pass the scheduler's rules, by their names; of those `among` which, or of all."""
    passing = list[Candidate]()
    failures = list[str]()
    for node in sorted(among or (each.name for each in catalog.all_nodes())):
        found = candidate(node, catalog)
        failed = first_failed_check(found, SCHEDULER_CHECKS)
        if failed is None:
            passing.append(found)
            if len(passing) == most:
                break
        elif failed.reason is not Reason.NODE_CORDONED:
            failures.append(f"{node} {failed.detail}")
    if not passing:
        return Places(problem=": ".join([NO_NODE, *failures[:1]]))
    nodes = tuple(each.node_name for each in passing)
    sure = others is None or any(
        first_failed_check(candidate(node, others), SCHEDULER_CHECKS) is None for node in nodes
    )
    return Places(nodes, sure, "", passing[0].pod_facts)


def where(targets: Sequence[str]) -> str:
    """Return a phrase for the nodes that a VM may be on."""
    return f"to {targets[0]}" + (f" or {len(targets) - 1} more" if targets[1:] else "")
