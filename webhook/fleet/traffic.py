"""The I/O of VMs that crosses the network: the rates of their disks, as far as another node serves them."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import accumulate

from msgspec import Struct

from webhook.fleet.machine import Status
from webhook.fleet.rendering.template import claim_of
from webhook.placement.objects.facts import Key
from webhook.placement.objects.fields import JsonObject, mapping, mappings, text

# KubeVirt's source: pkg/monitoring/metrics/virt-handler/domainstats/block_metrics.go. The label `drive` is the name of
# the disk, or the guest's device for a disk without a name.
_METRICS = {
    "operations": ("kubevirt_vmi_storage_iops_read_total", "kubevirt_vmi_storage_iops_write_total"),
    "bytes": ("kubevirt_vmi_storage_read_traffic_bytes_total", "kubevirt_vmi_storage_write_traffic_bytes_total"),
}
EXAMPLE = _METRICS["operations"][0]
WINDOW = "10m"
MOST_RATE = 1e100  # the sum of larger ones may be infinite, which JSON does not have
MOST = 0.9  # the share of the traffic that the summary attributes to as few VMs as possible


def query() -> str:
    """Return the query for the rates of all disks. `rate` over several metrics at once would be ambiguous."""
    return " or ".join(
        f'label_replace(sum by (namespace, name, drive) (rate({metric}[{WINDOW}])), "metric", "{metric}", "", "")'
        for metrics in _METRICS.values()
        for metric in metrics
    )


class Traffic(Struct, frozen=True, order=True):
    """Bytes and operations per second."""

    bytes: float = 0.0
    operations: float = 0.0

    def as_json(self) -> JsonObject:
        """Return the traffic for programs."""
        return {"operations": round(self.operations, 1), "bytes": round(self.bytes)}

    def __add__(self, other: "Traffic") -> "Traffic":
        """Return the sum."""
        return Traffic(self.bytes + other.bytes, self.operations + other.operations)


# The rates of the disks of each VM, by the name of the disk.
Rates = Mapping[Key, Mapping[str, Traffic]]


def read_rates(samples: Iterable[JsonObject]) -> dict[Key, dict[str, Traffic]]:
    """Return the rates of the samples of an instant query. Ignores samples that are not of this query."""
    found: dict[Key, dict[str, Traffic]] = {}
    for sample in samples:
        labels = mapping(sample, "metric")
        value = sample.get("value")
        try:
            number = float(value[1]) if isinstance(value, list) else 0.0
        except (ValueError, TypeError, IndexError):
            continue
        field = next((field for field, metrics in _METRICS.items() if labels.get("metric") in metrics), "")
        if field and abs(number) < MOST_RATE:
            drives = found.setdefault((text(labels, "namespace"), text(labels, "name")), {})
            drive = text(labels, "drive")
            drives[drive] = drives.get(drive, Traffic()) + Traffic(**{field: number})
    return found


def crossing(status: Status, rates: Rates) -> Traffic:
    """Return the traffic of a VM that crosses the network.

    A disk whose name is not a volume of the VM counts if a share-manager on another node decides for the VM.
    """
    drives = rates.get(status.machine.key, {})
    volumes = {text(each, "name"): claim_of(each) for each in mappings(status.machine.vmi, "spec", "volumes")}
    local = {each.claim: each.node in (None, status.node) for each in status.claims}
    total = Traffic()
    for drive, rate in drives.items():
        claim = volumes.get(drive)
        is_local = status.storage_node in (None, status.node) if claim is None else local.get(claim, True)
        total += Traffic() if is_local or not status.node else rate
    return total


def reaches(traffic: Traffic, least: Traffic) -> bool:
    """Return whether a VM's traffic reaches one of two limits. 0 is no limit, and without one, all traffic does."""
    pairs = ((least.operations, traffic.operations), (least.bytes, traffic.bytes))
    return least == Traffic() or any(0 < limit <= value for limit, value in pairs)


def summarize_traffic(traffic: Iterable[Traffic]) -> JsonObject:
    """Return the sum of what crosses the network, and how few of the VMs with such traffic make most of its bytes."""
    found = sorted((each for each in traffic if each != Traffic()), key=lambda each: each.bytes, reverse=True)
    total = sum(found, Traffic())
    sums = list(accumulate(each.bytes for each in found))
    makers = bisect_left(sums, MOST * total.bytes) + 1 if total.bytes else 0
    text = f"{total.operations:,.0f} operations and {total.bytes / 1e6:,.1f} MB per second cross the network"
    text += f"; {makers:,} of the {len(found):,} VMs make {MOST:.0%} of it" if makers else ""
    return total.as_json() | {"vms": len(found), "makers": makers, "text": text}
