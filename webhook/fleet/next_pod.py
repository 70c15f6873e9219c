"""The pod that KubeVirt would create for a VM now, and the target pod of a live migration.

KubeVirt renders a virt-launcher pod from the VMI: pkg/virt-controller/services/template.go. A live-migration target
gets more: `createTargetPod` in pkg/virt-controller/watch/migration/migration.go.
"""

from collections.abc import Iterable, Mapping

from webhook.fleet.instance_type import has_instance_type
from webhook.fleet.vm_pod_template import (
    MACHINE_TYPE,
    MIGRATION_SELECTORS,
    Rendering,
    lasting_selectors,
    rendered_spec,
    target_selectors,
)
from webhook.placement.affinity import CO_SCHEDULED_NODE, DECISION, without_injection
from webhook.placement.eligibility import MODE_ANNOTATION, creator_of
from webhook.placement.objects.claims import DECIDING_CLAIM_ANNOTATION, mounted_claims
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
    is_migration_target,
    vmi_uid,
)
from webhook.placement.objects.selectors import REQUIRED
from webhook.placement.reasons import OptedInBy, Reason
from webhook.placement.settings import MigrationTargets, Settings

_OF_THE_MIGRATION = frozenset({MIGRATION_LABEL, MIGRATION_NAME_ANNOTATION, EVICTION_SOURCE})
# Keys of the nodeSelector that KubeVirt itself adds to every virt-launcher pod, besides those with "kubevirt.io/".
_SELECTORS_OF_KUBEVIRT = frozenset({"kubernetes.io/arch", "cpumanager"})
_OF_ONE_POD = frozenset({"name", "uid", "creationTimestamp", "resourceVersion"})
_ANY = Rendering()


def before_scheduling(pod: JsonObject, vmi: JsonObject | None = None) -> JsonObject:
    """Return a pod as it was at creation: without the node, the webhook's changes and the status.

    With its VMI, a term of the user that equals the webhook's pin stays.
    """
    original = without_injection(pod, mapping(vmi, "spec", "affinity"))
    spec = {key: value for key, value in mapping(original, "spec").items() if key != "nodeName"}
    return {key: value for key, value in original.items() if key != "status"} | {"spec": spec}


def next_pod(
    pod: JsonObject,
    vm: JsonObject | None,
    vmi: JsonObject | None,
    settings: Settings,
    rendering: Rendering = _ANY,
) -> JsonObject:
    """Return the pod that KubeVirt would create if the VM of a running pod were restarted.

    The pod keeps its name, so that its own requests and anti-affinity don't stand in its way. `vm` and `vmi` are None
    if they are missing or unknown.
    """
    if vm is not None and has_condition(vm, "RestartRequired"):
        return _from_template(pod, vm, rendering)
    created = before_scheduling(pod, vmi)
    metadata, spec = mapping(created, "metadata"), mapping(created, "spec")
    annotations = mapping(metadata, "annotations")
    if vm is not None:
        annotations = _with_template_annotations(annotations, vm, settings)
    if is_migration_target(pod):
        spec = _spec_before_migration(created, vmi, rendering.node_selectors)
        machine = machine_type(mapping(vm, "spec", "template", "spec")) or machine_type(mapping(vmi, "spec"))
        spec = spec | {"nodeSelector": with_machine_type(spec["nodeSelector"], machine)}
    metadata = metadata | {
        "annotations": {key: value for key, value in annotations.items() if key not in _OF_THE_MIGRATION},
        "labels": {key: value for key, value in mapping(metadata, "labels").items() if key not in _OF_THE_MIGRATION},
    }
    return created | {"metadata": metadata, "spec": spec}


def _from_template(pod: JsonObject, vm: JsonObject, rendering: Rendering) -> JsonObject:
    """Return the next pod of a VM whose template has changes that only a restart applies."""
    state_claims = [name for name in mounted_claims(pod) if name.startswith(f"{STATE_CLAIM_LABEL}-")]
    rendered = rendered_pod(vm, state_claims, rendering)
    metadata = mapping(rendered, "metadata")
    labels = mapping(metadata, "labels") | {CREATED_BY_LABEL: vmi_uid(pod)}
    return rendered | {"metadata": metadata | {"name": text(pod, "metadata", "name"), "labels": labels}}


def machine_type(vmi_spec: JsonObject) -> str:
    """Return the machine type of a VMI's spec, empty if it names none."""
    return text(vmi_spec, "domain", "machine", "type")


