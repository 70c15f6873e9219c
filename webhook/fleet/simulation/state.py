"""The state of a simulation: where the VMs and their share-managers are, and the catalog that shows them there.

A VM or a share-manager that the scheduler may place on several nodes has all of them. The catalog shows it on the first
one, so that it takes its resources somewhere.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cached_property

from msgspec import Struct, field
from msgspec.structs import replace

from webhook.fleet.forecast_catalog import Changes, PlannedPods, forecast
from webhook.fleet.machine import Machine, Status
from webhook.fleet.relocation.rules import Move, Refusal, Surroundings
from webhook.fleet.volumes import VolumeData, other_users
from webhook.placement.catalog import Catalog
from webhook.placement.objects.facts import RESTARTING_STRATEGIES, Key, Pod
from webhook.placement.objects.fields import JsonObject
from webhook.placement.objects.longhorn import VOLUME_LABEL, is_share_manager
from webhook.placement.objects.pod_object import PodObject, PodSpec
from webhook.placement.reasons import ClaimFinding
from webhook.placement.voting_consumers import claims_of


def _unknown(_: str) -> str:
    return ""


class Site(Struct, frozen=True, dict=True):
    """The cluster before the first step."""

    statuses: Sequence[Status]  # of all VMs
    catalog: Catalog
    around: Surroundings
    longhorn: Callable[[str], str] = _unknown  # returns a setting of Longhorn, empty if it is unknown
    pods: Collection[Pod] = ()
    budgets: Collection[JsonObject] = ()
    data: Mapping[str, VolumeData] = field(default_factory=dict)  # of Longhorn's volumes, by name
    strategy: str = ""  # KubeVirt's default eviction strategy
    manifests: Mapping[Key, PodObject] = field(default_factory=dict)  # of the pods, as far as they are known

    @cached_property
    def by_node(self) -> Mapping[str, list[Status]]:
        """Group the running VMs by each node that runs them or serves their claims."""
        found = defaultdict[str, list[Status]](list)
        for status in self.statuses:
            if status.node:
                for node in {status.node, *(each.node for each in status.claims if not each.reason)} - {None}:
                    found[str(node)].append(status)
        return found

    @cached_property
    def served_by(self) -> Mapping[str, list[str]]:
        """Group the volumes by the node of their share-manager."""
        found = defaultdict[str, list[str]](list)
        for pod in self.pods:
            if is_share_manager(pod.labels) and pod.namespace == self.around.settings.longhorn_namespace:
                found[pod.node].append(pod.labels.get(VOLUME_LABEL, ""))
        return found

    @cached_property
    def servers(self) -> Mapping[str, PodSpec]:
        """Return the specs of the share-manager pods by their volumes."""
        return next((each.machine.servers for each in self.statuses), {})


class Phase(StrEnum):
    """Whether a VM runs."""

    RUNS = "runs"
    WAITS = "waits"  # for a node: KubeVirt starts it as soon as one can run it
    STOPPED = "stopped"  # until somebody starts it


class Vm(Struct, frozen=True):
    """A VM."""

    status: Status  # before the first step
    pod: Pod  # the pod that runs it, or did
    nodes: tuple[str, ...]  # it runs on one of them; empty if it doesn't run, or if that is unknown
    phase: Phase = Phase.RUNS
    starts: int = 0  # how often its pod has ended
    placed_at: int = 0  # the step
    sure: bool = True  # whether it was placed by that step, wherever other VMs went
    at_risk: bool = False  # Longhorn may have deleted its pod in this step
    halted: bool = False  # somebody has stopped it
    may_stop: bool = False  # it may have ended, and nothing has started it again
    why: str = ""  # why it is where it is, or does not run

    @property
    def key(self) -> Key:
        """Return its namespace and name."""
        return self.status.machine.key

    @property
    def machine(self) -> Machine:
        """Return the machine with the pod that runs it now."""
        return replace(self.status.machine, pod=self.pod)

    @property
    def restarts(self) -> bool:
        """Return whether KubeVirt starts it again after its pod was deleted, and the guest has shut down.

        With `RerunOnFailure`, a guest that shuts down cleanly has not failed:
        https://github.com/kubevirt/kubevirt/issues/9823
        """
        return self.status.machine.strategy == RESTARTING_STRATEGIES[0]

    @property
    def is_ending(self) -> bool:
        """Return whether somebody has stopped it before, so that KubeVirt ends it, and refuses to stop it again."""
        return self.status.machine.strategy == "Halted"

    @property
    def volumes(self) -> Iterator[str]:
        """Yield the volumes of its claims that a share-manager serves before the first step."""
        return (each.volume for each in self.status.claims if each.node and not each.reason and each.volume)

    def unless_taken(self, *, sure: bool) -> "Vm":
        """Return it as started, for sure or unless other VMs take its nodes: it then has ended, and waits."""
        return replace(self, sure=sure, may_stop=not sure)

    def mounts(self, volume: str) -> bool:
        """Return whether its own pod mounts a volume. A hotplugged one is mounted by another pod."""
        return any(each.volume == volume and each.claim in self.pod.claims for each in self.status.claims)


class Server(Struct, frozen=True):
    """The share-manager of a volume."""

    nodes: tuple[str, ...]  # it runs on one of them; empty if no node can run it
    needed: bool = True  # a pod uses the volume
    follows: Key | None = None  # the VM that it runs beside, if it does
    certain: bool = True  # whether it does run there; otherwise, it depends on a race
    lost_at: int = 0  # the last step that it was lost in
    stays: tuple[str, ...] = ()  # where it still runs if it was not lost in that step; empty if it surely was
    moved: bool = False  # it is not where it was before the first step
    why: str = ""  # why it follows no VM, or why no node can run it


def on_node(pod: Pod, node: str) -> Pod:
    """Return a pod that is bound to a node."""
    return replace(pod, node=node, effective_node=node)


def union(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    """Return the nodes of both, each of them once."""
    return tuple(dict.fromkeys((*one, *other)))


class State(Struct, frozen=True, dict=True):
    """The cluster after some steps. `vms` and `servers` are those that the steps may concern."""

    site: Site
    vms: Mapping[Key, Vm]
    servers: Mapping[str, Server]
    step: int = 0  # how many were applied
    cordons: Mapping[str, bool] = field(default_factory=dict)  # whether a node is unschedulable, where that has changed
    refused: Mapping[Key, str] = field(default_factory=dict)  # the VMs for which this step waits, and why
    waits: Mapping[Key, str] = field(default_factory=dict)  # the other pods for which it waits, and why
    contested: frozenset[Key] = frozenset()  # the pods of which a PodDisruptionBudget lets it evict only some
    elsewhere: frozenset[Key] = frozenset()  # the VMs that may run on a node that this step doesn't drain
    relocated: Mapping[Key, Move | Refusal] = field(default_factory=dict)  # the VMs that this step recolocates, or not
    most: int | None = None  # how many nodes to find for a VM, None for all

    @classmethod
    def before(cls, site: Site, nodes: Iterable[str], most: int | None = None) -> "State":
        """Return the state before the first step of a drain of these nodes."""
        concerned = {each.machine.key: each for node in nodes for each in site.by_node.get(node, ())}
        served = {volume: Server((node,)) for node in nodes for volume in site.served_by.get(node, ())}
        state = cls.of([concerned[key] for key in sorted(concerned)], site)
        return replace(state, servers={**served, **state.servers}, most=most)

    @classmethod
    def of(cls, statuses: Iterable[Status], site: Site) -> "State":
        """Return the state before the first step: the VMs that run, and their share-managers."""
        running = ((each, each.machine.pod, each.node) for each in statuses)
        vms = {each.machine.key: Vm(each, pod, (node,)) for each, pod, node in running if pod and node}
        claims = (each for vm in vms.values() for each in vm.status.claims)
        served = {each.volume: Server((each.node,)) for each in claims if each.volume and each.node and not each.reason}
        return cls(site, vms, served)

    @cached_property
    def catalog(self) -> Catalog:
        """Return the catalog of the cluster in this state. A VM that may be on several nodes takes no resources."""
        return self._catalog(each.pod for each in self._changed if len(each.nodes) == 1)

    def crowded_catalog(self, without: Key) -> Catalog:
        """Return the same, but such a VM takes resources of each of these nodes, except one VM, which takes none."""
        others = (each for each in self._changed if each.key != without)
        return self._catalog(on_node(each.pod, node) for each in others for node in each.nodes)

    def _catalog(self, placed: Iterable[Pod]) -> Catalog:
        before = (each.status.machine.pod for each in self._changed)
        gone = {pod.key: pod for pod in before if pod}
        users = defaultdict[Key, list[Pod]](list)
        for vm in (each for each in self._changed if each.nodes):
            for claim in (*vm.pod.claims, *vm.status.machine.hotplugged):
                users[vm.pod.namespace, claim].append(vm.pod)
        servers = {volume: self._server_pod(volume) for volume, each in self.servers.items() if each.moved}
        return forecast(self.site.catalog, (), PlannedPods(placed), Changes(self.cordons, gone, users, servers))

    @property
    def _changed(self) -> list[Vm]:
        return [each for each in self.vms.values() if each.placed_at]

    def _server_pod(self, volume: str) -> Pod | None:
        server = self.servers[volume]
        pod = self.site.catalog.share_manager_pod(self.site.around.settings.longhorn_namespace, volume)
        return on_node(pod, server.nodes[0]) if server.nodes and pod else None

    def with_vm(self, vm: Vm) -> "State":
        """Return the state with another state of a VM."""
        return replace(self, vms={**self.vms, vm.key: vm})

    def with_server(self, volume: str, server: Server) -> "State":
        """Return the state with another state of a share-manager."""
        return replace(self, servers={**self.servers, volume: server})

    def users(self, volume: str) -> list[Vm]:
        """Return the VMs that use a volume and run."""
        return self._users.get(volume, [])

    @cached_property
    def _users(self) -> Mapping[str, list[Vm]]:
        found = defaultdict[str, list[Vm]](list)
        for vm in self.vms.values():
            for volume in dict.fromkeys(vm.volumes) if vm.phase is Phase.RUNS else ():
                found[volume].append(vm)
        return found

    def other_users(self, volume: str) -> Iterator[tuple[str, Pod]]:
        """Yield the pods of no VM that use a volume, each with its claim."""
        for namespace, claim in claims_of(volume, self.catalog):
            for pod in self.catalog.other_mounting_pods(namespace, claim):
                yield claim, pod

    def is_shared(self, volume: str, vm: Vm) -> bool:
        """Return whether others than a VM use a volume."""
        served = [each for each in vm.status.claims if each.volume == volume]
        return any(other_users(served, vm.pod.namespace, vm.pod.vmi_uid, self.catalog))

    def may_be_unused(self, volume: str, vm: Vm) -> bool:
        """Return whether the share-manager of a volume may have stopped, because each other VM that uses it may."""
        users = [each for each in self.users(volume) if each.key != vm.key]
        return bool(users) and all(each.may_stop for each in users) and not any(self.other_users(volume))

    def is_together(self, vm: Vm) -> bool | None:
        """Return whether a VM runs on the node of the share-manager that decides for it, None if that is uncertain."""
        server = self.servers.get(vm.status.volume)
        if server is None or not server.nodes or vm.phase is not Phase.RUNS:
            return False
        if not server.certain:
            return None
        if server.follows == vm.key:
            return True
        if set(server.nodes).isdisjoint(vm.nodes):
            return False if vm.nodes else None
        return True if len({*server.nodes, *vm.nodes}) == 1 else None

    def local_bytes(self, vm: Vm) -> int:
        """Return the requested capacity of a VM's claims whose share-manager runs beside it."""
        local = (each.claim for each in vm.status.claims if each.node and self._is_beside(vm, each))
        claims = (self.site.catalog.claim(vm.pod.namespace, claim) for claim in local)
        return sum(claim.size for claim in claims if claim)

    def _is_beside(self, vm: Vm, claim: ClaimFinding) -> bool:
        server = self.servers.get(claim.volume or "") or Server((str(claim.node),))  # which is starting
        return server.nodes[:1] == vm.nodes[:1] if vm.nodes else server.follows == vm.key


def placed(vm: Vm, nodes: tuple[str, ...], pod: Pod, step: int, why: str = "") -> Vm:
    """Return a VM that a step has placed on one of these nodes."""
    pod = on_node(pod, nodes[0])
    return replace(vm, pod=pod, nodes=nodes, phase=Phase.RUNS, placed_at=step, halted=False, why=why, sure=True)
