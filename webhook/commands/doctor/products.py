"""The checks of KubeVirt, of Longhorn and its known bugs, of claims, nodes, and VMs that wait."""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial

from msgspec import Struct

from webhook.catalog.inventory import node_loads
from webhook.catalog.kinds import KUBEVIRT_API
from webhook.commands.doctor.inspection import Inspection, Result, failure, inventory, listed, ok, warning
from webhook.commands.report.document import DATA_RIGHTS, is_local
from webhook.fleet import wording
from webhook.fleet.machine import State, Status
from webhook.fleet.nfs import Servers, deletes_pods, over_nfs
from webhook.fleet.relocation.rules import Surroundings
from webhook.fleet.simulation.plan import plan_move
from webhook.fleet.states import Workload, assess, assess_pod
from webhook.fleet.volumes import users_of
from webhook.placement.objects.facts import Node
from webhook.placement.objects.fields import mapping, text, version_numbers
from webhook.placement.objects.longhorn import VERSION_SETTING
from webhook.reading.api import read_list, read_object
from webhook.reading.installation import Installation

PREFER_NO_SCHEDULE = "PreferNoSchedule"
CROWDED = 0.9  # of a node's allocatable pods: share-managers request nothing else
NAMED = 5  # VMs of a finding that get a line each
TO_LIST = "To list them: kubevirt-scheduler report -A"
# From this version of KubeVirt on, a live migration can name its target node (docs/reference/versions.md).
MIGRATES_TO_NODE_FROM = (1, 6)


class Bug(Struct, frozen=True):
    """A bug of Longhorn."""

    symptom: str
    first: tuple[int, ...]  # the first version with it
    fixed: tuple[int, ...]  # the first version without it
    sources: tuple[str, ...]
    kernel: tuple[int, ...] = ()  # the oldest kernel of a node with it

    def concerns(self, version: str) -> bool:
        """Return whether a version of Longhorn has the bug."""
        return self.first <= version_numbers(version) < self.fixed


LONGHORN = "https://github.com/longhorn/longhorn/issues"
# Few and certain. Each bug is fixed in a released version, and its source names the versions.
BUGS = (
    Bug(
        'processes get "Remote I/O error" on RWX volumes',
        (1,),
        (1, 11, 3),
        (f"{LONGHORN}/13268", f"{LONGHORN}/13829", "https://github.com/nfs-ganesha/nfs-ganesha/issues/1385"),
        kernel=(6, 19),
    ),
    Bug("an RWX volume may stay in state attaching after a drain", (1, 10), (1, 10, 2), (f"{LONGHORN}/12231",)),
    Bug(
        'users other than root get "permission denied" on RWX volumes',
        (1, 7, 3),
        (1, 8, 2),
        (f"{LONGHORN}/10621", "https://github.com/nfs-ganesha/nfs-ganesha/issues/1132"),
    ),
)


def kubevirt(inspection: Inspection, _: None) -> Iterator[Result]:
    """Check that KubeVirt is installed."""
    found = read_list(inspection.cluster, f"{KUBEVIRT_API}/kubevirts")
    if not found:
        yield failure("KubeVirt is not installed", "Install KubeVirt: the webhook handles only its VMs.")
        return
    version = text(found[0], "status", "observedKubeVirtVersion")
    phase = text(found[0], "status", "phase")
    name = f"KubeVirt {version or 'of an unknown version'}"
    if phase == "Deployed":
        is_old = () < version_numbers(version) < MIGRATES_TO_NODE_FROM
        yield ok(f"{name}, with which recolocate cannot migrate VMs to their storage" if is_old else name)
    else:
        yield warning(f"{name} is in phase {phase or 'unknown'}", "Wait until KubeVirt is in phase Deployed.")


@cache
def longhorn_setting(inspection: Inspection, name: str) -> str:
    """Return a setting of Longhorn; empty without it, or if Longhorn isn't installed in its namespace."""
    path = f"/apis/longhorn.io/v1beta2/namespaces/{inspection.settings.longhorn_namespace}/settings/{name}"
    return text(read_object(inspection.cluster, path), "value")


def longhorn(inspection: Inspection, _: None) -> Iterator[Result]:
    """Check that Longhorn is installed where the webhook looks for it."""
    namespace = inspection.settings.longhorn_namespace
    name = longhorn_setting(inspection, VERSION_SETTING)
    if not name:
        advice = "Install Longhorn, or set settings.longhornNamespace to its namespace."
        yield failure(f"Longhorn is not installed in namespace {namespace}", advice)
    elif deletes_pods(partial(longhorn_setting, inspection)):
        yield ok(f"Longhorn {name}, which may delete a VM's pod when it replaces the share-manager of a volume")
    else:
        yield ok(f"Longhorn {name}")


