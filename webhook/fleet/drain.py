"""What a drain of nodes does to the VMs on them and to those whose disks they serve, and what the drain waits for.

A drain cordons the nodes and evicts their pods. KubeVirt answers for the pod of a VM, by the VM's eviction strategy:
`admitLauncherPod` in
https://github.com/kubevirt/kubevirt/blob/d923fdb8/pkg/virt-api/webhooks/validating-webhook/admitters/pod-eviction-admitter.go
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from itertools import chain, islice

from msgspec import Struct, field
from msgspec.structs import replace

from webhook.fleet.forecast_catalog import PlannedPods, forecast
from webhook.fleet.move import Hindrance, Move, Refusal, Surroundings, make_plan, target_candidate, why_not_evacuated
from webhook.fleet.nfs import deletes_pods
from webhook.fleet.states import Status, admits
from webhook.fleet.volumes import VolumeData, other_users, users_of
from webhook.fleet.wording import restart_command
from webhook.placement.catalog import Catalog
from webhook.placement.guard.candidate import Candidate
from webhook.placement.guard.feasibility import CHECKS, first_failed_check
from webhook.placement.objects.facts import RESTARTING_STRATEGIES, Key, Pod
from webhook.placement.objects.fields import JsonObject, is_dns_subdomain, mapping, mappings, text
from webhook.placement.objects.longhorn import COMPONENT_LABEL, DRAIN_POLICY
from webhook.placement.objects.pod import Manifest
from webhook.placement.objects.selectors import labels_match
from webhook.placement.reasons import ClaimFinding, Reason
from webhook.placement.voting_consumers import claims_of

# The guard doesn't risk these, but the scheduler may place the pod.
_UNRISKED = (Reason.CACHE_STALE, Reason.RELEASED, Reason.START_FAILED, Reason.UNJUDGED)
_CHECKS = [check for check in CHECKS if check.reason not in _UNRISKED]


class Effect(StrEnum):
    """What a drain does to a VM."""

    MIGRATES = "Migrates"
    IO_PAUSES = "IOPauses"
    IO_HANGS = "IOHangs"
    RESTARTS = "Restarts"
    STOPS = "Stops"
    BLOCKS = "Blocks"


# `handleVMBackup` and `handleUtilityVolumes` in
# https://github.com/kubevirt/kubevirt/blob/d923fdb8/pkg/virt-controller/watch/migration/migration.go#L1581
AFTER_BACKUP = "after its backup, which KubeVirt 1.8 or newer aborts"
_MILD = frozenset({Effect.MIGRATES, Effect.IO_PAUSES})
_ENDS = frozenset({Effect.RESTARTS, Effect.STOPS})


class Site(Struct, frozen=True, dict=True):
    """The cluster before a drain."""

    statuses: Sequence[Status]  # of all VMs
    catalog: Catalog
    around: Surroundings
    longhorn: Callable[[str], str]  # returns a setting of Longhorn, empty if it is unknown
    pods: Collection[Pod] = ()
    budgets: Collection[JsonObject] = ()
    data: Mapping[str, VolumeData] = field(default_factory=dict)  # of Longhorn's volumes, by name
    strategy: str = ""  # KubeVirt's default eviction strategy

    @cached_property
    def by_node(self) -> Mapping[str, list[Status]]:
        """Group the VMs by each node that runs them or serves their claims."""
        found = defaultdict[str, list[Status]](list)
        for status in self.statuses:
            for node in {status.node, *(each.node for each in status.claims if not each.reason)} - {None}:
                found[str(node)].append(status)
        return found

    @cached_property
    def guarded(self) -> Mapping[Key, str]:
        """Return the PodDisruptionBudget of each pod that can't be evicted now."""
        return {
            pod.key: text(budget, "metadata", "name")
            for budget in self.budgets
            if mapping(budget, "status").get("disruptionsAllowed") == 0
            for pod in self.pods
            if pod.namespace == text(budget, "metadata", "namespace")
            and labels_match(mapping(budget, "spec").get("selector"), pod.labels)
        }


