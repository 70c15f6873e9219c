"""Compute what the containers of a VM's pod request: CPU, memory, ephemeral storage, huge pages and devices.

Source: `VMIResourcePredicates` in
https://github.com/kubevirt/kubevirt/blob/d923fdb8/pkg/virt-controller/services/template.go#L1641, renderresources.go
beside it, and `GetMemoryOverhead` in pkg/hypervisor/kvm/hypervisorbackend.go.

Devices that each node has that runs VMs (kvm, tun, vhost-net, vhost-vsock) are omitted, and so are devices of networks.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Self

from msgspec import Struct, field

from webhook.placement.objects.fields import JsonObject, mapping, mappings, text
from webhook.placement.objects.resources import amount, amounts

MEBIBYTE = 1024 * 1024
# What virt-launcher and its monitor, virtqemud, virtlogd, QEMU and its I/O thread take besides the guest's memory.
STATIC_OVERHEAD = (25 + 100 + 25 + 40 + 50 + 8) * MEBIBYTE  # bytes, as all that follow
VIDEO_OVERHEAD = 32 * MEBIBYTE
OVERHEAD_PER_CPU = 8 * MEBIBYTE
FIRMWARE_OVERHEAD = 128 * MEBIBYTE  # on arm64
DEVICE_OVERHEAD = 1024 * MEBIBYTE  # of a VM with GPUs or other devices of its host
METRICS_OVERHEAD = MEBIBYTE
PROBES_OVERHEAD = 100 * MEBIBYTE
PROBE_OVERHEAD = 10 * MEBIBYTE
SEV_OVERHEAD = 256 * MEBIBYTE
TPM_OVERHEAD = 53 * MEBIBYTE
GUARANTEED_OVERHEAD = 100 * MEBIBYTE
PASST_OVERHEAD = 250 * MEBIBYTE
PAGE_TABLE_SHARE = 512  # the page tables take a 512th of the requested memory
EPHEMERAL_STORAGE = 50_000_000
_DEVICE = "devices.kubevirt.io/"
_CONSOLE: JsonObject = {"requests": {"cpu": "5m", "memory": "35M"}, "limits": {"cpu": "15m", "memory": "60M"}}
_VIRTIOFS: JsonObject = {"requests": {"cpu": "10m", "memory": "1M"}, "limits": {"cpu": "100m", "memory": "80M"}}


class Sizes(Struct, frozen=True):
    """What KubeVirt's configuration says of the requests of all pods."""

    cpu_ratio: int = 10  # a virtual CPU requests 1/cpu_ratio of a CPU; by default as KubeVirt
    overcommit: int = 100  # a pod requests 100/overcommit of the guest's memory; by default as KubeVirt
    cpu_request: str = ""  # of a pod whose VM names none; empty for that by the ratio
    overhead_ratio: float = 1.0
    console_log: bool = True  # a container prints what the guest writes to its serial console
    support: Mapping[str, JsonObject] = field(default_factory=dict)  # the resources of KubeVirt's own containers
    bindings: Mapping[str, int] = field(default_factory=dict)  # the bytes that a network binding takes

    @classmethod
    def of(cls, kubevirt: JsonObject | None) -> Self:
        """Return the sizes of a KubeVirt object, with KubeVirt's defaults for all that it, or None, leaves open."""
        configuration = mapping(kubevirt, "spec", "configuration")
        of_developers = mapping(configuration, "developerConfiguration")
        console = mapping(configuration, "virtualMachineOptions").get("disableSerialConsoleLog") is None
        own = mappings(configuration, "supportContainerResources")
        bindings = mapping(configuration, "network", "binding")
        return cls(
            count(of_developers, "cpuAllocationRatio", 10),
            count(of_developers, "memoryOvercommit", 100),
            text(configuration, "cpuRequest"),
            _ratio(text(configuration, "additionalGuestMemoryOverheadRatio")),
            console,
            {text(each, "type"): mapping(each, "resources") for each in own},
            {name: _overhead_of(mapping(bindings, name), name) for name in bindings},
        )


