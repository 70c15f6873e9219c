"""In-memory tables of Kubernetes objects, one per kind. `pod_tables` has those of pods."""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator
from typing import Generic, Self, TypeVar

from webhook.placement.objects.facts import Fact, Key, Node, Replica, VirtualMachineInstance, Volume

F = TypeVar("F", bound=Fact)
Entry = tuple[Hashable, ...]
TAINTED = "taints"  # the name of a resource with an index has a slash


class Table(Generic[F]):
    """The objects of one kind, keyed by namespace and name, and indexed by the entries of each."""

    def __init__(self) -> None:
        self._by_key: dict[Key, F] = {}
        self._by_entry: defaultdict[Entry, dict[Key, F]] = defaultdict(dict)

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._by_key)

    def entries(self, fact: F) -> Iterable[Entry]:  # noqa: ARG002 (for the tables with an index)
        """Yield the entries of the index where `indexed` finds an object."""
        return ()

    def values(self) -> Collection[F]:
        """List all objects."""
        return self._by_key.values()

    def indexed(self, *entry: Hashable) -> Collection[F]:
        """List the objects of an entry."""
        return self._by_entry.get(entry, {}).values()

    def find(self, namespace: str, name: str) -> F | None:
        """Find one object, by its key."""
        return self._by_key.get((namespace, name))

    def named(self, name: str) -> F | None:
        """Find one object of a cluster-scoped kind."""
        return self._by_key.get(("", name))

    def put(self, fact: F) -> F | None:
        """Store an object, in place of an older one with the same key. Return the older one."""
        key = fact.key
        old = self.remove(key) if key in self._by_key else None
        self._by_key[key] = fact
        for entry in self.entries(fact):
            self._by_entry[entry][key] = fact
        return old

    def remove(self, key: Key) -> F | None:
        """Remove and return an object; return None if it is missing."""
        removed = self._by_key.pop(key, None)
        for entry in () if removed is None else self.entries(removed):
            found = self._by_entry[entry]
            found.pop(key, None)
            if not found:  # entries of deleted namespaces must not pile up
                del self._by_entry[entry]
        return removed

    def exchange(self, other: Self) -> None:
        """Exchange all objects with another table."""
        self.__dict__, other.__dict__ = other.__dict__, self.__dict__


class Nodes(Table[Node]):
    """The nodes, also indexed by each extended resource that they report, and by whether they have taints."""

    def entries(self, fact: Node) -> Iterable[Entry]:
        """Yield the extended resources, whose names have a prefix, and TAINTED."""
        yield from ((resource,) for resource in fact.allocatable or () if "/" in resource)
        if fact.taints:
            yield (TAINTED,)

    def report(self, resource: str) -> bool:
        """Return whether any node reports an extended resource as allocatable."""
        return bool(self.indexed(resource))

    def tainted(self) -> Collection[Node]:
        """List the nodes that have a taint."""
        return self.indexed(TAINTED)


class Volumes(Table[Volume]):
    """The PVs, also indexed by Longhorn volume."""

    def entries(self, fact: Volume) -> Iterable[Entry]:
        """Yield the volume, which several PVs may have."""
        return [(fact.handle,)] if fact.handle else ()

    def with_handle(self, handle: str) -> Collection[Volume]:
        """List the PVs of a Longhorn volume: those with its handle, otherwise the one with its name."""
        named = self.named(handle)
        return self.indexed(handle) or ((named,) if named else ())


class Replicas(Table[Replica]):
    """Longhorn's replicas, also indexed by volume."""

    def entries(self, fact: Replica) -> Iterable[Entry]:
        """Yield the volume."""
        return [(fact.volume,)]


class VirtualMachineInstances(Table[VirtualMachineInstance]):
    """The VMIs, also indexed by namespace and UID."""

    def entries(self, fact: VirtualMachineInstance) -> Iterable[Entry]:
        """Yield the namespace and UID."""
        return [(fact.namespace, fact.uid)]
