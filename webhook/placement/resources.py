"""How much room a pod asks for, and how much a node has, in the scheduler's own units.

A hand-written reader of quantities, because the one in the Kubernetes client costs that client's whole import (0.5 s).

Source: k8s.io/component-helpers/resource `PodRequests`, k8s.io/apimachinery `resource.Quantity`.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from webhook.placement.shape import JsonObject, Malformed, mapping, mappings, text

PODS = "pods"

_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d{1,3})|([numkMGTPE]|[KMGTPE]i)?)")
_SUFFIXES = {
    **{
        suffix: Fraction(1000) ** power
        for power, suffix in enumerate(["n", "u", "m", "", "k", "M", "G", "T", "P", "E"], -3)
    },
    **{suffix: Fraction(1024) ** power for power, suffix in enumerate(["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"], 1)},
}
_HUGE = "hugepages-"
_BYTES = ("memory", "ephemeral-storage", _HUGE)
_BINARY = ("Ki", "Mi", "Gi", "Ti")


@lru_cache(maxsize=8192)
def _millis(quantity: str) -> int:
    match = _QUANTITY.fullmatch(quantity)
    if match is None:
        raise Malformed("a resource quantity is not a number with a unit")
    number, exponent, suffix = match.groups()
    value = Fraction(number + (exponent or "")) * _SUFFIXES[suffix or ""]
    return -int(-value * 1000 // 1)  # the API server rounds each amount up to a milli, too


def _read(quantity: Any) -> int:
    if isinstance(quantity, str):
        return _millis(quantity)
    if isinstance(quantity, int | float) and not isinstance(quantity, bool):  # by hand: `cpu: 2`
        return _millis(str(quantity))
    raise Malformed("a resource quantity is neither a string nor a number")


def _in_units(resource: str, millis: int) -> int:
    return millis if resource == "cpu" else -(-millis // 1000)


def amounts(quantities: Mapping[str, Any]) -> dict[str, int]:
    """Return each resource in the scheduler's unit, rounded up: cpu in milli, all others in whole units.

    Raises Malformed for a quantity that can't be read.
    """
    return {resource: _in_units(resource, _read(quantity)) for resource, quantity in quantities.items()}


def _container_requests(container: JsonObject, statuses: Mapping[str, JsonObject]) -> dict[str, int]:
    resources = mapping(container, "resources")
    # A limit without a request is a request: the API server's default, which a file does not have yet.
    requests = {
        name: _read(value) for name, value in (mapping(resources, "limits") | mapping(resources, "requests")).items()
    }
    if statuses:
        _enlarge(requests, statuses.get(text(container, "name"), {}))
    return requests


def _enlarge(requests: dict[str, int], status: JsonObject) -> None:
    # Until an in-place resize is done, the larger amount counts.
    for resized in (mapping(status, "resources", "requests"), mapping(status, "allocatedResources")):
        for name, value in resized.items():
            requests[name] = max(requests.get(name, 0), _read(value))


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, value in more.items():
        total[name] = total.get(name, 0) + value


def _pod_level(spec: JsonObject, status: JsonObject, total: Mapping[str, int]) -> dict[str, int]:
    resources = mapping(spec, "resources")
    limits = mapping(resources, "limits").items()
    # The API server's defaults: a limit is a request where no container asks, and for huge pages in any case.
    named = {name: value for name, value in limits if name not in total or name.startswith(_HUGE)}
    named |= mapping(resources, "requests")
    found = {name: _read(value) for name, value in named.items() if name in ("cpu", "memory") or name.startswith(_HUGE)}
    if found:
        _enlarge(found, status)
    return found


def format_quantity(resource: str, quantity: int) -> str:
    """Write a quantity as Kubernetes does: cpu in milli where it is not whole, bytes in the largest unit that fits."""
    if resource == "cpu":
        return f"{quantity}m" if quantity % 1000 else f"{quantity // 1000}"
    if not resource.startswith(_BYTES):
        return str(quantity)
    size, unit = float(quantity), ""
    for larger in _BINARY:
        if size >= 10 * 1024:  # four digits at least: what is compared must not look equal
            size, unit = size / 1024, larger
    return f"{size:.1f}".removesuffix(".0") + unit


def effective_requests(pod: JsonObject) -> dict[str, int]:
    """Return what the scheduler reserves for a pod, itself (`pods`: 1) included; a resource asked for as 0 is left out.

    Init containers run one after the other beside the sidecars started before them, so the largest moment counts.
    Raises Malformed for a quantity that can't be read.
    """
    spec = mapping(pod, "spec")
    found = mappings(pod, "status", "containerStatuses") + mappings(pod, "status", "initContainerStatuses")
    statuses = {text(status, "name"): status for status in found}
    total: dict[str, int] = {}
    for container in mappings(spec, "containers"):
        _add(total, _container_requests(container, statuses))
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = defaultdict(int)
    for container in mappings(spec, "initContainers"):
        moment = _container_requests(container, statuses)
        if text(container, "restartPolicy") == "Always":
            _add(total, moment)
            _add(sidecars, moment)
            moment = sidecars
        else:
            _add(moment, sidecars)
        for name, value in moment.items():
            peak[name] = max(peak[name], value)
    for name, value in peak.items():
        total[name] = max(total.get(name, 0), value)
    total |= _pod_level(spec, mapping(pod, "status"), total)
    _add(total, {name: _read(value) for name, value in mapping(spec, "overhead").items()})
    return {PODS: 1} | {name: _in_units(name, value) for name, value in total.items() if value > 0}
