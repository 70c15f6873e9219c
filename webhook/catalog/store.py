"""The in-memory catalog that decisions read: facts about Kubernetes objects, and queries on them."""

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from itertools import chain
from typing import Any

from webhook.catalog.pins import Pins
from webhook.catalog.pod_tables import PlacedPods, Pods, PodTerm, vm_key
from webhook.catalog.releases import Owner, Releases
from webhook.catalog.reservations import Reservations
from webhook.catalog.tables import Nodes, Replicas, Table, VirtualMachineInstances, Volumes
from webhook.fleet.release import Loss
from webhook.placement.objects import facts
from webhook.placement.objects.facts import Fact, Key, Node, Pod, VirtualMachineInstance
from webhook.placement.objects.kubevirt import VIRT_LAUNCHER
from webhook.placement.objects.selectors import Selector

NO_KEY: Key = ("", "")


def parse_time(value: str) -> datetime | None:
    """Parse a time in RFC 3339; None if it is no such time or has no time zone."""
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        return None
    return time if time.tzinfo else None


class Store:
    """An in-memory `Catalog` (see `webhook.placement.catalog`).

    Not thread-safe: readers and writers must share a lock. The `clock` counts seconds; without one, no time passes.
    """

    def __init__(
        self, stored: Iterable[Fact] = (), clock: Callable[[], float] = lambda: 0.0, taken_at: datetime | None = None
    ) -> None:
        self.claims = Table[facts.Claim]()
        self.volumes = Volumes()
        self.share_managers = Table[facts.ShareManager]()
        self.nodes = Nodes()
        self.csi_nodes = Table[facts.CSINode]()
        self.pods = Pods()
        self.virtual_machines = Table[facts.VirtualMachine]()
        self.vmis = VirtualMachineInstances()
        self.longhorn_volumes = Table[facts.LonghornVolume]()
        self.replicas = Replicas()
        self.namespaces = Table[facts.Namespace]()
        self.storage_classes = Table[facts.StorageClass]()
        self._tables: dict[type[Fact], Table[Any]] = {
            facts.Claim: self.claims,
            facts.Volume: self.volumes,
            facts.ShareManager: self.share_managers,
            facts.Node: self.nodes,
            facts.CSINode: self.csi_nodes,
            facts.Pod: self.pods,
            facts.VirtualMachine: self.virtual_machines,
            facts.VirtualMachineInstance: self.vmis,
            facts.Namespace: self.namespaces,
            facts.StorageClass: self.storage_classes,
            facts.LonghornVolume: self.longhorn_volumes,
            facts.Replica: self.replicas,
        }
        # What a change of an object of these kinds changes besides its table.
        self._consequences: dict[type[Fact], Callable[[Any, Any], None]] = {
            facts.Node: self._change_node,
            facts.Pod: self._change_pod,
            facts.VirtualMachineInstance: self._change_vmi,
        }
        # The queries that one table answers.
        self.claim = self.claims.find
        self.volume = self.volumes.named
        self.volumes_by_handle = self.volumes.with_handle
        self.share_manager = self.share_managers.find
        self.share_manager_pod = self.pods.serving
        self.mounting_pods = self.pods.mounting
        self.other_mounting_pods = self.pods.mounting_without_vm
        self.node = self.nodes.named
        self.all_nodes = self.nodes.values
        self.is_reported = self.nodes.report
        self.tainted_nodes = self.nodes.tainted
        self.virtual_machine = self.virtual_machines.find
        self.vmi = self.vmis.find
        self.longhorn_volume = self.longhorn_volumes.find
        self.replicas_of = self.replicas.indexed
        self.namespace = self.namespaces.named
        self.all_namespaces = self.namespaces.values
        self.storage_class = self.storage_classes.named
        self.releases = Releases(clock)
        self.reservations = Reservations(clock)
        self.pins = Pins(clock, self.vmis, self.nodes, self.reservations.end)
        self.stale_resources: Callable[[], Collection[str]] = tuple
        # When a snapshot was taken or a command read the cluster. None for the webhook: its pods count from when a
        # watch shows them.
        self.taken_at = taken_at
        self._clock = clock
        for fact in stored:
            self.put(fact)

    def apply(self, kind: type[Fact], key: Key, fact: Fact | None) -> None:
        """Store a fact in place of an older one about the same object, or remove the older one if `fact` is None."""
        table = self._tables[kind]
        old = table.remove(key) if fact is None else table.put(fact)
        if kind in self._consequences and (old is not None or fact is not None):
            self._consequences[kind](old, fact)

    def put(self, fact: Fact) -> None:
        """Store a fact, in place of an older one about the same object."""
        self.apply(type(fact), fact.key, fact)

    def _change_pod(self, old: Any, new: Pod | None) -> None:
        if new is None:
            self._remove_pod(old)
        else:
            self.pins.put(new, old, self._age(new))
            self._end_reservation(new, old)

    def _remove_pod(self, removed: Pod) -> None:
        """Remove the pin of a pod. Remember its node if the scheduler could not place the pod."""
        # The pod of no VMI, as anybody can create it, is no pin.
        vmi = self.pins.vmi_of(removed)
        if removed.pin and removed.pin.unschedulable_since and (vmi or not len(self.vmis)):
            vm = self._vm_id(removed.namespace, removed.pin.vm, vmi)
            self.releases.record(vm, removed.pin.node, removed.uid, self.pins.first_seen(removed))
        self.pins.remove(removed)

    def _end_reservation(self, pod: Pod, old: Pod | None) -> None:
        if pod.node and not (old and old.node):
            self.reservations.end(vm_key(pod))

    def _change_vmi(self, old: VirtualMachineInstance | None, new: VirtualMachineInstance | None) -> None:
        if len(self.vmis) <= 1:  # the first or the last one (see `Pins.knows_vmi`)
            self.pins.change_all()
        for vmi in filter(None, (old, new)):
            self.pins.change((vmi.namespace, vmi.uid))

    def _change_node(self, old: Node | None, new: Node | None) -> None:
        if new is not None and (old is None or old.allocatable != new.allocatable):
            self.pins.change_all()

    def _age(self, pod: Pod) -> float:
        """Return for how many seconds a pod existed when a snapshot was taken; 0 in a live cluster."""
        created = parse_time(pod.created) if self.taken_at and pod.pin else None
        return max(0.0, (self.taken_at - created).total_seconds()) if self.taken_at and created else 0.0

    def table(self, kind: type[Fact]) -> Table[Any]:
        """Return the table of one kind."""
        return self._tables[kind]

    def replace(self, kind: type[Fact], stored: Iterable[Fact], lock: AbstractContextManager[Any]) -> None:
        """Replace all facts of one kind. A pod also removes its reservation.

        Readers hold the `lock`. It is free while a table is filled or cleared: with 50,000 pods, each takes half a
        second, and decisions must not wait.
        """
        table = self._tables[kind]
        other = type(table)()
        for fact in stored:
            other.put(fact)
        with lock:
            table.exchange(other)  # which has the old facts then
            if isinstance(table, Pods):
                launchers = table.of_app(VIRT_LAUNCHER)
                self.pins.replace([pod for pod in launchers if pod.pin])
                for pod in launchers if self.reservations else ():
                    self._end_reservation(pod, other.find(*pod.key))
            elif kind in (Node, VirtualMachineInstance):
                self.pins.change_all()
        # Python frees a dict of 50,000 pods in one uninterruptible step, which stops all threads for 0.2 s.
        for key in list(other):
            other.remove(key)

    def csi_node(self, name: str) -> facts.CSINode | None:
        """Find the CSI drivers on a node: none without a CSINode, unless all CSINodes are unknown."""
        found = self.csi_nodes.named(name)
        return facts.CSINode(name, frozenset()) if len(self.csi_nodes) and found is None else found

    def unbound_pods(self, node: str) -> Iterable[Pod]:
        """List the pods that are pinned or nominated to a node, but not bound yet."""
        stored, pinned, reserved = self._placed_pods()
        return chain(stored.unbound(node), pinned.unbound(node), reserved.unbound(node))

    def _placed_pods(self) -> tuple[PlacedPods, ...]:
        return self.pods, self.pins.counting(), self.reservations

    def released_nodes(self, namespace: str, vm: str) -> Collection[str]:
        """List the node of each unschedulable pinned pod of a VM that was deleted within the last hour."""
        return [each.node for each in self.losses(namespace, vm)]

    def losses(self, namespace: str, vm: str) -> Collection[Loss]:
        """List these pods, those of the whole replica set if the VMI is in one."""
        return self.releases.losses(self._vm_id(namespace, vm, self.vmi(namespace, vm)))

    def _vm_id(self, namespace: str, vm: str, vmi: VirtualMachineInstance | None) -> Owner:
        if vmi and vmi.in_replica_set:  # its VMIs have new names each time
            return namespace, vmi.owner_name, vmi.owner_uid
        found = self.virtual_machine(namespace, vm)
        return namespace, vm, found.uid if found else ""

    def run_strategy(self, namespace: str, name: str) -> str | None:
        """Return a VM's run strategy, empty if the VM is unknown; None for a VMI without a VM."""
        if vm := self.virtual_machine(namespace, name):
            return vm.strategy
        vmi = self.vmi(namespace, name)
        return None if vmi and vmi.owner_kind != "VirtualMachine" else ""

    def requested(self, node: str, excluding: Key) -> Mapping[str, int]:
        """Sum up the effective requests of the pods whose effective node is `node`, without the pod `excluding`."""
        total, *others = (table.requested(node, excluding) for table in self._placed_pods())
        for load in filter(None, others):
            total = {name: total.get(name, 0) + load.get(name, 0) for name in total.keys() | load.keys()}
        return total

    def placed_pods(self, namespace: str, selector: Selector) -> Iterable[Pod]:
        """List the pods with an effective node that a selector may select in a namespace (see `Catalog`)."""
        return chain(*(table.matching(namespace, selector) for table in self._placed_pods()))

    def repelling_terms(self, namespace: str, labels: Mapping[str, str], *, own: bool) -> Iterable[PodTerm]:
        """List the required anti-affinity terms that may select a pod (see `Catalog`)."""
        terms = [table.terms for table in self._placed_pods() if table.terms.by_scope]
        return chain(*[each.repelling(namespace, labels, own=own) for each in terms])

    def oversized_pods(self) -> Collection[str]:
        """List the namespaces that have a pod with an effective node whose labels and terms are unknown."""
        stored = self.pods.oversized
        pinned = self.pins.counting().oversized
        return {*stored, *pinned} if stored or pinned else ()
