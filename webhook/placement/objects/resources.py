"""Read a pod's resource requests and a node's resources, in the scheduler's units.

The quantity parser is our own: the parser of the Kubernetes client needs an import of the whole client (0.5 s).

Source: k8s.io/component-helpers/resource `PodRequests`, k8s.io/apimachinery `resource.Quantity`.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from webhook.placement.objects.fields import Malformed
from webhook.placement.objects.pod_object import (
    NO_RESOURCES,
    Container,
    ContainerStatus,
    PodObject,
    Quantities,
    Resources,
)

PODS = "pods"

_QUANTITY = re.compile(r"(?a)([+-]?)(?:(\d+)\.?(\d*)|\.(\d+))(?:[eE]([+-]?\d{1,3})|([numkMGTPE]|[KMGTPE]i)?)")
# The factor and the power of ten of each suffix. Integers, because fractions take 20 µs for each quantity.
_SUFFIXES = {
    **{suffix: (1, 3 * power) for power, suffix in enumerate(["n", "u", "m", "", "k", "M", "G", "T", "P", "E"], -3)},
    **{suffix: (1 << 10 * power, 0) for power, suffix in enumerate(["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"], 1)},
}
_EXPECTED = "expected a quantity, such as 500m or 4Gi"
_MOST = 1000 * (2**63 - 1)  # milli; the API server caps a quantity, but a VM in etcd may have any
_HUGE_PAGES = "hugepages-"
_BYTE_RESOURCES = ("memory", "ephemeral-storage", _HUGE_PAGES)
_BINARY_UNITS = ("Ki", "Mi", "Gi", "Ti")
# The requests of a larger pod are unknown. A pod of KubeVirt has 4 containers, and 7 resources in 20 quantities.
MAX_CONTAINERS, MAX_RESOURCES, MAX_QUANTITIES = 64, 32, 512
# Characters. The API server rounds to 10⁻⁹ and caps at 2⁶³: it writes at most 30, and a client may send thousands.
MAX_LENGTH = 32


@lru_cache(maxsize=8192)
def _parse_millis(quantity: str) -> int:
    match = _QUANTITY.fullmatch(quantity)
    if match is None:
        raise Malformed(_EXPECTED)
    sign, whole, after_point, only_decimals, exponent, suffix = match.groups()
    decimals = after_point or only_decimals or ""
    factor, power = _SUFFIXES[suffix or ""]
    value = int(f"{sign}{whole or ''}{decimals}") * factor
    shift = 3 + power + int(exponent or 0) - len(decimals)
    scale: int = 10 ** abs(shift)
    millis = value * scale if shift >= 0 else -(-value // scale)  # rounded up, as by the API server
    return max(-_MOST, min(millis, _MOST))


def _in_millis(quantities: Mapping[str, Any]) -> dict[str, int]:
    return {
        name: _parse_millis(value) if type(value) is str and len(value) <= MAX_LENGTH else _unusual_millis(value)
        for name, value in quantities.items()
    }


def _unusual_millis(quantity: Any) -> int:
    if quantity is None:  # the API server stores 0
        return 0
    # In a hand-written file, a quantity may be a number: `cpu: 2`.
    if isinstance(quantity, bool) or not isinstance(quantity, str | int | float):
        raise Malformed(_EXPECTED)
    written = str(quantity)
    if len(written) > MAX_LENGTH:
        raise CostlyQuantities(f"a resource quantity has more than {MAX_LENGTH} characters")
    return _parse_millis(written)


def _in_units(millis: Mapping[str, int]) -> dict[str, int]:
    return {resource: value if resource == "cpu" else -(-value // 1000) for resource, value in millis.items()}


def amounts(quantities: Mapping[str, Any], path: str) -> dict[str, int]:
    """Convert each quantity to the scheduler's unit, rounded up: CPU in millicores, others in whole units.

    `path` is where the object has the quantities. Raises Malformed, whose text names the field.
    """
    try:
        return _in_units(_in_millis(quantities))
    except Malformed:
        raise Malformed(next(_malformed(path, quantities))) from None


def amount(quantity: Any, path: str, resource: str = "memory") -> int:
    """Convert one quantity like `amounts`. `path` is where the object has it. None is 0."""
    try:
        return _in_units(_in_millis({resource: quantity}))[resource]
    except Malformed as error:
        raise Malformed(f"{path}: {error}") from None


def malformed_quantity(pod: PodObject) -> str:
    """Name the field of a pod whose quantity can't be parsed."""
    found = (each for path, quantities in _quantities_of(pod) for each in _malformed(path, quantities))
    return next(found, f"status: {_EXPECTED}")


def _quantities_of(pod: PodObject) -> Iterator[tuple[str, Mapping[str, Any]]]:
    spec = pod.spec
    for kind, containers in (("containers", spec.containers), ("initContainers", spec.init_containers)):
        for index, container in enumerate(containers):
            yield f"spec.{kind}[{index}].resources.requests", container.resources.requests
            yield f"spec.{kind}[{index}].resources.limits", container.resources.limits
    yield "spec.resources.requests", spec.resources.requests
    yield "spec.resources.limits", spec.resources.limits
    yield "spec.overhead", spec.overhead


