"""In-memory tables of Kubernetes objects, one per kind. `pod_tables` has those of pods."""

from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Generic, TypeVar

from webhook.placement.objects.facts import Fact, Key, VirtualMachineInstance, Volume

F = TypeVar("F", bound=Fact)


class Table(Generic[F]):
    """The objects of one kind, keyed by namespace and name."""

    def __init__(self) -> None:
        self._by_key: dict[Key, F] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._by_key)

    def values(self) -> Collection[F]:
        """List all objects."""
        return self._by_key.values()

    def get(self, key: Key) -> F | None:
        """Find one object."""
        return self._by_key.get(key)

    def put(self, fact: F) -> None:
        """Store an object, in place of an older one with the same key."""
        self._by_key[fact.key] = fact

    def remove(self, key: Key) -> F | None:
        """Remove and return an object; return None if it is missing."""
        return self._by_key.pop(key, None)

    def clear_stepwise(self) -> None:
        """Remove the objects one by one.

        Python frees a dict of 50,000 pods in one uninterruptible step, which stops all threads for 0.2 s.
        """
        for key in list(self):
            self.remove(key)


class Volumes(Table[Volume]):
    """The PVs, also indexed by Longhorn volume."""

    def __init__(self) -> None:
        super().__init__()
        self._by_handle: defaultdict[str, dict[Key, Volume]] = defaultdict(dict)

    def put(self, fact: Volume) -> None:
        """Store a PV, in place of an older one with the same name."""
        self.remove(fact.key)
        super().put(fact)
        if fact.handle:
            self._by_handle[fact.handle][fact.key] = fact

    def remove(self, key: Key) -> Volume | None:
        """Remove and return a PV. Another PV of the same volume, such as a static PV, stays indexed."""
        removed = super().remove(key)
        if removed is not None and removed.handle:
            del self._by_handle[removed.handle][key]
            if not self._by_handle[removed.handle]:
                del self._by_handle[removed.handle]
        return removed

    def with_handle(self, handle: str) -> tuple[Volume, ...]:
        """List the PVs of a Longhorn volume: those with its handle, otherwise the one with its name."""
        named = self.get(("", handle))
        return tuple(self._by_handle.get(handle, {}).values()) or ((named,) if named else ())


class VirtualMachineInstances(Table[VirtualMachineInstance]):
    """The VMIs, also indexed by UID."""

    def __init__(self) -> None:
        super().__init__()
        self._by_uid: dict[str, VirtualMachineInstance] = {}

    def put(self, fact: VirtualMachineInstance) -> None:
        """Store a VMI, in place of an older one with the same name."""
        self.remove(fact.key)
        super().put(fact)
        self._by_uid[fact.uid] = fact

    def remove(self, key: Key) -> VirtualMachineInstance | None:
        """Remove and return a VMI; return None if it is missing."""
        removed = super().remove(key)
        if removed is not None:
            self._by_uid.pop(removed.uid, None)
        return removed

    def with_uid(self, uid: str) -> VirtualMachineInstance | None:
        """Find a VMI by its UID."""
        return self._by_uid.get(uid)