def claims(inspection: Inspection, _: None) -> Iterator[Result]:
    """Check that there are claims that a share-manager serves."""
    store = inventory(inspection).store
    shared = [claim for claim in store.claims.values() if claim.shared]
    of_longhorn = (claim for claim in shared if (volume := store.volume(claim.volume_name)) and volume.handle)
    modes = Counter("Block" if claim.block else "Filesystem" for claim in of_longhorn)
    if modes["Filesystem"]:
        yield ok(f"Longhorn claims with ReadWriteMany and volumeMode Filesystem: {modes['Filesystem']}")
    else:
        yield warning(
            f"Longhorn claims with ReadWriteMany and volumeMode Filesystem: none (Block: {modes['Block']})",
            "Only such claims have a share-manager. Without them, the webhook places no VM. CDI makes them only if the"
            " StorageClass has nfsOptions.",
        )


def known_bugs(inspection: Inspection, _: Installation | None) -> Iterator[Result]:
    """Report the known bugs of the installed version, and of the share-managers that still run another one."""
    name = longhorn_setting(inspection, VERSION_SETTING)
    servers = inventory(inspection).servers(inspection.settings)
    found = list[Result]()
    for bug in BUGS:
        nodes = sorted(node for node, kernel in servers.kernels.items() if kernel >= bug.kernel)
        where = f" (nodes with Linux {'.'.join(map(str, bug.kernel))} or newer: {listed(nodes)})" if bug.kernel else ""
        old = [volume for volume, version in servers.running.items() if bug.concerns(version)]
        if bug.kernel and not nodes:
            continue
        if bug.concerns(name):
            cure = f"Upgrade Longhorn to {'.'.join(map(str, bug.fixed))} or newer: {bug.sources[0]}"
            found.append(warning(f"Longhorn {name}: {bug.symptom}{where}", cure))
        elif old:
            found.append(warning(f"{_still_running(old, servers)}: {bug.symptom}{where}", _restart(old, inspection)))
    yield from found or ([ok(f"no known bug of Longhorn {name} concerns RWX volumes on these nodes")] if name else [])


def _still_running(volumes: list[str], servers: Servers) -> str:
    versions = sorted({servers.running[volume] for volume in volumes})
    return f"share-managers of Longhorn {listed(versions)} still run: {len(volumes)}"


def _restart(volumes: list[str], inspection: Inspection) -> str:
    store = inventory(inspection).store
    users = sorted({str(user) for volume in volumes for user in users_of(volume, store)})
    return f"Stop all users of each volume, then start them, so that Longhorn upgrades its server: {listed(users)}"


def loopback_nfs(inspection: Inspection, installed: Installation | None) -> Iterator[Result]:
    """Check the opted-in VMs, and before the installation all."""
    read = inventory(inspection)
    cached = list[str]()
    exposed = list[str]()
    servers = read.servers(inspection.settings)
    for status in _assessed(inspection):
        nfs = over_nfs(status, read.store, servers)
        if status.node and nfs.cached and (status.opted_in or installed is None):
            (exposed if nfs.exposed else cached).append("/".join(status.machine.key))
    unprotected, cure = _unprotected(inspection, servers)
    assessed = (assess_pod(pod, read.store, inspection.settings) for pod in read.store.pods.values())
    writers = [each for each in assessed if each]  # containers write through the page cache
    exposed_pods = ["/".join(each.pod.key) for each in writers if _is_exposed(each, servers)]
    disks, pods = "VMs with a cached or virtiofs volume over NFS", "opted-in pods with a volume over NFS"
    danger = "under memory pressure, the NFS client and server can block each other."
    if exposed:
        yield failure(
            f"{disks}: {len(exposed)} ({listed(exposed)}); {unprotected}", f"{cure}, or set cache: none: {danger}"
        )
    elif exposed_pods:
        problem = f"{pods}: {len(exposed_pods)} ({listed(exposed_pods)}); {unprotected}"
        yield failure(problem, f"{cure}, or opt the pods out: {danger}")
    elif cached:
        yield warning(
            f"{disks}: {len(cached)} ({listed(cached)})", "Set cache: none, or move the disk to a Block volume."
        )
    elif unprotected:
        yield warning(unprotected, f"{cure} before VMs or containers write to NFS volumes through the page cache.")
    else:
        who = f"{pods}: {len(writers)}" if writers else "no VM writes to an NFS volume through the page cache"
        yield ok(f"{who}, and Longhorn's NFS server protects itself")


def _is_exposed(workload: Workload, servers: Servers) -> bool:
    return servers.is_old(workload.volume) or servers.has_old_kernel(workload.storage_node or workload.pod.node)


@cache
def _assessed(inspection: Inspection) -> list[Status]:
    read = inventory(inspection)
    settings = inspection.settings
    return [assess(machine, read.store, settings) for machine in read.machines(settings)]