def containers(vmi_spec: JsonObject, sizes: Sizes, architecture: str) -> tuple[list[JsonObject], list[JsonObject]]:
    """Return the containers of a VMI's pod, and its init containers that run on, with their requests.

    Raises Malformed for a quantity that can't be parsed.
    """
    domain = mapping(vmi_spec, "domain")
    guaranteed = is_dedicated(domain) or is_guaranteed(domain)
    compute = {"name": "compute", "resources": {"requests": _compute(vmi_spec, sizes, architecture)}}
    shared = {text(each, "name") for each in mappings(domain, "devices", "filesystems")}
    names = (text(each, "name") for each in mappings(vmi_spec, "volumes") if not mapping(each, "containerPath"))
    virtiofs = _support(_VIRTIOFS, mapping(sizes.support, "virtiofs"), guaranteed=guaranteed)
    others: list[JsonObject] = [{"name": f"virtiofs-{name}", **virtiofs} for name in names if name in shared]
    console = _support(_CONSOLE, mapping(sizes.support, "guest-console-log"), guaranteed=guaranteed)
    logged = [{"name": "guest-console-log", "restartPolicy": "Always", **console}] if _logs(domain, sizes) else []
    return [compute, *others], logged


def is_dedicated(domain: JsonObject) -> bool:
    """Return whether a VM asks for CPUs of its own."""
    return mapping(domain, "cpu").get("dedicatedCpuPlacement") is True


def is_guaranteed(domain: JsonObject) -> bool:
    """Return whether a VM asks for the quality of service Guaranteed: `WantsToHaveQOSGuaranteed`."""
    limits = _named(domain, "limits")
    wanted = limits | _named(domain, "requests")
    return all(wanted.get(name, 0) == limits.get(name, 0) != 0 for name in ("memory", "cpu"))


def has_sev(domain: JsonObject) -> bool:
    """Return whether AMD's processor encrypts the guest's memory."""
    security = mapping(domain, "launchSecurity")
    return security.get("sev") is not None or security.get("snp") is not None


def count(item: JsonObject, key: str, default: int = 1) -> int:
    """Return a positive integer of an object, or the default."""
    value = item.get(key)
    return value if type(value) is int and value > 0 else default


def _compute(vmi_spec: JsonObject, sizes: Sizes, architecture: str) -> JsonObject:
    domain = mapping(vmi_spec, "domain")
    named = _named(domain, "requests")
    limits = _named(domain, "limits")
    guest = _guest_memory(domain, named, limits)
    requested = named.get("memory", 0) or limits.get("memory", 0) or guest * 100 // sizes.overcommit
    overhead = _overhead(vmi_spec, sizes, architecture)
    pages = text(domain, "memory", "hugepages", "pageSize")
    if pages:
        memory = overhead + max(0, requested - guest)
    else:
        memory = requested + (0 if mapping(domain, "resources").get("overcommitGuestOverhead") is True else overhead)
    storage = EPHEMERAL_STORAGE + named.pop("ephemeral-storage", 0)
    others = {name: str(amount) for name, amount in (limits | named).items()} | dict(_devices(domain))
    huge = {f"hugepages-{pages}": str(min(requested, guest))} if pages else {}
    own = {"cpu": f"{_millicores(domain, sizes)}m", "memory": str(memory), "ephemeral-storage": str(storage)}
    return others | huge | own


def _named(domain: JsonObject, kind: str) -> dict[str, int]:
    return amounts(mapping(domain, "resources", kind), f"domain.resources.{kind}")


def _guest_memory(domain: JsonObject, requests: Mapping[str, int], limits: Mapping[str, int]) -> int:
    """Return the guest's memory: `setGuestMemory` in pkg/defaults/defaults.go."""
    memory = mapping(domain, "memory")
    own = amount(memory.get("guest") or 0, "domain.memory.guest")
    pages = amount(text(memory, "hugepages", "pageSize") or 0, "domain.memory.hugepages.pageSize")
    return own or requests.get("memory", 0) or limits.get("memory", 0) or pages


