"""The checks of the nodes and of the VMs: taints, free pod capacity, and Pending pinned pods."""

from collections.abc import Iterator
from datetime import UTC, datetime

from webhook.cluster.caches.kinds import NODES, PODS
from webhook.cluster.caches.store import NO_KEY, Store
from webhook.cluster.machines import seconds_since_creation
from webhook.commands.doctor.inspection import Inspection
from webhook.commands.doctor.result import Result, listed, ok, warning
from webhook.fleet.release import why_not_scheduled
from webhook.placement.objects.facts import Node
from webhook.placement.objects.fields import text
from webhook.placement.objects.kubevirt import APP_LABEL, VIRT_LAUNCHER, vmi_name
from webhook.placement.objects.resources import PODS as POD_COUNT
from webhook.placement.reasons import Reason
from webhook.placement.wording import ADVICE
from webhook.reading.installation import Installation

LAUNCHERS = f"{APP_LABEL}={VIRT_LAUNCHER}"
LOW_SHARE = 0.05  # of a node's allocatable pods
PREFER_NO_SCHEDULE = "PreferNoSchedule"


def read_nodes(inspection: Inspection) -> Store:
    """Read the nodes and the pods."""
    return Store(fact for kind in (NODES, PODS) for fact in inspection.facts(kind))


def nodes(inspection: Inspection, _: Installation) -> Iterator[Result]:
    """Check the nodes' taints and free pod capacity, and the Pending pinned pods."""
    store = read_nodes(inspection)
    found = [node for _, name in sorted(store.nodes) if (node := store.node(name))]
    yield from _taints(found)
    yield from _pod_capacity(found, store)
    not_scheduled = list(_not_scheduled(inspection))
    if not_scheduled:
        yield warning(
            f"VM pods that no scheduler has evaluated: {len(not_scheduled)} ({listed(not_scheduled)})",
            ADVICE[Reason.NOT_SCHEDULED],
        )
    if not not_scheduled or store.stuck_pins():
        yield _pending_pins(store)


def _taints(found: list[Node]) -> Iterator[Result]:
    tainted = [node.name for node in found if any(taint.get("effect") == PREFER_NO_SCHEDULE for taint in node.taints)]
    if tainted:
        yield warning(
            f"nodes with a {PREFER_NO_SCHEDULE} taint: {len(tainted)} of {len(found)} ({listed(tainted)})",
            "The scheduler may place share-manager pods elsewhere: remove the taint from nodes that run VMs.",
        )
    else:
        yield ok(f"no node has a {PREFER_NO_SCHEDULE} taint, which would outweigh the steering of share-manager pods")


def _pod_capacity(found: list[Node], store: Store) -> Iterator[Result]:
    crowded = []
    for node in found:
        allocatable = (node.allocatable or {}).get(POD_COUNT, 0)
        free = allocatable - store.requested(node.name, NO_KEY).get(POD_COUNT, 0)
        if allocatable and free <= allocatable * LOW_SHARE:
            crowded.append(f"{node.name}: {free} of {allocatable} free")
    if crowded:
        advice = "The webhook pins no VM to a full node. Move pods away, or raise the kubelet's maxPods."
        yield warning(f"nodes with almost no pod capacity left: {len(crowded)} ({listed(crowded)})", advice)
    else:
        yield ok(f"all nodes have free pod capacity ({len(found)})")


def _not_scheduled(inspection: Inspection) -> Iterator[str]:
    """Yield the VMs whose pods no scheduler has evaluated, each with the name of its scheduler."""
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    for pod in inspection.items("/api/v1/pods", labelSelector=LAUNCHERS, fieldSelector="status.phase=Pending"):
        if why_not_scheduled(pod, seconds_since_creation(pod, now)):
            namespace, scheduler = text(pod, "metadata", "namespace"), text(pod, "spec", "schedulerName")
            yield f"{namespace}/{vmi_name(pod)}: {scheduler}"


def _pending_pins(store: Store) -> Result:
    waiting = sorted(f"{pod.namespace}/{pod.pin.vm}" for pod in store.stuck_pins() if pod.pin)
    if waiting:
        return warning(
            f"pinned VMs that cannot be scheduled: {len(waiting)} ({listed(waiting)})",
            "Find the reason: kubevirt-scheduler explain vm NAME -n NAMESPACE",
        )
    return ok("all pinned VMs are scheduled")
