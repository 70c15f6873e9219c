"""Live migrations of guests: the source's guest ends, and then the target's one begins to use the disk."""

from __future__ import annotations

from tests.support.controlplane.api import Object
from tests.support.migration_controller import JOB, MigrationController
from tests.support.nodes.guests import NodeScenario
from tests.support.nodes.machine import STATE

SIGNALS = "/share/work"


class GuestMigrations(MigrationController):
    """A MigrationController whose pods run on real nodes."""

    def __init__(self, guests: NodeScenario, seconds: float = 1.0) -> None:
        super().__init__(guests, seconds)
        self._guests = guests

    def _target_pod(self, migration: Object, source: Object) -> Object:
        pod = super()._target_pod(migration, source)
        (container,) = pod["spec"]["containers"]
        # Four words: python3, guest.py, work and the disk; the log is the fifth.
        container["command"] = [*container["command"][:5], _signal(pod["metadata"]["labels"][JOB])]
        return pod

    def _hand_over(self, migration: Object, vmi: Object, source: Object, target: Object | None) -> None:
        super()._hand_over(migration, vmi, source, target)
        # Its source has ended, or the target would use the disk at the same time.
        if self._plane.request("GET", f"{self.path}/{migration['metadata']['name']}")["status"]["phase"] == "Succeeded":
            (STATE / _signal(migration["metadata"]["uid"]).removeprefix("/")).touch()

    def _end_source(self, source: Object) -> None:
        """End the guest, so that the kubelet finds the pod Succeeded."""
        machine = self._guests.cluster[source["spec"]["nodeName"]]
        guest = machine.pids(source["metadata"]["uid"])[-1]
        machine.run(f"kill {guest}; while [ -e /proc/{guest} ]; do sleep 0.05; done")


def _signal(migration: str) -> str:
    """Return the file in the nodes with which the guest of a migration's target begins."""
    return f"{SIGNALS}/{migration}"
