"""Builders of VMs as KubeVirt runs them: the VM, its VMI, its virt-launcher pod, and the machines of a cluster."""

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from tests.support import builders
from tests.support.builders import (
    KINDS,
    OPT_IN,
    Object,
    fact_of,
    pinned_fields,
    pod,
    settings,
    typed,
    virt_launcher,
    virtual_machine,
)
from webhook.catalog.inventory import Inventory
from webhook.catalog.store import Store, parse_time
from webhook.fleet.machine import Machine, Status
from webhook.fleet.relocation.rules import Move, Refusal, Surroundings
from webhook.fleet.simulation.plan import plan_move
from webhook.fleet.states import assess
from webhook.placement.guard.candidate import Candidate
from webhook.placement.guard.feasibility import first_failed_check

CREATED = "2026-08-01T12:00:00Z"
NOW = "2026-08-01T12:00:45Z"
LATER = "2026-08-01T13:00:00Z"
# What only the report knows of a VM: `explain` reads one VM.
OF_THE_FLEET = ("plan", "traffic", "nfs")


def vm(name: str = "vm1", *, opt_in: bool = True, annotations: Object | None = None, **spec: Any) -> Object:
    """Build a VM; unknown keywords go into the spec of its template."""
    built = virtual_machine(name, annotations=({OPT_IN: "true"} if opt_in else {}) | (annotations or {}))
    built["spec"]["template"]["spec"] = spec
    return built


def vmi(name: str = "vm1", *, paused: bool = False, **spec: Any) -> Object:
    """Build the VMI of a VM."""
    conditions = [{"type": "Paused", "status": "True"}] if paused else []
    return builders.vmi(name, owner_kind="") | {"spec": spec, "status": {"conditions": conditions}}


def longhorn_volume(name: str = "vol-disk1", locality: str = "best-effort", replicas: int = 3, **status: Any) -> Object:
    """Build Longhorn's Volume, as its CRD has it; unknown keywords go into the status."""
    attached = {"currentNodeID": "node-a"}
    return {
        "apiVersion": "longhorn.io/v1beta2",
        "kind": "Volume",
        "metadata": {"name": name, "namespace": "longhorn-system"},
        "spec": {"dataLocality": locality, "numberOfReplicas": replicas},
        "status": attached | status,
    }


def replica(
    node: str = "node-a", volume: str = "vol-disk1", *, suffix: str = "r", deleting: bool = False, **spec: Any
) -> Object:
    """Build a healthy Replica of a Longhorn volume; unknown keywords go into the spec."""
    metadata = {"name": f"{volume}-{suffix}-{node}", "namespace": "longhorn-system"}
    healthy = {"volumeName": volume, "nodeID": node, "healthyAt": CREATED, "failedAt": ""}
    return {
        "apiVersion": "longhorn.io/v1beta2",
        "kind": "Replica",
        "metadata": metadata | ({"deletionTimestamp": LATER} if deleting else {}),
        "spec": healthy | spec,
    }


def vm_pod(
    name: str = "vm1",
    node: str = "node-a",
    *,
    suffix: str = "abcde",
    decided: str = "",
    pinned: str = "",
    labels: Object | None = None,
    annotations: Object | None = None,
    created: str = CREATED,
    **rest: Any,
) -> Object:
    """Build the pod that runs a VM. `decided` is the recorded reason, `pinned` the node of its pin."""
    own: Object = {"kubevirt.io/domain": name}
    if decided:
        own["kubevirt-scheduler/decision"] = f"{decided}: a sentence"
    if pinned:
        fields = pinned_fields(pinned)
        own |= fields["annotations"]
        rest |= {"affinity": fields["affinity"]}
    built = virt_launcher(
        f"virt-launcher-{name}-{suffix}",
        node=node,
        labels={"kubevirt.io/created-by": f"uid-of-{name}"} | (labels or {}),
        annotations=own | (annotations or {}),
        **rest,
    )
    built["metadata"]["creationTimestamp"] = created
    return built


def inventory(*manifests: Object) -> Inventory:
    """Build the inventory of a cluster that holds only these objects."""
    found = Inventory(Store(taken_at=parse_time(NOW)))
    for manifest in manifests:
        found.keep(manifest["kind"], KINDS[manifest["kind"]].convert(manifest))
        fact = fact_of(manifest)
        if fact is not None:
            found.store.put(fact)
    return found


def statuses(*manifests: Object, **overrides: Any) -> dict[str, Status]:
    """Return the status of each VM of a cluster by its name."""
    found, chosen = inventory(*manifests), settings(**overrides)
    return {machine.name: assess(machine, found.store, chosen) for machine in found.machines(chosen)}


def apart(*manifests: Object, **overrides: Any) -> tuple[Status, Move | Refusal]:
    """Return the status of the VM `vm1` of a cluster, and how live migration can move it."""
    found, chosen = inventory(*manifests), settings(**overrides)
    (machine,) = (each for each in found.machines(chosen) if each.name == "vm1")
    assessed = assess(machine, found.store, chosen)
    return assessed, plan_move(assessed, Surroundings(chosen), found.store)


def status(*manifests: Object, **overrides: Any) -> Status:
    """Return the status of the only VM of a cluster."""
    (found,) = statuses(*manifests, **overrides).values()
    return found


def without_manifests(machines: Iterable[Machine]) -> list[Machine]:
    """Return the machines as the webhook's caches know them."""
    return [replace(machine, manifest=None, template=None, target=None, paused=False) for machine in machines]


def installation(variables: Object | None = None, *, called: bool = True) -> list[Object]:
    """Build what the chart installs, as far as it decides about predictions. `variables` are the settings."""
    labels, name = {"app": "webhook"}, "kubevirt-scheduler"
    client = {"service": {"namespace": name, "name": "webhook"}} | ({"caBundle": "Y2E="} if called else {})
    metadata = {"name": name, "namespace": name, "labels": labels | {"app.kubernetes.io/version": "1.2.3"}}
    environment = [{"name": key, "value": value} for key, value in (variables or {}).items()]
    template = {"spec": {"containers": [{"name": "webhook", "env": environment}]}}
    replica = pod("webhook-0", name, labels=labels)
    replica["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    return [
        {
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": name},
            "webhooks": [{"name": "vms.kubevirt-scheduler.io", "clientConfig": client}],
        },
        {"kind": "Service", "metadata": {"name": "webhook", "namespace": name}, "spec": {"selector": labels}},
        {"kind": "Deployment", "metadata": metadata, "spec": {"template": template}},
        replica,
    ]


def without_settings(stderr: str) -> str:
    """Return the standard error of a command without the line that says which settings it uses."""
    lines = stderr.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(("Settings: ", "The webhook is not installed")))


def admits(store: Store, pod: Object, node: str) -> bool:
    """Return whether the guard admits the pod. `e2e/test_properties` compares the guard with the scheduler."""
    return first_failed_check(Candidate(typed(pod), node, store)) is None
