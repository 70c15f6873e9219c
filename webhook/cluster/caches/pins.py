"""The unbound pods of VMIs that the webhook pinned, or for which it prefers a node, and which of them count there.

Time passes, and the watches show a pod and its VMI in any order. So the rules of `placement.guard.pins` are evaluated
when a decision asks, and again only for the VMIs that have changed since.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from msgspec.structs import replace

from webhook.cluster.caches.pod_tables import PlacedPods
from webhook.cluster.caches.tables import Table, VirtualMachineInstances
from webhook.placement.guard.pins import MAX_AGE, MAX_AGE_WITHOUT_VMI, MAX_PODS, counting_pod, largest
from webhook.placement.objects.facts import Key, Node, Pod, VirtualMachineInstance

DISTRUST_SECONDS = 3600.0  # after a namespace had a made-up pod
MAX_UNTRUSTED = 4096  # namespaces


class Arrival(NamedTuple):
    """A pinned pod that the cache has shown for the first time. `vm` is its `vm_key`."""

    vm: Key
    node: str
    at: float


@dataclass(slots=True)
class _Sighting:
    """When this replica first saw a pod, and the pod's VMI once that is known."""

    at: float
    vmi: VirtualMachineInstance | None = None


class Pins:
    """The pods with a pin, by VMI. Not thread-safe. `vmis` and `nodes` are the tables of these kinds.

    `arrivals` are the pinned pods of known VMIs that the caches have shown for the first time. `shown` is called with
    the VMI of a pod that counts.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        vmis: VirtualMachineInstances,
        nodes: Table[Node],
        shown: Callable[[Key], None],
    ) -> None:
        self.vmis, self.nodes = vmis, nodes
        self.arrivals: deque[Arrival] = deque(maxlen=4096)
        self._clock, self._shown = clock, shown
        self._by_vmi: defaultdict[Key, dict[Key, Pod]] = defaultdict(dict)
        self._seen: dict[tuple[Key, str], _Sighting] = {}  # by the pod's key and UID
        # When this replica first saw a pod, and the pod's VMI: for the two ages at which a pod may stop counting.
        self._expiring: dict[float, deque[tuple[float, Key]]] = {MAX_AGE_WITHOUT_VMI: deque(), MAX_AGE: deque()}
        self._untrusted: dict[str, float] = {}  # see `_max_age`; the namespace added last at the end
        self._changed: set[Key] = set()
        self._counting = PlacedPods()
        self._counted: dict[Key, Key] = {}  # the key of the pod that counts, by its VMI

    def put(self, pod: Pod, old: Pod | None = None, age: float = 0.0) -> None:
        """Store a pod, which may have a pin, in place of `old`. `age` are the seconds from its creation to a snapshot.

        A pod keeps the time when it was first seen, whatever changes.
        """
        if old is not None and old.pin:
            self._drop(old)
        if pod.pin is None:
            return
        vmi, now = _vmi_of(pod), self._clock()
        self._by_vmi[vmi][pod.key] = pod
        self._changed.add(vmi)
        if _id_of(pod) not in self._seen:
            self._seen[_id_of(pod)] = _Sighting(now - age)
            for queue in self._expiring.values():
                queue.append((now - age, vmi))

    def remove(self, pod: Pod) -> None:
        """Remove a pod."""
        if pod.pin:
            self._drop(pod)
        seen = self._seen.pop(_id_of(pod), None)
        if seen and seen.vmi is None:
            self._distrust(_vmi_of(pod))

    def replace(self, pods: Collection[Pod]) -> None:
        """Store the pods of a relist, those with a pin, in place of all others."""
        kept = {_id_of(pod) for pod in pods}
        self.change_all()
        self._by_vmi.clear()
        for each in [each for each in self._seen if each not in kept]:
            del self._seen[each]
        for pod in pods:
            self.put(pod)

    def change(self, vmi: Key) -> None:
        """Evaluate the pods of a VMI again, by its namespace and UID."""
        if vmi in self._by_vmi:
            self._changed.add(vmi)

    def change_all(self) -> None:
        """Evaluate all pods again."""
        self._changed |= self._by_vmi.keys()

    def knows_vmi(self, namespace: str, uid: str) -> bool:
        """Return whether such a VMI exists. Without any VMI, as in a snapshot that has none, assume so."""
        return not len(self.vmis) or bool(self.vmis.indexed(namespace, uid))

    def vmi_of(self, pod: Pod) -> VirtualMachineInstance | None:
        """Return the VMI of a pod with a pin, also of one that is gone by now. None if it was never known."""
        seen = self._seen.get(_id_of(pod))
        return self._find_vmi(_vmi_of(pod)) or (seen.vmi if seen else None)

    def first_seen(self, pod: Pod) -> float:
        """Return when this replica first saw a pod with a pin, in monotonic seconds; now if the pod is gone."""
        return self._seen.get(_id_of(pod), _Sighting(self._clock())).at

    def counting(self) -> PlacedPods:
        """Return the pods that count now, with the node of their pin as the effective node."""
        now = self._clock()
        for max_age, queue in self._expiring.items():
            while queue and now - queue[0][0] >= max_age:
                _, vmi = queue.popleft()
                self.change(vmi)
        while self._changed:
            self._evaluate(self._changed.pop(), now)
        return self._counting

    def unbound(self) -> Iterator[Pod]:
        """Yield the pinned pods of known VMIs, one of each VMI: one for which the scheduler found no node, if any."""
        self.counting()  # otherwise, changes pile up in a replica that gets no reviews
        for vmi, pods in self._by_vmi.items():
            pinned = [pod for pod in islice(pods.values(), MAX_PODS) if pod.pin and not pod.prefers]
            stuck = [pod for pod in pinned if pod.pin and pod.pin.unschedulable_since]
            if self.knows_vmi(*vmi) and (found := largest(stuck or pinned)):
                yield found

    def _drop(self, pod: Pod) -> None:
        vmi = _vmi_of(pod)
        self._recognize([(pod, self._seen[_id_of(pod)])], self._find_vmi(vmi))
        self._by_vmi[vmi].pop(pod.key, None)
        if not self._by_vmi[vmi]:
            del self._by_vmi[vmi]
        self._changed.add(vmi)

    def _find_vmi(self, key: Key) -> VirtualMachineInstance | None:
        return next(iter(self.vmis.indexed(*key)), None)

    def _evaluate(self, vmi: Key, now: float) -> None:
        if counted := self._counted.pop(vmi, None):
            self._counting.remove(counted)
        seen = [(pod, self._seen[_id_of(pod)]) for pod in islice(self._by_vmi.get(vmi, {}).values(), MAX_PODS)]
        self._recognize(seen, self._find_vmi(vmi))
        if any(each.vmi is None and now - each.at >= MAX_AGE_WITHOUT_VMI for _, each in seen):
            self._distrust(vmi)
        ages = [(pod, now - each.at) for pod, each in seen]
        pod = counting_pod(ages, self._max_age(vmi, now), self.nodes.named)
        if pod and pod.pin:
            self._counted[vmi] = pod.key
            self._shown(vmi)
            self._counting.put(replace(pod, effective_node=pod.pin.node))

    def _recognize(self, seen: Iterable[tuple[Pod, _Sighting]], vmi: VirtualMachineInstance | None) -> None:
        for pod, each in seen if vmi else ():
            if pod.pin and each.vmi is None and not pod.prefers:
                self.arrivals.append(Arrival(_vmi_of(pod), pod.pin.node, each.at))
            each.vmi = vmi

    def _max_age(self, vmi: Key, now: float) -> float:
        """Return for how many seconds a pod of this VMI counts.

        A user could replace a made-up pod every few seconds. So a namespace whose last pod of an unknown VMI was made
        up gets no time in advance for the next one.
        """
        if self.knows_vmi(*vmi):
            return MAX_AGE
        is_trusted = now - self._untrusted.get(vmi[0], -DISTRUST_SECONDS) >= DISTRUST_SECONDS
        return MAX_AGE_WITHOUT_VMI if is_trusted else 0.0

    def _distrust(self, vmi: Key) -> None:
        if not self.knows_vmi(*vmi):
            self._untrusted.pop(vmi[0], None)
            self._untrusted[vmi[0]] = self._clock()
            if len(self._untrusted) > MAX_UNTRUSTED:
                del self._untrusted[next(iter(self._untrusted))]


def _vmi_of(pod: Pod) -> Key:
    return pod.namespace, pod.pin.vmi_uid if pod.pin else ""


def _id_of(pod: Pod) -> tuple[Key, str]:
    return pod.key, pod.uid
