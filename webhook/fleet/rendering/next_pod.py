"""The pod that KubeVirt would create for a VM now, and the target pod of a live migration.

KubeVirt renders a virt-launcher pod from the VMI: pkg/virt-controller/services/template.go. A live-migration target
gets more: `createTargetPod` in pkg/virt-controller/watch/migration/migration.go.
"""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from webhook.fleet.rendering.instance_type import has_instance_type
from webhook.fleet.rendering.template import (
    MACHINE_TYPE,
    MIGRATION_SELECTORS,
    Rendering,
    node_selector,
    rendered_affinity,
    rendered_spec,
    repelling_reservations,
    reservation_labels,
    target_selector,
)
from webhook.placement.affinity import without_injection
from webhook.placement.eligibility import MODE_ANNOTATION
from webhook.placement.objects.fields import JsonObject, has_condition, mapping, mappings, text
from webhook.placement.objects.kubevirt import (
    APP_LABEL,
    CREATED_BY_LABEL,
    EVICTION_SOURCE,
    HOSTNAME,
    MIGRATION_LABEL,
    MIGRATION_NAME_ANNOTATION,
    STATE_CLAIM_LABEL,
    VIRT_LAUNCHER,
    VMI_NAME_ANNOTATION,
)
from webhook.placement.objects.pod import DECIDING_CLAIM_ANNOTATION, Manifest, mounted_claims
from webhook.placement.objects.pod_object import NO_STATUS, PodObject, PodSpec
from webhook.placement.objects.selectors import REQUIRED
from webhook.placement.objects.typed import convert
from webhook.placement.settings import Settings

_OF_THE_MIGRATION = frozenset({MIGRATION_LABEL, MIGRATION_NAME_ANNOTATION, EVICTION_SOURCE})
_ANY = Rendering()
NO_UIDS: Mapping[str, str] = {}


def before_scheduling(pod: PodObject, vmi: JsonObject | None = None) -> PodObject:
    """Return a pod as it was at creation: without the node, the webhook's changes and the status.

    With its VMI, a term of the user that equals the webhook's pin stays. Raises Malformed.
    """
    metadata, spec = pod.metadata, pod.spec
    own_affinity = mapping(vmi, "spec", "affinity")
    annotations, affinity = without_injection(metadata.annotations or {}, spec.affinity or {}, own_affinity)
    return replace(
        pod,
        metadata=replace(metadata, annotations=annotations),
        spec=replace(spec, affinity=affinity, node_name=""),
        status=NO_STATUS,
    )


def next_pod(
    pod: PodObject,
    vm: JsonObject | None,
    vmi: JsonObject | None,
    settings: Settings,
    kubevirt: JsonObject | None = None,
) -> PodObject:
    """Return the pod that KubeVirt would create if the VM of a running pod were restarted.

    The pod keeps its name, so that its own requests and anti-affinity don't stand in its way. `vm` and `vmi` are None
    if they are missing or unknown, and so is `kubevirt`, KubeVirt's own object. Raises Malformed.
    """
    if vm is not None and has_condition(vm, "RestartRequired"):
        return _from_template(pod, vm, Rendering.of(kubevirt))
    created = pod_of_vmi(pod, vm, vmi, kubevirt)
    if vm is None:
        return created
    annotations = _with_template_annotations(created.metadata.annotations or {}, vm, settings)
    return replace(created, metadata=replace(created.metadata, annotations=annotations))


def pod_of_vmi(pod: PodObject, vm: JsonObject | None, vmi: JsonObject | None, kubevirt: JsonObject | None) -> PodObject:
    """Return the pod that KubeVirt would create for the VMI of a running pod, without changes that need a restart.

    Raises Malformed.
    """
    created = before_scheduling(pod, vmi)
    metadata, spec = created.metadata, created.spec
    status = mapping(vm, "status")
    # If the VM changes, KubeVirt updates where its VMI may run, but not the pod: `handleAffinityChangeRequest` in
    # https://github.com/kubevirt/kubevirt/blob/d923fdb8/pkg/virt-controller/watch/vm/vm.go
    has_changed = status.get("observedGeneration") != status.get("desiredGeneration")
    if vmi is not None and (metadata.labels.get(MIGRATION_LABEL) or has_changed):
        spec = _rendered_again(spec, mapping(vmi, "spec"), Rendering.of(kubevirt))
    annotations = metadata.annotations or {}
    metadata = replace(
        metadata,
        annotations={key: value for key, value in annotations.items() if key not in _OF_THE_MIGRATION},
        labels={key: value for key, value in metadata.labels.items() if key not in _OF_THE_MIGRATION},
    )
    return replace(created, metadata=metadata, spec=spec)