def _malformed(path: str, quantities: Mapping[str, Any]) -> Iterator[str]:
    for name, quantity in quantities.items():
        try:
            _in_millis({name: quantity})
        except Malformed as error:
            yield f"{path}.{name}: {error}"


class CostlyQuantities(Malformed):
    """The pod has more or longer quantities than any that runs. To parse them takes up to a second."""


class _PodQuantities:
    """Parses the quantities of one pod. `feasible` means that its pending resize is."""

    def __init__(self, pod: PodObject) -> None:
        self.left = MAX_QUANTITIES
        self.feasible = pod.status.condition("PodResizePending").reason != "Infeasible"

    def spend(self, quantities: int) -> None:
        self.left -= quantities
        if self.left < 0:
            raise CostlyQuantities("the pod has too many resource quantities")

    def millis(self, quantities: Quantities) -> dict[str, int]:
        self.spend(len(quantities))
        return _in_millis(quantities)

    def of_container(self, container: Container, statuses: Mapping[str, ContainerStatus]) -> dict[str, int]:
        resources = container.resources
        # The API server copies a limit to a missing request. A pod from a file does not have that default yet.
        requests = self.millis(resources.limits | resources.requests)
        if status := statuses.get(container.name):
            self.apply_resize(requests, status.resources, status.allocated_resources)
        return requests

    def apply_resize(self, requests: dict[str, int], actual: Resources | None, allocated: Quantities) -> None:
        # The kubelet never grants an infeasible resize, so the spec's amount doesn't count.
        if not self.feasible and actual is not None:
            requests.clear()
        # Until an in-place resize is complete, the larger amount counts.
        for resized in (actual.requests if actual else {}, allocated):
            _raise_to(requests, self.millis(resized))

    def of_pod_level(self, pod: PodObject, resources: Resources, total: Mapping[str, int]) -> dict[str, int]:
        self.spend(len(resources.limits))
        limits = resources.limits.items()
        # The API server copies a limit to the request if no container requests the resource; for huge pages, always.
        named = {name: value for name, value in limits if name not in total or name.startswith(_HUGE_PAGES)}
        named |= resources.requests
        supported = ("cpu", "memory")
        named = {name: value for name, value in named.items() if name in supported or name.startswith(_HUGE_PAGES)}
        found = self.millis(named)
        resized = dict(found)
        self.apply_resize(resized, pod.status.resources, pod.status.allocated_resources)
        # For another resource, the status has the sum of the containers, but not the larger amounts that they wait for.
        return {name: amount for name, amount in resized.items() if name in found}


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    if not total:
        total.update(more)
        return
    for name, value in more.items():
        total[name] = total.get(name, 0) + value


def _raise_to(total: dict[str, int], minimum: Mapping[str, int]) -> None:
    for name, value in minimum.items():
        if value > total.get(name, 0):
            total[name] = value


def format_quantity(resource: str, quantity: int) -> str:
    """Format a quantity like Kubernetes: CPU in milli if it is not whole, bytes in the largest unit that fits."""
    if resource == "cpu":
        return f"{quantity}m" if quantity % 1000 else f"{quantity // 1000}"
    if not resource.startswith(_BYTE_RESOURCES):
        return str(quantity)
    size = float(quantity)
    unit = ""
    for larger in _BINARY_UNITS:
        if size >= 10 * 1024:  # not 1024: more digits keep different amounts from looking equal
            size /= 1024
            unit = larger
    return f"{size:.1f}".removesuffix(".0") + unit


def effective_requests(pod: PodObject) -> dict[str, int]:
    """Return what the scheduler reserves for a pod, including the pod itself (`pods`: 1). Omits requests for 0.

    Init containers run in sequence, each along with the sidecars started before it, so the largest sum counts.
    Raises Malformed for a quantity that can't be parsed.
    """
    spec, status = pod.spec, pod.status
    containers, init_containers = spec.containers, spec.init_containers
    of_containers = status.container_statuses + status.init_container_statuses
    if len(containers) + len(init_containers) > MAX_CONTAINERS or len(of_containers) > MAX_CONTAINERS:
        raise CostlyQuantities("the pod has too many containers")
    statuses = {each.name: each for each in of_containers}
    quantities = _PodQuantities(pod)
    total: dict[str, int] = {}
    for container in containers:
        _add(total, quantities.of_container(container, statuses))
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in init_containers:
        concurrent = quantities.of_container(container, statuses)
        if container.restart_policy == "Always":
            _add(total, concurrent)
            _add(sidecars, concurrent)
            concurrent = sidecars
        else:
            _add(concurrent, sidecars)
        _raise_to(peak, concurrent)
    _raise_to(total, peak)
    if spec.resources != NO_RESOURCES:
        total |= quantities.of_pod_level(pod, spec.resources, total)
    # Kubernetes 1.37 adds the overhead to the status of the whole pod, which already contains it: PodRequests, and
    # https://github.com/kubernetes/kubernetes/blob/v1.37.2/pkg/kubelet/kubelet_pods.go#L2182. Older ones don't read it.
    allocated = status.allocated_resources
    actual = status.resources.requests if status.resources else {}
    for counted in (allocated, actual) if allocated and actual else ():
        _raise_to(total, quantities.millis(counted))
    if spec.overhead:
        _add(total, quantities.millis(spec.overhead))
    return {PODS: 1} | {name: amount for name, amount in _in_units(total).items() if amount > 0}