def _millicores(domain: JsonObject, sizes: Sizes) -> int:
    total = _cpus(domain) + count(mapping(domain, "ioThreads"), "supplementalPoolThreadCount", 0)
    if is_dedicated(domain):
        return 1000 * (total + (mapping(domain, "cpu").get("isolateEmulatorThread") is True))
    wanted = _named(domain, "requests").get("cpu", 0) or _named(domain, "limits").get("cpu", 0)
    return wanted or amount(sizes.cpu_request or "0", "cpuRequest", "cpu") or -(-1000 * total // sizes.cpu_ratio)


def _cpus(domain: JsonObject) -> int:
    """Return the number of virtual CPUs: `SetDefaultGuestCPUTopology` in pkg/defaults/defaults.go."""
    cpu = mapping(domain, "cpu")
    if any(count(cpu, part, 0) for part in ("cores", "sockets", "threads")):
        return count(cpu, "cores") * count(cpu, "sockets") * count(cpu, "threads")
    millicores = _named(domain, "limits").get("cpu", 0) or _named(domain, "requests").get("cpu", 0)
    return max(1, -(-millicores // 1000))


def _overhead(vmi_spec: JsonObject, sizes: Sizes, architecture: str) -> int:
    """Return the bytes that a VM takes besides its guest's memory."""
    domain = mapping(vmi_spec, "domain")
    rounded = -(-_named(domain, "requests").get("memory", 0) // 1000) * 1000
    total = rounded // PAGE_TABLE_SHARE + STATIC_OVERHEAD + OVERHEAD_PER_CPU * _cpus(domain)
    total += sum(_of_devices(mapping(domain, "devices"))) + sum(_of_features(vmi_spec))
    total += FIRMWARE_OVERHEAD * (architecture == "arm64")
    added = mapping(domain, "memory", "reservedOverhead").get("addedOverhead") or 0
    total += amount(added, "domain.memory.reservedOverhead.addedOverhead")
    total += 1000 * int(-(-total // 1000) * (sizes.overhead_ratio - 1))
    interfaces = mappings(domain, "devices", "interfaces")
    total += PASST_OVERHEAD * any("passtBinding" in each for each in interfaces)
    return total + sum(sizes.bindings.get(name, 0) for name in {text(each, "binding", "name") for each in interfaces})


def _of_devices(devices: JsonObject) -> Iterator[int]:
    """Yield the overhead of a VM's devices."""
    yield VIDEO_OVERHEAD * (devices.get("autoattachGraphicsDevice") is not False)
    has_sriov = any("sriov" in each for each in mappings(devices, "interfaces"))
    yield DEVICE_OVERHEAD * (has_sriov or any(mappings(devices, kind) for kind in ("gpus", "hostDevices")))
    yield TPM_OVERHEAD * ("tpm" in devices and mapping(devices, "tpm").get("enabled") is not False)


def _of_features(vmi_spec: JsonObject) -> Iterator[int]:
    """Yield the overhead of what else a VM asks for."""
    domain = mapping(vmi_spec, "domain")
    yield METRICS_OVERHEAD * any("downwardMetrics" in each for each in mappings(vmi_spec, "volumes"))
    probes = sum("exec" in mapping(vmi_spec, kind) for kind in ("livenessProbe", "readinessProbe"))
    yield PROBE_OVERHEAD * probes + PROBES_OVERHEAD * bool(probes)
    yield SEV_OVERHEAD * has_sev(domain)
    yield GUARANTEED_OVERHEAD * (is_dedicated(domain) or is_guaranteed(domain))


def _devices(domain: JsonObject) -> Iterator[tuple[str, str]]:
    """Yield the devices that a pod requests, and how many."""
    disks = mappings(domain, "devices", "disks")
    helpers = {
        "sev": has_sev(domain),
        "tdx": mapping(domain, "launchSecurity").get("tdx") is not None,
        "pr-helper": any(mapping(each, "lun").get("reservation") is True for each in disks),
    }
    yield from ((f"{_DEVICE}{name}", "1") for name, needed in helpers.items() if needed)
    devices = (each for kind in ("gpus", "hostDevices") for each in mappings(domain, "devices", kind))
    named = Counter(text(each, "deviceName") for each in devices)
    yield from ((name, str(number)) for name, number in named.items() if name)


def _logs(domain: JsonObject, sizes: Sizes) -> bool:
    """Return whether a container prints the serial console: `isSerialConsoleLogEnabled`."""
    devices = mapping(domain, "devices")
    chosen = devices.get("logSerialConsole")
    return devices.get("autoattachSerialConsole") is not False and bool(sizes.console_log if chosen is None else chosen)


def _support(defaults: JsonObject, configured: JsonObject, *, guaranteed: bool) -> JsonObject:
    """Return the resources of a container of KubeVirt's own. The guaranteed requests are the limits."""
    limits = mapping(defaults, "limits") | mapping(configured, "limits")
    requests = mapping(defaults, "requests") | mapping(configured, "requests")
    return {"resources": {"requests": {name: limits[name] for name in requests} if guaranteed else requests}}


def _overhead_of(binding: JsonObject, name: str) -> int:
    """Return the bytes that a network binding takes in a pod."""
    requested = mapping(binding, "computeResourceOverhead", "requests").get("memory")
    return amount(requested, f"network.binding.{name}.computeResourceOverhead.requests.memory")


def _ratio(value: str) -> float:
    """Parse a ratio. KubeVirt ignores one that isn't a number."""
    try:
        ratio = float(value or 1)
    except ValueError:
        return 1.0
    return ratio if math.isfinite(ratio) else 1.0
