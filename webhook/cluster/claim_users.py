"""The pods that use claims and belong to no VM, such as backups."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from webhook.placement.objects.facts import Key, Pod


def users_without_vm(pods: Iterable[Pod]) -> Mapping[Key, Sequence[Pod]]:
    """Return the bound and alive pods of no VM by the claims that they mount, sorted by name."""
    found: defaultdict[Key, list[Pod]] = defaultdict(list)
    users = (pod for pod in pods if pod.claims and pod.node and pod.alive and not pod.belongs_to_vm)
    for pod in sorted(users, key=lambda pod: pod.key):
        for claim in pod.claims:
            found[pod.namespace, claim].append(pod)
    return found