def _from_template(pod: PodObject, vm: JsonObject, rendering: Rendering) -> PodObject:
    """Return the next pod of a VM whose template has changes that only a restart applies."""
    state_claims = [name for name in mounted_claims(pod.spec.volumes) if name.startswith(f"{STATE_CLAIM_LABEL}-")]
    rendered = convert(rendered_pod(vm, state_claims, rendering), PodObject)
    labels = rendered.metadata.labels | {CREATED_BY_LABEL: pod.metadata.labels.get(CREATED_BY_LABEL, "")}
    return replace(rendered, metadata=replace(rendered.metadata, name=pod.metadata.name, labels=labels))


def _with_template_annotations(annotations: JsonObject, vm: JsonObject, settings: Settings) -> JsonObject:
    """Replace the webhook's annotations by those that the VM's template has by now."""
    own = {*settings.opt_in_annotations, MODE_ANNOTATION, DECIDING_CLAIM_ANNOTATION}
    template = mapping(vm, "spec", "template", "metadata", "annotations")
    if has_instance_type(vm):
        own &= template.keys()
    kept = {key: value for key, value in annotations.items() if key not in own}
    return kept | {key: value for key, value in template.items() if key in own}


def _rendered_again(spec: PodSpec, vmi_spec: JsonObject, rendering: Rendering) -> PodSpec:
    """Take from the VMI where the pod may run: a live migration adds its own terms, and a user may have changed them.

    Selectors of KubeVirt that only its configuration explains stay, for example for Hyper-V.
    """
    of_kubevirt = {
        key: value
        for key, value in spec.node_selector.items()
        if "kubevirt.io/" in key and not key.startswith(MIGRATION_SELECTORS)
    }
    has_machine_type = any(key.startswith(MACHINE_TYPE) for key in spec.node_selector)
    own = node_selector(vmi_spec, replace(rendering, machine_types=has_machine_type))
    rendered = convert({"nodeSelector": of_kubevirt | own, "tolerations": mappings(vmi_spec, "tolerations")}, PodSpec)
    return replace(
        spec,
        affinity=rendered_affinity(vmi_spec, rendering),
        node_selector=rendered.node_selector,
        tolerations=rendered.tolerations,
    )


def rendered_pod(
    vm: JsonObject,
    state_claims: Iterable[str] = (),
    rendering: Rendering = _ANY,
    uids: Mapping[str, str] = NO_UIDS,
) -> JsonObject:
    """Return the pod of a VM that doesn't run. `state_claims` are the claims of its persistent vTPM or EFI state.

    An approximation: sidecars, for example, have requests, too. The VM's template includes its instance type.
    """
    template = mapping(vm, "spec", "template")
    name = text(vm, "metadata", "name")
    namespace = text(vm, "metadata", "namespace")
    reserved = reservation_labels(mapping(template, "spec"), uids) if rendering.reserves else {}
    metadata = {
        "generateName": f"virt-launcher-{name}-",
        "namespace": namespace,
        "labels": mapping(template, "metadata", "labels") | {APP_LABEL: VIRT_LAUNCHER} | reserved,
        "annotations": mapping(template, "metadata", "annotations") | {VMI_NAME_ANNOTATION: name},
    }
    spec = rendered_spec(mapping(template, "spec"), state_claims, rendering)
    spec["affinity"] = repelling_reservations(mapping(spec, "affinity"), reserved)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def target_pod(
    template: Manifest,
    current: Manifest | None,
    vmi: JsonObject,
    hostname: str,
    source_labels: Mapping[str, str],
) -> Manifest:
    """Return the target pod of a migration to the node with this hostname label.

    `template` is from `pod_of_vmi`, `current` the pod that runs the VM, and `source_labels` are the labels of its node.
    The target pod has no name, so the guard counts the current pod as another pod: both run during the migration.
    """
    # KubeVirt lets the selector of the VM win.
    selector = {HOSTNAME: hostname} | template.spec.node_selector
    selector = target_selector(selector, current.spec.node_selector if current else {}, vmi, source_labels)
    anti_affinity = mapping(template.affinity, "podAntiAffinity")
    # `createMigrationPodAntiAffinityRule`: the target never runs on the node of its source.
    own = {"labelSelector": {"matchLabels": {CREATED_BY_LABEL: template.vmi_uid}}, "topologyKey": HOSTNAME}
    terms = [*mappings(anti_affinity, REQUIRED), own]
    affinity = template.affinity | {"podAntiAffinity": anti_affinity | {REQUIRED: terms}}
    metadata = replace(
        template.metadata,
        name="",
        uid="",
        creation_timestamp=None,
        labels=template.labels | {MIGRATION_LABEL: "future"},
    )
    spec = replace(template.spec, node_selector=selector, affinity=affinity)
    return Manifest(replace(template.pod, metadata=metadata, spec=spec), template.namespace)
