"""The unbound pods of VMIs that the webhook pinned, or for which it prefers a node, and which of them count there.

Anybody may create a pod with the webhook's annotation. So a pod counts only by the rules of `placement.guard.pins`: an
existing VMI controls it, it is the largest unbound pod of that VMI, its node could run it if empty, and it is younger
than MAX_AGE or nominated to the node.

Each of these can change at any time: the watches show a pod, its VMI and its node in any order, and time passes. So no
event decides at once. `put`, `remove` and the `change` methods only mark the VMI, `_expiring` marks it when its pod
reaches MAX_AGE, and `counting`, which each decision calls, evaluates the marked VMIs. A pod that begins to count ends
the reservation of its VM.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator
from itertools import islice

from msgspec.structs import replace

from webhook.catalog.pod_tables import PlacedPods, vm_key
from webhook.catalog.tables import Table, VirtualMachineInstances
from webhook.placement.guard.pins import MAX_AGE, MAX_PODS, counting_pod, largest
from webhook.placement.objects.facts import Key, Node, Pod, VirtualMachineInstance


class Pins:
    """The pods with a pin, by VMI. Not thread-safe. `vmis` and `nodes` are the tables of these kinds.

    `shown` is called with the VMI of a pod that counts.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        vmis: VirtualMachineInstances,
        nodes: Table[Node],
        shown: Callable[[Key], None],
    ) -> None:
        self.vmis, self.nodes = vmis, nodes
        self._clock, self._shown = clock, shown
        self._by_vmi: defaultdict[Key, dict[Key, Pod]] = defaultdict(dict)
        self._seen: dict[tuple[Key, str], float] = {}  # when this replica first saw a pod, by its key and UID
        # When this replica first saw a pod, and the pod's VMI: at MAX_AGE, the pod may stop counting.
        self._expiring: deque[tuple[float, Key]] = deque()
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
        vmi = vm_key(pod)
        now = self._clock()
        self._by_vmi[vmi][pod.key] = pod
        self._changed.add(vmi)
        if _id_of(pod) not in self._seen:
            self._seen[_id_of(pod)] = now - age
            self._expiring.append((now - age, vmi))

    def remove(self, pod: Pod) -> None:
        """Remove a pod."""
        if pod.pin:
            self._drop(pod)
        self._seen.pop(_id_of(pod), None)

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
        """Return the VMI of a pod, None if it is unknown."""
        return next(iter(self.vmis.indexed(*vm_key(pod))), None)

    def first_seen(self, pod: Pod) -> float:
        """Return when this replica first saw a pod with a pin, in monotonic seconds; now if the pod is gone."""
        return self._seen.get(_id_of(pod), self._clock())

    def counting(self) -> PlacedPods:
        """Return the pods that count now, with the node of their pin as the effective node."""
        now = self._clock()
        while self._expiring and now - self._expiring[0][0] >= MAX_AGE:
            _, vmi = self._expiring.popleft()
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
        vmi = vm_key(pod)
        self._by_vmi[vmi].pop(pod.key, None)
        if not self._by_vmi[vmi]:
            del self._by_vmi[vmi]
        self._changed.add(vmi)

    def _evaluate(self, vmi: Key, now: float) -> None:
        if counted := self._counted.pop(vmi, None):
            self._counting.remove(counted)
        if not self.knows_vmi(*vmi):
            return
        pods = islice(self._by_vmi.get(vmi, {}).values(), MAX_PODS)
        pod = counting_pod([(pod, now - self._seen[_id_of(pod)]) for pod in pods], self.nodes.named)
        if pod and pod.pin:
            self._counted[vmi] = pod.key
            self._shown(vmi)
            self._counting.put(replace(pod, effective_node=pod.pin.node))


def _id_of(pod: Pod) -> tuple[Key, str]:
    return pod.key, pod.uid
