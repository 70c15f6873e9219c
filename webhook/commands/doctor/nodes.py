"""The checks of the nodes and of the VMs: taints, and Pending pods."""

from collections.abc import Iterator
from datetime import UTC, datetime

from webhook.cluster.caches.kinds import NODES
from webhook.cluster.machines import seconds_since_creation
from webhook.commands.doctor.inspection import Inspection, Result, listed, ok, warning
from webhook.fleet.release import why_not_scheduled
from webhook.placement.objects.fields import mappings, text
from webhook.placement.objects.kubevirt import APP_LABEL, VIRT_LAUNCHER, vmi_name
from webhook.placement.reasons import Reason
from webhook.placement.wording import ADVICE
from webhook.reading.installation import Installation

LAUNCHERS = f"{APP_LABEL}={VIRT_LAUNCHER}"
PREFER_NO_SCHEDULE = "PreferNoSchedule"


def nodes(inspection: Inspection, _: Installation) -> Iterator[Result]:
    """Check the nodes' taints, and the Pending pods of VMs."""
    found = inspection.items(NODES.path)
    tainted = [
        text(node, "metadata", "name")
        for node in found
        if any(taint.get("effect") == PREFER_NO_SCHEDULE for taint in mappings(node, "spec", "taints"))
    ]
    if tainted:
        yield warning(
            f"nodes with a {PREFER_NO_SCHEDULE} taint: {len(tainted)} of {len(found)} ({listed(tainted)})",
            "The scheduler may place share-manager pods elsewhere: remove the taint from nodes that run VMs.",
        )
    else:
        yield ok(f"no node has a {PREFER_NO_SCHEDULE} taint, which would outweigh the steering of share-manager pods")
    if not_scheduled := list(_not_scheduled(inspection)):
        yield warning(
            f"VM pods that no scheduler has evaluated: {len(not_scheduled)} ({listed(not_scheduled)})",
            ADVICE[Reason.NOT_SCHEDULED],
        )


def _not_scheduled(inspection: Inspection) -> Iterator[str]:
    """Yield the VMs whose pods no scheduler has evaluated, each with the name of its scheduler."""
    now = datetime.now(UTC)
    for pod in inspection.items("/api/v1/pods", labelSelector=LAUNCHERS, fieldSelector="status.phase=Pending"):
        if why_not_scheduled(pod, seconds_since_creation(pod, now)):
            namespace, scheduler = text(pod, "metadata", "namespace"), text(pod, "spec", "schedulerName")
            yield f"{namespace}/{vmi_name(pod)}: {scheduler}"
