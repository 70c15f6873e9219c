"""Apply a VM's instance type and preference to its template, as KubeVirt does when it creates the VMI.

KubeVirt's source: pkg/instancetype/apply and pkg/instancetype/preference/apply. pkg/instancetype/find and
pkg/instancetype/preference/find choose the object: a ControllerRevision, if the VM names one.
"""

from collections.abc import Mapping

from webhook.placement.objects.fields import JsonObject, mapping, mappings, text
from webhook.placement.objects.resources import amount

# By the VM's field: the kind in the VM's namespace, the kind of the whole cluster, and the field of the VM's status.
_KINDS = {
    "instancetype": ("VirtualMachineInstancetype", "VirtualMachineClusterInstancetype", "instancetypeRef"),
    "preference": ("VirtualMachinePreference", "VirtualMachineClusterPreference", "preferenceRef"),
}
REVISION = "ControllerRevision"
KINDS = frozenset({REVISION, *(kind for kinds in _KINDS.values() for kind in kinds[:2])})
NAME_LABEL = "instancetype.kubevirt.io/object-name"  # of a ControllerRevision
# The instance types, preferences and revisions of a cluster. Keys: kind, namespace (may be empty), name.
Blueprints = Mapping[tuple[str, str, str], JsonObject]


class NotFound(Exception):
    """An object that a VM's next pod depends on is missing or can't be read. The message names the object."""


def has_instance_type(vm: JsonObject) -> bool:
    """Return whether the VM names an instance type or a preference."""
    return any(map(mapping(vm, "spec").get, _KINDS))


def expanded(vm: JsonObject, blueprints: Blueprints) -> JsonObject:
    """Return the VM with its instance type and its preference in the template. Raises NotFound and Malformed."""
    if not has_instance_type(vm):
        return vm
    instance_type, preference = (_spec(vm, field, blueprints) for field in _KINDS)
    template = mapping(vm, "spec", "template")
    metadata = mapping(template, "metadata")
    annotations = [mapping(each, "annotations") for each in (preference, instance_type, metadata)]
    spec = mapping(template, "spec")
    if instance_type:
        spec = _with_instance_type(spec, instance_type)
    spec = _with_preference(spec, preference)
    merged = annotations[0] | annotations[1] | annotations[2]
    template = template | {"metadata": metadata | {"annotations": merged}, "spec": spec}
    return vm | {"spec": mapping(vm, "spec") | {"template": template}}


def _spec(vm: JsonObject, field: str, blueprints: Blueprints) -> JsonObject:
    matcher = mapping(vm, "spec", field)
    namespace = text(vm, "metadata", "namespace")
    if not matcher:
        return {}
    own_kind, cluster_kind, reference = _KINDS[field]
    name = text(matcher, "name")
    revision = text(matcher, "revisionName")
    stored = text(vm, "status", reference, "controllerRevisionRef", "name")
    if revision or stored:
        found = _found(blueprints, REVISION, namespace, revision or stored)
        if revision or mapping(found, "metadata", "labels").get(NAME_LABEL) == name:
            return mapping(found, "data", "spec")
    if text(matcher, "kind").lower().removesuffix("s") == own_kind.lower():
        return mapping(_found(blueprints, own_kind, namespace, name), "spec")
    return mapping(_found(blueprints, cluster_kind, "", name), "spec")


def _found(blueprints: Blueprints, kind: str, namespace: str, name: str) -> JsonObject:
    if found := blueprints.get((kind, namespace, name)):
        return found
    raise NotFound(f"{kind} {name}")


def _with_instance_type(spec: JsonObject, instance_type: JsonObject) -> JsonObject:
    """KubeVirt rejects a VM whose template sets one of these fields, too."""
    domain = mapping(spec, "domain")
    cpu = mapping(instance_type, "cpu")
    memory = mapping(instance_type, "memory")
    devices = mapping(domain, "devices")
    # However the preference divides the virtual CPUs into sockets, cores and threads, the pod's request is the same.
    topology = {"sockets": 1, "cores": cpu.get("guest"), "threads": 1}
    cpu = {"dedicatedCpuPlacement": cpu.get("dedicatedCPUPlacement")} | cpu
    resources = mapping(domain, "resources")
    percent = memory.get("overcommitPercent")
    if isinstance(percent, int) and percent > 0:
        requested = amount(memory.get("guest"), "memory.guest") * (100 - percent) // 100
        resources = resources | {"requests": mapping(resources, "requests") | {"memory": str(requested)}}
    changed = {
        "cpu": mapping(domain, "cpu") | _given(cpu, "model", "dedicatedCpuPlacement") | topology,
        "memory": mapping(domain, "memory") | _given(memory, "guest", "hugepages"),
        "resources": resources,
        "devices": devices | _given(instance_type, "gpus", "hostDevices"),
    }
    own = {key: spec[key] for key in ("nodeSelector", "schedulerName") if spec.get(key)}
    return spec | _given(instance_type, "nodeSelector", "schedulerName") | own | {"domain": domain | changed}


def _with_preference(spec: JsonObject, preference: JsonObject) -> JsonObject:
    """Set what the template leaves open."""
    domain = mapping(spec, "domain")
    cpu = mapping(domain, "cpu")
    named = {text(each, "name") for each in mappings(cpu, "features")}
    preferred = mappings(preference, "cpu", "preferredCPUFeatures")
    if features := [*mappings(cpu, "features"), *(each for each in preferred if text(each, "name") not in named)]:
        cpu = cpu | {"features": features}
    machine = text(preference, "machine", "preferredMachineType")
    if machine and not text(domain, "machine", "type"):
        domain = domain | {"machine": mapping(domain, "machine") | {"type": machine}}
    architecture = text(spec, "architecture") or text(preference, "preferredArchitecture")
    return spec | {"domain": domain | {"cpu": cpu}} | ({"architecture": architecture} if architecture else {})


def _given(item: JsonObject, *keys: str) -> JsonObject:
    return {key: item[key] for key in keys if item.get(key)}