class Affected(Struct, frozen=True):
    """A VM that a drain affects."""

    status: Status
    lost: tuple[ClaimFinding, ...]  # its claims that a drained node serves
    effects: tuple[Effect, ...] = ()
    why: str = ""
    targets: tuple[str, ...] = ()  # the nodes that can run it, if it runs on a drained one
    move: Move | None = None  # takes it to its storage before the drain
    refusal: Refusal | None = None  # why KubeVirt can't migrate it now
    migrates: bool = False  # KubeVirt can migrate it now
    returns: bool = False  # it may be apart from its storage afterwards, and a migration can bring it back

    @property
    def interrupted(self) -> bool:
        """Return whether the drain interrupts the VM, or can't end before the VM is stopped."""
        return not _MILD.issuperset(self.effects)


class Obstacle(Struct, frozen=True):
    """A pod or a Longhorn volume for which the drain waits."""

    kind: str
    name: str
    detail: str
    ends: bool = False  # the wait ends by itself


class Drain(Struct, frozen=True):
    """What a drain of nodes does to VMs, and what it waits for."""

    nodes: tuple[str, ...]
    vms: tuple[Affected, ...]
    obstacles: tuple[Obstacle, ...]

    @property
    def is_safe(self) -> bool:
        """Return whether the drain ends, and interrupts no VM."""
        return not any(each.interrupted for each in self.vms) and all(each.ends for each in self.obstacles)


def check_drain(site: Site, nodes: Collection[str], most: int | None = None) -> Drain:
    """Return what a drain of all these nodes at once does. Name at most so many targets of each VM, None for all."""
    drained = tuple(dict.fromkeys(nodes))
    found = {each.machine.key: each for node in drained for each in site.by_node.get(node, ())}
    elsewhere = [each for each in found.values() if each.node in drained and each.storage_node not in drained]
    plan = make_plan(elsewhere, site.catalog, site.around)
    moves = {each.status.machine.key: each.result for each in plan if isinstance(each.result, Move)}
    placed = [move.pod for move in moves.values() if move.pod]
    vms = list[Affected]()
    for status in sorted(found.values(), key=lambda each: (each.node not in drained, each.machine.key)):
        lost = tuple(each for each in status.claims if each.node in drained and not each.reason)
        refusal = why_not_evacuated(status, site.around, site.catalog)
        vm = Affected(status, lost, move=moves.get(status.machine.key), refusal=refusal)
        vms.append(
            _unserved(_evicted(vm, site, drained, placed, most) if status.node in drained else vm, site, drained)
        )
    return Drain(drained, tuple(vms), tuple(chain(_guarded_pods(site, drained), _waiting_volumes(site, drained))))


def _evicted(vm: Affected, site: Site, drained: Sequence[str], placed: list[Pod], most: int | None) -> Affected:
    """Return a VM on a drained node with what the eviction of its pod does, and place its next pod."""
    machine, refusal = vm.status.machine, vm.refusal
    effect, why = _on_eviction(vm.status, site, refusal)
    if (machine.target if refusal is None else machine.template) is None or machine.manifest is None:
        return replace(vm, effects=(effect,), why=why or "where it can run is unknown")
    others = PlannedPods(pod for pod in placed if vm.move is None or pod is not vm.move.pod)
    later = forecast(site.catalog, placed=others)
    failures = list[str]()
    nodes = sorted(node.name for node in site.catalog.all_nodes() if node.name not in drained)
    targets = list(islice(_fitting(vm, nodes, later, failures, migrates=refusal is None), most))
    if effect is not Effect.BLOCKS and not targets:
        effect = Effect.BLOCKS if effect is Effect.MIGRATES else Effect.STOPS
        why = ": ".join(["no other node can run it", *failures[:1]])
    elif effect is not Effect.BLOCKS and not vm.move:
        placed.append(targets[0].pod_facts)
    names = tuple(each.node_name for each in targets)
    migrates = refusal is None and bool(names) and why != AFTER_BACKUP
    return replace(vm, effects=(effect,), why=why or _where(names), targets=names, migrates=migrates)


