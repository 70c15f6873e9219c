"""Which ResourceQuota would reject a pod. Source: Kubernetes, pkg/quota/v1/evaluator/core/pods.go (`PodUsageFunc`)."""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from webhook.placement.objects.fields import JsonObject, Malformed, mapping, text
from webhook.placement.objects.pod_object import NO_RESOURCES, Container, PodObject, Resources
from webhook.placement.objects.resources import amount, effective_requests, format_quantity

_LIMITS = "limits."
_PREFIXES = ("requests.", _LIMITS, "count/")


def exceeded_quota(pod: PodObject, quotas: Iterable[JsonObject]) -> str:
    """Return which quota rejects the pod, and why; empty if none does.

    Passes over a quota with scopes, which may not apply, and over what is malformed in a hand-written file.
    """
    usage: tuple[Mapping[str, int], Mapping[str, int]] | None = None
    for quota in quotas:
        try:
            usage = usage or (effective_requests(pod), effective_requests(_with_limits_as_requests(pod)))
            if excess := _excess(*usage, quota):
                return f"{text(quota, 'metadata', 'name')}: {excess}"
        except Malformed:
            continue
    return ""


def _excess(requests: Mapping[str, int], limits: Mapping[str, int], quota: JsonObject) -> str:
    if mapping(quota, "spec").get("scopes") or mapping(quota, "spec", "scopeSelector"):
        return ""
    hard = mapping(quota, "status", "hard")
    used = mapping(quota, "status", "used")
    for name in hard:
        prefix = next((each for each in _PREFIXES if name.startswith(each)), "")
        resource = name.removeprefix(prefix)
        wanted = (limits if prefix == _LIMITS else requests).get(resource, 0)
        limit, taken = (amount(each.get(name, 0), f"status.{name}", resource) for each in (hard, used))
        if wanted and taken + wanted > limit:
            counts = (format_quantity(resource, each) for each in (wanted, taken, limit))
            return "{} (requested {}, used {} of {})".format(name, *counts)
    return ""


def _with_limits_as_requests(pod: PodObject) -> PodObject:
    spec = pod.spec
    containers = tuple(map(_with_limits, spec.containers))
    init_containers = tuple(map(_with_limits, spec.init_containers))
    changed = replace(spec, resources=NO_RESOURCES, containers=containers, init_containers=init_containers)
    return replace(pod, spec=changed)


def _with_limits(container: Container) -> Container:
    return replace(container, resources=Resources(requests=container.resources.limits))
