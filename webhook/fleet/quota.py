"""Whether the ResourceQuotas of a namespace admit one more pod.

Source: Kubernetes, pkg/quota/v1/evaluator/core/pods.go (`PodUsageFunc`).
"""

from collections.abc import Iterable, Mapping

from webhook.placement.objects.fields import JsonObject, mapping, mappings, text
from webhook.placement.objects.resources import PODS, amounts, effective_requests, format_quantity

_REQUESTS, _LIMITS = "requests.", "limits."


def exceeded_quota(pod: JsonObject, quotas: Iterable[JsonObject]) -> str:
    """Return which quota rejects a pod, and why; empty if none does. A quota with scopes may not apply, so it passes.

    Raises Malformed for a quantity that can't be parsed.
    """
    usage = _usage(pod)
    for quota in quotas:
        if mapping(quota, "spec").get("scopes") or mapping(quota, "spec", "scopeSelector"):
            continue
        hard, used = mapping(quota, "status", "hard"), mapping(quota, "status", "used")
        for name in hard:
            resource, wanted = _resource(name), usage.get(name, 0)
            limit, taken = (amounts({resource: each.get(name, 0)})[resource] for each in (hard, used))
            if wanted and taken + wanted > limit:
                counts = (format_quantity(resource, each) for each in (wanted, taken, limit))
                return "{}: {} (requested {}, used {} of {})".format(text(quota, "metadata", "name"), name, *counts)
    return ""


def _resource(name: str) -> str:
    return name.removeprefix(_REQUESTS).removeprefix(_LIMITS).removeprefix("count/")


def _usage(pod: JsonObject) -> Mapping[str, int]:
    requests, limits = effective_requests(pod), effective_requests(_with_limits_as_requests(pod))
    named = {name: amount for name, amount in requests.items() if name in ("cpu", "memory", "ephemeral-storage", PODS)}
    return (
        named
        | {f"{_REQUESTS}{name}": amount for name, amount in requests.items()}
        | {f"{_LIMITS}{name}": amount for name, amount in limits.items()}
        | {f"count/{PODS}": 1}
    )


def _with_limits_as_requests(pod: JsonObject) -> JsonObject:
    spec = mapping(pod, "spec")
    changed: JsonObject = {"resources": {}}
    for kind in ("containers", "initContainers"):
        limits = ((each, mapping(each, "resources", "limits")) for each in mappings(spec, kind))
        changed[kind] = [each | {"resources": {"requests": found}} for each, found in limits]
    return pod | {"spec": spec | changed}
