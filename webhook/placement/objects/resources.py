"""Read a pod's resource requests and a node's resources, in the scheduler's units.

The quantity parser is our own: the parser of the Kubernetes client needs an import of the whole client (0.5 s).

Source: k8s.io/component-helpers/resource `PodRequests`, k8s.io/apimachinery `resource.Quantity`.
"""

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from webhook.placement.objects.fields import JsonObject, Malformed, condition, mapping, mappings, text

PODS = "pods"

_QUANTITY = re.compile(r"(?a)(?!.{999})([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d{1,3})|([numkMGTPE]|[KMGTPE]i)?)")
_SUFFIXES = {
    **{
        suffix: Fraction(1000) ** power
        for power, suffix in enumerate(["n", "u", "m", "", "k", "M", "G", "T", "P", "E"], -3)
    },
    **{suffix: Fraction(1024) ** power for power, suffix in enumerate(["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"], 1)},
}
_MOST = 1000 * (2**63 - 1)  # milli; the API server caps a quantity, but a VM in etcd may have any
_HUGE_PAGES = "hugepages-"
_BYTE_RESOURCES = ("memory", "ephemeral-storage", _HUGE_PAGES)
_BINARY_UNITS = ("Ki", "Mi", "Gi", "Ti")
# The requests of a larger pod are unknown. A pod of KubeVirt has 4 containers, and 7 resources.
MAX_CONTAINERS, MAX_RESOURCES = 64, 32
MAX_CACHED_LENGTH = 32  # characters; the API server writes no longer quantity, and a made-up one may have thousands


@lru_cache(maxsize=8192)
def _parse_millis(quantity: str) -> int:
    match = _QUANTITY.fullmatch(quantity)
    if match is None:
        raise Malformed("a resource quantity is not a number with a unit")
    number, exponent, suffix = match.groups()
    value = Fraction(number + (exponent or "")) * _SUFFIXES[suffix or ""]
    return max(-_MOST, min(-int(-value * 1000 // 1), _MOST))  # rounded up to a milli, as by the API server


def _in_millis(quantities: Mapping[str, Any]) -> dict[str, int]:
    return {
        name: _parse_millis(value) if type(value) is str and len(value) <= MAX_CACHED_LENGTH else _unusual_millis(value)
        for name, value in quantities.items()
    }


def _unusual_millis(quantity: Any) -> int:
    if isinstance(quantity, str):
        return _parse_millis.__wrapped__(quantity)
    if isinstance(quantity, int | float) and not isinstance(quantity, bool):  # in a hand-written file: `cpu: 2`
        return _parse_millis(str(quantity))
    raise Malformed("a resource quantity is neither a string nor a number")


def _in_units(resource: str, millis: int) -> int:
    return millis if resource == "cpu" else -(-millis // 1000)


def amounts(quantities: Mapping[str, Any]) -> dict[str, int]:
    """Convert each quantity to the scheduler's unit, rounded up: CPU in millicores, others in whole units.

    Raises Malformed for a quantity that can't be parsed.
    """
    return {resource: _in_units(resource, millis) for resource, millis in _in_millis(quantities).items()}


class TooManyQuantities(Malformed):
    """The pod has more containers or resources than any that runs. To parse them takes up to a second."""


def _container_requests(container: JsonObject, statuses: Mapping[str, JsonObject], feasible: bool) -> dict[str, int]:
    resources = mapping(container, "resources")
    # The API server copies a limit to a missing request. A pod from a file does not have that default yet.
    quantities = mapping(resources, "limits") | mapping(resources, "requests")
    if len(quantities) > MAX_RESOURCES:
        raise TooManyQuantities("a container names too many resources")
    requests = _in_millis(quantities)
    if statuses:
        _apply_resize(requests, statuses.get(text(container, "name"), {}), feasible=feasible)
    return requests


def _apply_resize(requests: dict[str, int], status: JsonObject, *, feasible: bool) -> None:
    # The kubelet never grants an infeasible resize, so the spec's amount doesn't count.
    if not feasible and isinstance(status.get("resources"), dict):
        requests.clear()
    # Until an in-place resize is complete, the larger amount counts.
    for resized in (mapping(status, "resources", "requests"), mapping(status, "allocatedResources")):
        for name, millis in _in_millis(resized).items():
            requests[name] = max(requests.get(name, 0), millis)


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


def _pod_level_requests(
    resources: JsonObject, status: JsonObject, total: Mapping[str, int], feasible: bool
) -> dict[str, int]:
    limits = mapping(resources, "limits").items()
    # The API server copies a limit to the request if no container requests the resource; for huge pages, always.
    named = {name: value for name, value in limits if name not in total or name.startswith(_HUGE_PAGES)}
    named |= mapping(resources, "requests")
    named = {name: value for name, value in named.items() if name in ("cpu", "memory") or name.startswith(_HUGE_PAGES)}
    found = _in_millis(named)
    resized = dict(found)
    _apply_resize(resized, status, feasible=feasible)
    # The status has the sum of the containers for each other resource, but not the larger amounts that they wait for.
    return {name: amount for name, amount in resized.items() if name in found}


def format_quantity(resource: str, quantity: int) -> str:
    """Format a quantity like Kubernetes: CPU in milli if it is not whole, bytes in the largest unit that fits."""
    if resource == "cpu":
        return f"{quantity}m" if quantity % 1000 else f"{quantity // 1000}"
    if not resource.startswith(_BYTE_RESOURCES):
        return str(quantity)
    size, unit = float(quantity), ""
    for larger in _BINARY_UNITS:
        if size >= 10 * 1024:  # not 1024: more digits keep different amounts from looking equal
            size, unit = size / 1024, larger
    return f"{size:.1f}".removesuffix(".0") + unit


def effective_requests(pod: JsonObject) -> dict[str, int]:
    """Return what the scheduler reserves for a pod, including the pod itself (`pods`: 1). Omits requests for 0.

    Init containers run in sequence, each along with the sidecars started before it, so the largest sum counts.
    Raises Malformed for a quantity that can't be parsed.
    """
    spec, status = mapping(pod, "spec"), mapping(pod, "status")
    containers, init_containers = mappings(spec, "containers"), mappings(spec, "initContainers")
    if len(containers) + len(init_containers) > MAX_CONTAINERS:
        raise TooManyQuantities("the pod has too many containers")
    statuses: Mapping[str, JsonObject] = {}
    feasible = True
    if status:  # not of a pod that is being created
        of_containers = mappings(status, "containerStatuses") + mappings(status, "initContainerStatuses")
        statuses = {text(each, "name"): each for each in of_containers}
        feasible = condition(pod, "PodResizePending").get("reason") != "Infeasible"
    total: dict[str, int] = {}
    for container in containers:
        _add(total, _container_requests(container, statuses, feasible))
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in init_containers:
        concurrent = _container_requests(container, statuses, feasible)
        if container.get("restartPolicy") == "Always":
            _add(total, concurrent)
            _add(sidecars, concurrent)
            concurrent = sidecars
        else:
            _add(concurrent, sidecars)
        _raise_to(peak, concurrent)
    _raise_to(total, peak)
    if resources := mapping(spec, "resources"):
        total |= _pod_level_requests(resources, status, total, feasible)
    if overhead := mapping(spec, "overhead"):
        _add(total, _in_millis(overhead))
    return {PODS: 1} | {name: _in_units(name, value) for name, value in total.items() if value > 0}
