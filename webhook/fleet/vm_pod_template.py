"""Render the spec of a VM's pod, as far as a decision reads it: claims, requests, and where the pod may run.

Source: KubeVirt, pkg/virt-controller/services/template.go and renderresources.go (`GetMemoryOverhead`).
"""

from collections.abc import Iterable, Iterator

from webhook.placement.objects.fields import JsonObject, mapping, mappings, text
from webhook.placement.objects.kubevirt import SCHEDULABLE_NODE
from webhook.placement.objects.resources import amounts

MEBIBYTE = 1024 * 1024
# What virt-launcher, virtqemud, virtlogd and QEMU take besides the guest's memory, and video memory.
STATIC_OVERHEAD = (25 + 100 + 25 + 40 + 30 + 16) * MEBIBYTE  # bytes
OVERHEAD_PER_CPU = 8 * MEBIBYTE  # bytes
PAGE_TABLE_SHARE = 512  # the page tables take a 512th of the guest's memory
CPU_ALLOCATION_RATIO = 10  # KubeVirt's default: a virtual CPU requests a tenth of a CPU
_COPIED = ("affinity", "tolerations", "topologySpreadConstraints", "schedulerName", "resourceClaims")


def rendered_spec(vmi_spec: JsonObject, state_claims: Iterable[str]) -> JsonObject:
    """Return the pod's spec for a VMI's spec. Raises Malformed for a quantity that can't be parsed."""
    claims = [*template_claims(vmi_spec), *state_claims]
    volumes = [{"name": f"volume-{i}", "persistentVolumeClaim": {"claimName": name}} for i, name in enumerate(claims)]
    selector = mapping(vmi_spec, "nodeSelector") | {SCHEDULABLE_NODE: "true"}
    compute = {"name": "compute", "resources": {"requests": _requests(mapping(vmi_spec, "domain"))}}
    copied = {key: vmi_spec[key] for key in _COPIED if vmi_spec.get(key)}
    return copied | {"nodeSelector": selector, "volumes": volumes, "containers": [compute]}


def template_claims(vmi_spec: JsonObject) -> Iterator[str]:
    """Yield the claims that the pod of a VMI mounts, in volume order."""
    for volume in mappings(vmi_spec, "volumes"):
        claim = mapping(volume, "persistentVolumeClaim") or mapping(volume, "ephemeral", "persistentVolumeClaim")
        data_volume = mapping(volume, "dataVolume")  # its claim has its name
        if claim.get("hotpluggable") or data_volume.get("hotpluggable"):  # a pod of its own mounts it
            continue
        if name := text(claim, "claimName") or text(data_volume, "name"):
            yield name


def inherits_annotations(vm: JsonObject) -> bool:
    """Return whether KubeVirt copies annotations of an instancetype or a preference, unless the VM's template has them.

    KubeVirt's source: pkg/instancetype/apply/annotations.go and pkg/instancetype/preference/apply/annotations.go.
    """
    return any(mapping(vm, "spec", matcher) for matcher in ("instancetype", "preference"))


def needs_state_claim(vm: JsonObject) -> bool:
    """Return whether the VM keeps its vTPM or EFI state in a claim."""
    devices = mapping(vm, "spec", "template", "spec", "domain")
    return (
        mapping(devices, "devices", "tpm").get("persistent") is True
        or mapping(devices, "firmware", "bootloader", "efi").get("persistent") is True
    )


def _requests(domain: JsonObject) -> JsonObject:
    resources = mapping(domain, "resources")
    named = mapping(resources, "limits") | mapping(resources, "requests")
    cpu = mapping(domain, "cpu")
    cpus = _count(cpu, "cores") * _count(cpu, "sockets") * _count(cpu, "threads")
    guest = named.get("memory") or mapping(domain, "memory").get("guest") or 0
    memory = amounts({"memory": guest})["memory"]
    overhead = STATIC_OVERHEAD + OVERHEAD_PER_CPU * cpus + memory // PAGE_TABLE_SHARE
    dedicated = cpu.get("dedicatedCpuPlacement") is True
    millicores = 1000 * cpus if dedicated else 1000 * cpus // CPU_ALLOCATION_RATIO
    return {"cpu": f"{millicores}m"} | named | {"memory": str(memory + overhead)}


def _count(cpu: JsonObject, key: str) -> int:
    value = cpu.get(key)
    return value if type(value) is int and value > 0 else 1