def with_machine_type(selector: Mapping[str, str], machine: str) -> JsonObject:
    """Return a pod's node selector for another machine type, if KubeVirt selects nodes by their machine types.

    A target pod selects the machine type of the VMI's status, such as pc-q35-rhel9.6.0, a new VMI that of its spec.
    """
    if not machine or not any(key.startswith(MACHINE_TYPE) for key in selector):
        return dict(selector)
    kept = {key: value for key, value in selector.items() if not key.startswith(MACHINE_TYPE)}
    return kept | {f"{MACHINE_TYPE}{machine}": "true"}


def _with_template_annotations(annotations: JsonObject, vm: JsonObject, settings: Settings) -> JsonObject:
    """Replace the webhook's annotations by those that the VM's template has by now."""
    own = {*settings.opt_in_annotations, MODE_ANNOTATION, DECIDING_CLAIM_ANNOTATION}
    template = mapping(vm, "spec", "template", "metadata", "annotations")
    if has_instance_type(vm):
        own &= template.keys()
    kept = {key: value for key, value in annotations.items() if key not in own}
    return kept | {key: value for key, value in template.items() if key in own}


def _spec_before_migration(pod: JsonObject, vmi: JsonObject | None, node_selectors: Mapping[str, str]) -> JsonObject:
    spec = _without_avoided_source(mapping(pod, "spec"), vmi)
    affinity = {key: value for key, value in mapping(spec, "affinity").items() if key != "podAntiAffinity"}
    if anti_affinity := _without_term(mapping(spec, "affinity", "podAntiAffinity"), _source_anti_affinity(pod)):
        affinity["podAntiAffinity"] = anti_affinity
    selector = _selector_before_migration(mapping(spec, "nodeSelector"), vmi, node_selectors)
    rest = {key: value for key, value in spec.items() if key not in {"affinity", "nodeSelector"}}
    return rest | ({"affinity": affinity} if affinity else {}) | {"nodeSelector": selector}


def _source_anti_affinity(pod: JsonObject) -> JsonObject:
    """Return the term that keeps the target of a VMI's pod off the node of its source.

    KubeVirt's source: `createMigrationPodAntiAffinityRule` in the same file as `createTargetPod`.
    """
    return {"labelSelector": {"matchLabels": {CREATED_BY_LABEL: vmi_uid(pod)}}, "topologyKey": HOSTNAME}


def _without_avoided_source(spec: JsonObject, vmi: JsonObject | None) -> JsonObject:
    """Remove the requirement by which a decentralized migration keeps its target off the source node.

    KubeVirt's source: `createDecentralizedMigrationPodAntiAffinity` in the same file as `createTargetPod`.
    """
    node_affinity = mapping(spec, "affinity", "nodeAffinity")
    terms = mappings(node_affinity, REQUIRED, "nodeSelectorTerms")
    own = mappings(vmi, "spec", "affinity", "nodeAffinity", REQUIRED, "nodeSelectorTerms")[:1]
    asked = [each for term in own for each in mappings(term, "matchExpressions")]
    expressions = mappings(terms[0], "matchExpressions") if terms else []
    kept = [each for each in expressions if each in asked or not _avoids_one_host(each)]
    if kept == expressions:
        return spec
    first = {key: value for key, value in terms[0].items() if key != "matchExpressions"}
    first |= {"matchExpressions": kept} if kept else {}
    left = [*([first] if first else []), *terms[1:]]
    changed = {key: value for key, value in node_affinity.items() if key != REQUIRED}
    changed |= {REQUIRED: {"nodeSelectorTerms": left}} if left else {}
    return spec | {"affinity": mapping(spec, "affinity") | {"nodeAffinity": changed}}


def _avoids_one_host(requirement: JsonObject) -> bool:
    values = requirement.get("values")
    is_one = isinstance(values, list) and len(values) == 1
    return is_one and (requirement.get("key"), requirement.get("operator")) == (HOSTNAME, "NotIn")


def _without_term(anti_affinity: JsonObject, removed: JsonObject) -> JsonObject:
    kept = [term for term in mappings(anti_affinity, REQUIRED) if term != removed]
    rest = {key: value for key, value in anti_affinity.items() if key != REQUIRED}
    return rest | ({REQUIRED: kept} if kept else {})


