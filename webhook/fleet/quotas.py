"""Which ResourceQuota would reject a pod. Source: Kubernetes, pkg/quota/v1/evaluator/core/pods.go (`PodUsageFunc`)."""

from collections.abc import Iterable

from webhook.placement.objects.fields import JsonObject, Malformed, mapping, mappings, text
from webhook.placement.objects.resources import amounts, effective_requests, format_quantity

_LIMITS = "limits."
_PREFIXES = ("requests.", _LIMITS, "count/")


def exceeded_quota(pod: JsonObject, quotas: Iterable[JsonObject]) -> str:
    """Return which quota rejects the pod, and why; empty if none does.

    Passes over a quota with scopes, which may not apply, and over a malformed one of a hand-written file.
    """
    for quota in quotas:
        scoped = mapping(quota, "spec").get("scopes") or mapping(quota, "spec", "scopeSelector")
        try:
            if not scoped and (excess := _excess(pod, quota)):
                return f"{text(quota, 'metadata', 'name')}: {excess}"
        except Malformed:
            continue
    return ""


def _excess(pod: JsonObject, quota: JsonObject) -> str:
    requests, limits = effective_requests(pod), effective_requests(_with_limits_as_requests(pod))
    hard, used = mapping(quota, "status", "hard"), mapping(quota, "status", "used")
    for name in hard:
        prefix = next((each for each in _PREFIXES if name.startswith(each)), "")
        resource = name.removeprefix(prefix)
        wanted = (limits if prefix == _LIMITS else requests).get(resource, 0)
        limit, taken = (amounts({resource: each.get(name, 0)})[resource] for each in (hard, used))
        if wanted and taken + wanted > limit:
            counts = (format_quantity(resource, each) for each in (wanted, taken, limit))
            return "{} (requested {}, used {} of {})".format(name, *counts)
    return ""


def _with_limits_as_requests(pod: JsonObject) -> JsonObject:
    spec = mapping(pod, "spec")
    changed: JsonObject = {"resources": {}}
    for kind in ("containers", "initContainers"):
        limits = ((each, mapping(each, "resources", "limits")) for each in mappings(spec, kind))
        changed[kind] = [each | {"resources": {"requests": found}} for each, found in limits]
    return pod | {"spec": spec | changed}