def _on_eviction(status: Status, site: Site, refusal: Refusal | None) -> tuple[Effect, str]:
    strategy = text(status.machine.vmi, "spec", "evictionStrategy") or site.strategy or "None"
    if strategy == "External":
        return Effect.BLOCKS, "another controller has to move it (evictionStrategy External)"
    if strategy in ("LiveMigrate", "LiveMigrateIfPossible"):
        if refusal is None:
            return Effect.MIGRATES, AFTER_BACKUP if mappings(status.machine.vmi, "spec", "utilityVolumes") else ""
        if strategy == "LiveMigrate" or refusal.hindrance is not Hindrance.NOT_MIGRATABLE:
            return Effect.BLOCKS, f"KubeVirt cannot migrate it: {refusal.detail} (evictionStrategy {strategy})"
    if status.machine.pod and (budget := site.guarded.get(status.machine.pod.key)):
        return Effect.BLOCKS, f"PodDisruptionBudget {budget} allows no eviction"
    return _when_deleted(status), f"the drain deletes its pod (evictionStrategy {strategy})"


def _when_deleted(status: Status) -> Effect:
    return Effect.RESTARTS if status.machine.strategy in RESTARTING_STRATEGIES else Effect.STOPS


def _fitting(
    vm: Affected, nodes: Sequence[str], catalog: Catalog, failures: list[str], *, migrates: bool
) -> Iterator[Candidate]:
    """Yield the nodes that can run the target of the VM's migration, or its next pod. Collect why others can't."""
    machine = vm.status.machine
    created = Manifest(mapping(machine.template), machine.namespace)
    for node in nodes:
        found = target_candidate(machine, node, catalog) if migrates else Candidate(created, node, catalog)
        if failed := first_failed_check(found, _CHECKS):
            failures.append(f"{node} {failed.detail}")
        else:
            yield found


def _where(targets: Sequence[str]) -> str:
    return f"to {targets[0]}" + (f" or {len(targets) - 1} more" if targets[1:] else "")


def _unserved(vm: Affected, site: Site, drained: Sequence[str]) -> Affected:
    """Add what the replacement of its share-managers does to a VM, and whether the two may be apart afterwards."""
    status, start, catalog, leaves = vm.status, vm.status.start, site.catalog, Effect.MIGRATES in vm.effects
    if not vm.lost or not _ENDS.isdisjoint(vm.effects):  # a VM that ends needs no share-manager
        return replace(vm, returns=leaves and not vm.move and bool(status.storage_node))
    servers = [Manifest({"spec": status.machine.servers.get(str(each.volume), {})}, "") for each in vm.lost]
    homes = vm.targets if leaves else {str(status.node)}.difference(drained)
    enforced = status.opted_in and start is not None and start.enforced
    uid = status.machine.pod.vmi_uid if status.machine.pod else ""
    shared = other_users(vm.lost, status.machine.namespace, uid, catalog)  # the server may follow one of them
    nodes = [node for node in map(catalog.node, homes) if node]
    fit = bool(nodes) and all(admits(node, each, catalog) for node in nodes for each in servers)
    follows = enforced and site.around.settings.steering and not shared and fit
    others = [node for node in catalog.all_nodes() if node.name not in drained]
    if not all(any(admits(node, each, catalog) for node in others) for each in servers):
        effect, why = Effect.IO_HANGS, "no other node can run its share-manager"
    elif deletes_pods(site.longhorn):
        effect, why = _when_deleted(status), "Longhorn deletes its pod once the new share-manager runs"
    else:
        effect, why = Effect.IO_PAUSES, f"its share-manager {'follows it' if follows else 'may start on any node'}"
        why += " if it migrates first" * (follows and leaves)
    stays = follows or effect is Effect.STOPS or (enforced and effect is Effect.RESTARTS)
    returns = not stays and (vm.refusal is None or vm.refusal.hindrance is not Hindrance.NOT_MIGRATABLE)
    return replace(vm, effects=(*vm.effects, effect), why="; ".join(filter(None, (vm.why, why))), returns=returns)