def _selector_before_migration(
    selector: Mapping[str, str], vmi: JsonObject | None, node_selectors: Mapping[str, str]
) -> JsonObject:
    """Keep what KubeVirt adds to every pod and what the VMI asks for. The migration may have added any other key."""
    unmigrated = {key: value for key, value in selector.items() if not key.startswith(MIGRATION_SELECTORS)}
    if vmi is None:
        return {key: value for key, value in unmigrated.items() if key != HOSTNAME}
    own = mapping(vmi, "spec", "nodeSelector").keys() | node_selectors.keys() | lasting_selectors(vmi)
    of_kubevirt = {key for key in unmigrated if "kubevirt.io/" in key or key in _SELECTORS_OF_KUBEVIRT}
    return {key: value for key, value in selector.items() if key in own | of_kubevirt}


def rendered_pod(vm: JsonObject, state_claims: Iterable[str] = (), rendering: Rendering = _ANY) -> JsonObject:
    """Return the pod of a VM that doesn't run. `state_claims` are the claims of its persistent vTPM or EFI state.

    An approximation: sidecars, for example, have requests, too. The VM's template includes its instance type.
    """
    template = mapping(vm, "spec", "template")
    name, namespace = text(vm, "metadata", "name"), text(vm, "metadata", "namespace")
    annotations = {
        key: value
        for key, value in mapping(template, "metadata", "annotations").items()
        if key not in (CO_SCHEDULED_NODE, DECISION)
    }
    metadata = {
        "generateName": f"virt-launcher-{name}-",
        "namespace": namespace,
        "labels": mapping(template, "metadata", "labels") | {APP_LABEL: VIRT_LAUNCHER},
        "annotations": annotations | {VMI_NAME_ANNOTATION: name},
    }
    spec = rendered_spec(mapping(template, "spec"), state_claims, rendering)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def target_pod(
    template: JsonObject, current: JsonObject, vmi: JsonObject, hostname: str, source_labels: Mapping[str, str]
) -> JsonObject:
    """Return the target pod of a migration to the node with this hostname label.

    `template` is the pod of a restart, `current` the pod that runs the VM, and `source_labels` the labels of its node.
    The target pod has no name, so the guard counts the current pod as another pod: both run during the migration.
    """
    metadata, spec = mapping(template, "metadata"), mapping(template, "spec")
    # KubeVirt lets the selector of the VM win.
    selector = {HOSTNAME: hostname} | mapping(spec, "nodeSelector")
    selector = with_machine_type(selector, text(vmi, "status", "machine", "type") or machine_type(mapping(vmi, "spec")))
    selector |= target_selectors(current, vmi, selector, source_labels)
    kept = {key: value for key, value in metadata.items() if key not in _OF_ONE_POD}
    labels = mapping(metadata, "labels") | {MIGRATION_LABEL: "future"}
    anti_affinity = mapping(spec, "affinity", "podAntiAffinity")
    terms = [*mappings(anti_affinity, REQUIRED), _source_anti_affinity(template)]
    affinity = mapping(spec, "affinity") | {"podAntiAffinity": anti_affinity | {REQUIRED: terms}}
    return template | {
        "metadata": kept | {"labels": labels},
        "spec": spec | {"nodeSelector": selector, "affinity": affinity},
    }


def as_if_eligible(pod: JsonObject, by: OptedInBy, settings: Settings) -> tuple[JsonObject, tuple[Reason, ...]]:
    """Return the pod as if it were opted in and no live-migration target, and which of these rules it breaks.

    `by` is what opts the pod's VM in.
    """
    metadata, broken = mapping(pod, "metadata"), []
    if by is OptedInBy.NOTHING:
        broken.append(Reason.NOT_OPTED_IN)
        annotations = mapping(metadata, "annotations") | {settings.opt_in_annotations[0]: "true"}
        metadata = metadata | {"annotations": annotations}
    if is_migration_target(pod) and settings.migration_targets is not MigrationTargets.PREFER:
        broken.append(Reason.MIGRATION_TARGET)
        labels = {key: value for key, value in mapping(metadata, "labels").items() if key != MIGRATION_LABEL}
        metadata = metadata | {"labels": labels}
    return (pod | {"metadata": metadata} if broken else pod), tuple(broken)


def creation_request(pod: JsonObject, settings: Settings) -> JsonObject:
    """Return the admission request by which KubeVirt or Longhorn creates a pod, as a dry run."""
    namespace = text(pod, "metadata", "namespace") or "default"
    return {
        "uid": "offline",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": namespace,
        "operation": "CREATE",
        "userInfo": {"username": creator_of(pod, namespace, settings)},
        "dryRun": True,
        "object": pod,
    }