def data(inspection: Inspection, _found: Installation) -> Iterator[Result]:
    """Count the opted-in VMs whose share-manager has no healthy replica on its node."""
    volumes = inventory(inspection).volume_data()
    served = [each for each in _assessed(inspection) if each.node and each.opted_in and each.storage_node]
    local = [is_local(each, volumes) for each in served]
    remote = ["/".join(each.machine.key) for each, value in zip(served, local, strict=True) if value is False]
    without = "opted-in VMs without a healthy replica on the node of their share-manager"
    if remote:
        advice = "Set dataLocality of their volumes to best-effort, so that Longhorn keeps a replica there."
        yield warning(f"{without}: {len(remote)} ({listed(remote)})", advice)
    elif None in local:
        yield warning(f"{without}: unknown", f"Run doctor with {DATA_RIGHTS}.")
    else:
        yield ok(f"{without}: none")


def _unprotected(inspection: Inspection, servers: Servers) -> tuple[str, str]:
    """Say which part lacks the protection of the server, and the cure; empty if none does, or it is unknown."""
    if servers.is_old(""):
        return f"the NFS server of Longhorn {servers.longhorn} does not set PR_SET_IO_FLUSHER", "Upgrade it"
    if old := list(filter(servers.is_old, servers.running)):
        return f"{_still_running(old, servers)}; they do not set PR_SET_IO_FLUSHER", _restart(old, inspection)
    if nodes := sorted(filter(servers.has_old_kernel, servers.kernels)):
        return f"the kernel of nodes lacks PR_SET_IO_FLUSHER: {len(nodes)} ({listed(nodes)})", "Upgrade it"
    return "", ""


def nodes(inspection: Inspection, installed: Installation) -> Iterator[Result]:
    """Check the nodes' taints, how many more pods they can run, and that a drain of the only one can end."""
    store = inventory(inspection).store
    replicas = mapping(installed.deployment, "spec").get("replicas", 1)
    schedulable = [node.name for node in store.nodes.values() if _is_schedulable(node)]
    if len(schedulable) == 1 and replicas > 1:
        yield warning(
            f"{replicas} replicas and only one schedulable node, {schedulable[0]}: a drain of it never ends",
            "On one node, set replicas=1: its PodDisruptionBudget keeps one replica, which no other node can run.",
        )
    taints = [(node.name, taint.effect) for node in store.nodes.values() for taint in node.taints]
    if tainted := sorted({name for name, effect in taints if effect == PREFER_NO_SCHEDULE}):
        yield warning(
            f"nodes with a {PREFER_NO_SCHEDULE} taint: {len(tainted)} of {len(store.nodes)} ({listed(tainted)})",
            "The scheduler may place share-manager pods elsewhere: remove the taint from nodes that run VMs.",
        )
    else:
        yield ok(f"no node has a {PREFER_NO_SCHEDULE} taint, which would outweigh the steering of share-manager pods")
    shares = {load.name: load.requested.get("pods", 0) for load in node_loads(store, installed.settings)}
    if crowded := [f"{name}: {share:.0%}" for name, share in shares.items() if share > CROWDED]:
        yield warning(
            f"nodes with over {CROWDED:.0%} of their allocatable pods: {len(crowded)} ({listed(crowded)})",
            "The webhook pins no VM to a full node. Move pods to other nodes, or raise the kubelet's maxPods.",
        )


def _is_schedulable(node: Node) -> bool:
    blocked = any(taint.effect in ("NoSchedule", "NoExecute") for taint in node.taints)
    return node.ready is not False and not node.unschedulable and not blocked


def disks(inspection: Inspection, _: Installation) -> Iterator[Result]:
    """Report the running VMs without a disk, because the scheduler finds no node for a share-manager."""
    lost = [(each, "runs without a disk") for each in _assessed(inspection) if each.outage]
    yield from _with_advice(inspection, failure, lost, "more VMs without a disk")
    if not lost:
        yield ok("no VM runs without a disk: the scheduler has a node for each share-manager")


def waiting(inspection: Inspection, _: Installation) -> Iterator[Result]:
    """Report the VMs whose pin can't hold, or whose pod no scheduler has evaluated."""
    stuck = [each for each in _assessed(inspection) if each.state is State.WAITING and each.detail]
    yield from _with_advice(
        inspection, warning, [(each, f"waits: {each.reason}") for each in stuck], "more VMs that wait"
    )
    if not stuck:
        yield ok("no VM waits because of its pin or its scheduler")


def _with_advice(
    inspection: Inspection, result: Callable[[str, str], Result], problems: list[tuple[Status, str]], others: str
) -> Iterator[Result]:
    """Report the first VMs that have a problem with the advice of `report`, and the number of the others."""
    for status, problem in problems[:NAMED]:
        move = plan_move(status, Surroundings(inspection.settings), inventory(inspection).store)
        yield result(f"VM {'/'.join(status.machine.key)} {problem}", wording.advise(status, move).text)
    if len(problems) > NAMED:
        yield result(f"{others}: {len(problems) - NAMED}", TO_LIST)