def _guarded_pods(site: Site, drained: Sequence[str]) -> Iterator[Obstacle]:
    """Yield the pods of no VM that a budget keeps. Longhorn removes the budgets of its instance managers itself."""
    for pod in site.pods if site.guarded else ():
        other = not pod.belongs_to_vm and pod.labels.get(COMPONENT_LABEL) != "instance-manager"
        if pod.node in drained and other and (budget := site.guarded.get(pod.key)):
            yield Obstacle("Pod", "/".join(pod.key), f"PodDisruptionBudget {budget} allows no eviction")


def _waiting_volumes(site: Site, drained: Sequence[str]) -> Iterator[Obstacle]:
    """Yield the volumes for which Longhorn keeps the budget of an instance manager."""
    # `canDeleteInstanceManagerPDB` in
    # https://github.com/longhorn/longhorn-manager/blob/5ddaa369/controller/instance_manager_controller.go
    policy = site.longhorn(DRAIN_POLICY) or "block-if-contains-last-replica"
    for name, volume in site.data.items():
        healthy = volume.healthy or frozenset()
        kept = [node for node in map(site.catalog.node, healthy.difference(drained)) if node and not node.unschedulable]
        allowed = policy == "always-allow" or (policy == "allow-if-replica-is-stopped" and not volume.attached_to)
        held = not kept or policy == "block-for-eviction"  # which copies each replica
        here = not healthy.isdisjoint(drained)
        failed = not (here or kept or volume.used.isdisjoint(drained))
        if (failed or (here and held)) and not allowed:
            copied = here and policy.startswith("block-for-eviction")
            detail = "Longhorn copies it first" if copied else f"Longhorn blocks the drain ({policy})"
            replica = "only a failed" if failed else "a healthy" if kept else "its last healthy"
            yield Obstacle("Volume", _label(name, site), f"{replica} replica is here: {detail}", ends=copied)
        server = site.catalog.share_manager_pod(site.around.settings.longhorn_namespace, name)
        if volume.attached_to in drained and not server:  # otherwise, it moves with its share-manager
            users = ", ".join(map(str, dict.fromkeys(users_of(name, site.catalog))))
            detail = f"attached only here, by {users or 'no pod: detach it'}"
            yield Obstacle("Volume", _label(name, site), detail, ends=bool(users))


def _label(volume: str, site: Site) -> str:
    return ", ".join([volume, *(f"claim {'/'.join(key)}" for key in claims_of(volume, site.catalog))])


def steps(drain: Drain) -> Iterator[tuple[str, str]]:
    """Yield the order of a drain: commands, each with a comment. VMs migrate first, so that their storage follows."""
    named = [each for each in drain.vms if all(map(is_dns_subdomain, each.status.machine.key))]
    nodes = " ".join(filter(is_dns_subdomain, drain.nodes))
    yield from _recolocate([each for each in named if each.move], "to their storage")
    yield f"kubectl cordon {nodes}", ""
    migrating = [each for each in named if each.migrates and not each.move]
    for each in named:
        machine = each.status.machine
        if each in migrating:
            yield f"virtctl migrate {machine.name} -n {machine.namespace}", _where(each.targets)
        elif Effect.BLOCKS in each.effects and each.targets:
            yield restart_command(machine), "it cannot migrate"
    wait = "when the VMs have migrated" if migrating else ""
    yield f"kubectl drain {nodes} --ignore-daemonsets --delete-emptydir-data", wait
    yield f"kubectl uncordon {nodes}", "after the maintenance"
    yield from _recolocate([each for each in named if each.returns], "those that are apart then")


def _recolocate(vms: Sequence[Affected], why: str) -> Iterator[tuple[str, str]]:
    for namespace in dict.fromkeys(each.status.machine.namespace for each in vms):
        names = [each.status.machine.name for each in vms if each.status.machine.namespace == namespace]
        yield f"kubevirt-scheduler recolocate {' '.join(names)} -n {namespace} --yes", why
