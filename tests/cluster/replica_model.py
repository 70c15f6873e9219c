"""A model of several webhook replicas beside one API server, one scheduler and KubeVirt, driven step by step.

Each replica is a real `Live` with a real `Releaser`. Its watch shows a stored pod only when the model delivers the
event. A `Random` chooses the interleaving, so a seed reproduces it.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from copy import deepcopy
from random import Random
from typing import Any, cast

import msgspec

from tests.support.builders import (
    PREFERRED,
    Object,
    apply_injection,
    node,
    pod_anti_affinity,
    pod_term,
    request,
    settings,
    storage,
    virt_launcher,
    vmi,
)
from tests.support.fake_clock import FakeClock
from webhook.cluster.caches.fact_readers import (
    read_claim,
    read_node,
    read_pod,
    read_share_manager,
    read_virtual_machine,
    read_virtual_machine_instance,
    read_volume,
)
from webhook.cluster.client import ClusterClient, ClusterError
from webhook.cluster.live_catalog import Live
from webhook.cluster.releaser import Releaser
from webhook.placement.affinity import pinned_node
from webhook.placement.eligibility import MODE_ANNOTATION
from webhook.placement.objects.facts import Pod

READERS = {
    "Node": read_node,
    "PersistentVolume": read_volume,
    "PersistentVolumeClaim": read_claim,
    "Pod": read_pod,
    "ShareManager": read_share_manager,
    "VirtualMachine": read_virtual_machine,
}
SERVING, OTHER = "node-a", "node-b"
RESTART_SECONDS = 13.0  # KubeVirt starts a VM again so long after its Pending pod was deleted


class Replica:
    """One replica. `seen` and `seen_vmis` count the events that its two watches have shown; one is of VMIs."""

    def __init__(self, model: "Model", replicas: int) -> None:
        cluster = cast(ClusterClient, model)
        own_settings = settings(replicas=replicas, session_affinity=model.session_affinity)
        self.seen = self.seen_vmis = 0
        self.live = Live(cluster, own_settings, model.clock)
        for reflector in self.live.reflectors:  # the model is the watch
            reflector.health.synced = True
        self.releaser = Releaser(cluster, self.live, own_settings, lambda: self is model.leader, _ignore, model.clock)


def _ignore(*_: object) -> None:
    pass


class Model:
    """The cluster. It also stands in for the releaser's API client: `pages` and `send`.

    `capacity` is the number of VMs that fit on the share-manager's node. With `repelling`, the VMs come in pairs that
    share a disk and must not share a node; another node fits all VMs. `foreign` pods, which no webhook knows of in
    advance, take capacity from the share-manager's node. With `session_affinity`, `called` decides on all VMs.
    `preferring` is the share of the VMs that only prefer the node.
    """

    def __init__(
        self,
        random: Random,
        replicas: int,
        vms: int,
        capacity: int,
        *,
        foreign: int = 0,
        repelling: bool = False,
        session_affinity: bool = False,
        preferring: float = 0.0,
    ) -> None:
        self.random, self.clock, self.repelling = random, FakeClock(), repelling
        self.session_affinity, self.called = session_affinity, 0
        self.preferring = preferring
        self.log: list[tuple[str, Object]] = []
        self.vmi_log: list[str] = []  # UIDs
        self.pods: dict[str, Object] = {}
        self.admitted: list[Object] = []  # pods between the webhook's response and the storage
        self.to_create = [f"vm-{number}" for number in range(vms)]
        self.restarted: Counter[str] = Counter()
        for name in random.sample(self.to_create, vms):  # KubeVirt creates the pods of these VMIs in another order
            self.vmi_of(name)
        self.foreign, self.deletions, self.version, self.started = foreign, 0, 0, 0
        self.needless = 0  # deletions of pods that the scheduler would have bound at its next try
        self.restarts: list[tuple[float, str]] = []
        for item in [
            *storage(node=SERVING),
            node(SERVING, allocatable={"cpu": str(capacity), "memory": "64Gi", "pods": "110"}),
            node(OTHER, allocatable={"cpu": "1000", "memory": "64Gi", "pods": "1000"}),
            *(virtual_machine(name) for name in self.to_create),
        ]:
            self.append("ADDED", item)
        self.replicas = [Replica(self, replicas) for _ in range(replicas)]
        self.leader = self.replicas[0]
        self.deliver_all()

    # --- what happens, in any order ---

    def run(self) -> None:
        """Create all VMs in a random interleaving, until nothing more can happen without the release."""
        steps = [
            self.create,
            self.store,
            self.store,
            self.deliver,
            self.deliver,
            self.deliver_vmis,
            self.schedule,
            self.tick,
            self.add_foreign,
        ]
        while self.to_create or self.admitted or self.restarts:
            self.random.choice(steps)()
        self.deliver_all()
        self.schedule_all()

    def run_with_a_slow_scheduler(self) -> None:
        """Create all VMs, and have the foreign pods take places on the node before the scheduler's turn."""
        while self.to_create or self.admitted:
            self.random.choice([self.create, self.store, self.deliver])()
        while self.foreign:
            self.add_foreign()
        self.deliver_all()
        self.schedule_all()

    def create(self) -> None:
        """Have a random replica decide on the next VM's pod, or the one that session affinity selects."""
        if self.to_create:
            pod = self.vm_pod(self.to_create.pop(0))
            replica = self.replicas[self.called] if self.session_affinity else self.random.choice(self.replicas)
            review = request(pod)
            if replica.live.lacks_objects(review, replica.live.inject(review | {"dryRun": True}).decision):
                self.show_vmis(replica, self.vmi_log.index(pod["metadata"]["labels"]["kubevirt.io/created-by"]) + 1)
            injection = replica.live.inject(review)
            assert injection
            assert injection.error is None
            self.admitted.append(apply_injection(deepcopy(pod), injection))

    def store(self) -> None:
        """Store one of the pods that passed admission."""
        if self.admitted:
            pod = self.admitted.pop(self.random.randrange(len(self.admitted)))
            self.started += 1
            name = f"{pod['metadata']['generateName']}{self.started}"
            pod["metadata"] |= {"name": name, "uid": f"uid-{name}", "creationTimestamp": f"{self.started:06}"}
            self.put("ADDED", pod)

    def deliver(self) -> None:
        """Show the next events to a random replica."""
        self.show(self.random.choice(self.replicas), self.random.randint(1, 4))

    def deliver_vmis(self) -> None:
        """Show the next VMIs to a random replica: before or after their pods."""
        replica = self.random.choice(self.replicas)
        self.show_vmis(replica, replica.seen_vmis + self.random.randint(0, 2))

    def schedule(self) -> None:
        """Have the scheduler bind the oldest pending pod, or mark it unschedulable."""
        pending = [pod for pod in self.pods.values() if not pod["spec"].get("nodeName")]
        if pending:
            self.bind(pending[0])

    def tick(self) -> None:
        """Let up to 0.3 s pass."""
        self.pass_time(self.random.random() * 0.3)

    def add_foreign(self) -> None:
        """Bind a pod that is no VM to the share-manager's node, if it fits."""
        if self.foreign and self.fits(pod := virt_launcher(f"foreign-{self.foreign}", **ONE_CPU, opt_in=None), SERVING):
            self.foreign -= 1
            pod["spec"]["nodeName"], pod["status"] = SERVING, {"phase": "Running"}
            self.put("ADDED", pod)

    # --- what happens afterwards ---

    def release(self, rounds: int = 3, *, departing: bool = False) -> None:
        """Let the leader release what is stuck, and KubeVirt start those VMs again.

        With `departing`, foreign pods sometimes end, and the watches show that before the scheduler tries again.
        """
        for _ in range(rounds):
            for _ in range(9):
                self.pass_time(5)
                if departing and self.random.random() < 0.3:
                    self.remove_foreign()
                self.leader = self.random.choice(self.replicas)  # tracked by all: another one may take over
                allowed = self.deletions + self.excess()
                for replica in self.replicas:
                    replica.releaser.step()
                self.needless += max(0, self.deletions - allowed)
                self.deliver_all()
                self.run()

    def excess(self) -> int:
        """Count the Pending pods that are pinned to the share-manager's node and don't fit there."""
        pending = [pod for pod in self.pending() if pinned_node(pod) == SERVING]
        fitting: list[Object] = []
        for pod in pending:
            if self.fits(pod, SERVING, fitting):
                fitting.append(pod)
        return len(pending) - len(fitting)

    def remove_foreign(self) -> None:
        """End a pod that is no VM."""
        foreign = [name for name in self.pods if name.startswith("foreign-")]
        if foreign:
            self.append("DELETED", self.pods.pop(self.random.choice(foreign)))
            self.deliver_all()

    # --- the parts ---

    def vm_pod(self, name: str) -> Object:
        labels = {"kubevirt.io/created-by": self.vmi_of(name)}
        affinity = {}
        if self.repelling:
            labels["pair"] = str(int(name.removeprefix("vm-")) // 2)
            affinity = {"affinity": pod_anti_affinity(pod_term({"pair": labels["pair"]}))}
        annotations = {"kubevirt.io/domain": name}
        if self.random.random() < self.preferring:
            annotations[MODE_ANNOTATION] = "preferred"
        pod = virt_launcher(labels=labels, annotations=annotations, **ONE_CPU, **affinity)
        pod["metadata"]["generateName"] = f"virt-launcher-{name}-"
        return pod

    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds
        due = [name for at, name in self.restarts if at <= self.clock.now]
        self.restarts = [item for item in self.restarts if item[0] > self.clock.now]
        self.to_create += due

    def put(self, kind: str, pod: Object) -> None:
        self.version += 1
        pod["metadata"]["resourceVersion"] = str(self.version)
        self.pods[pod["metadata"]["name"]] = pod
        self.append(kind, pod)

    def append(self, kind: str, item: Object) -> None:
        self.log.append((kind, deepcopy(item)))

    def show(self, replica: Replica, events: int) -> None:
        for kind, item in self.log[replica.seen : replica.seen + events]:
            replica.seen += 1
            store, fact = replica.live.store, READERS[item["kind"]](item)
            assert fact
            if kind == "DELETED":
                store.remove(Pod, fact.key)
            else:
                store.put(fact)

    def vmi_of(self, name: str) -> str:
        """Return the UID of a VM's current VMI; create the VMI if there is none."""
        uid = f"{name}-{self.restarted[name]}"
        if uid not in self.vmi_log:
            self.vmi_log.append(uid)
        return uid

    def show_vmis(self, replica: Replica, end: int) -> None:
        for uid in self.vmi_log[replica.seen_vmis : end]:
            replica.live.store.put(read_virtual_machine_instance(vmi(uid, uid=uid)))
            replica.seen_vmis += 1

    def deliver_all(self) -> None:
        for replica in self.replicas:
            self.show(replica, len(self.log))
            self.show_vmis(replica, len(self.vmi_log))

    def schedule_all(self) -> None:
        for pod in [pod for pod in self.pods.values() if not pod["spec"].get("nodeName")]:
            self.bind(pod)
        self.deliver_all()

    def bind(self, pod: Object) -> None:
        pin = pinned_node(pod)
        nodes = [pin] if pin else self.preferred_nodes(pod)
        for name in nodes:
            if self.fits(pod, name):
                pod["spec"]["nodeName"], pod["status"] = name, {"phase": "Running"}
                self.put("MODIFIED", pod)
                return
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": "now"}
        if pod["status"].get("conditions") != [condition]:
            pod["status"]["conditions"] = [condition]
            self.put("MODIFIED", pod)

    def preferred_nodes(self, pod: Object) -> list[str]:
        """Return the nodes in the order of the pod's preferred node affinity; in a random order if it has none."""
        terms = pod["spec"].get("affinity", {}).get("nodeAffinity", {}).get(PREFERRED, [])
        for requirement in (field for term in terms for field in term["preference"]["matchFields"]):
            return [SERVING, OTHER] if requirement["operator"] == "In" else [OTHER, SERVING]
        return self.random.sample([SERVING, OTHER], 2)

    def fits(self, pod: Object, name: str, others: Iterable[Object] = ()) -> bool:
        """Return whether the scheduler would bind the pod to the node: by its free CPUs and the pods' anti-affinity.

        `others` are bound there before.
        """
        there = [*others, *(each for each in self.pods.values() if each["spec"].get("nodeName") == name)]
        (allocatable,) = [
            item["status"]["allocatable"]["cpu"] for _, item in self.log if item["metadata"]["name"] == name
        ]
        repels = [each["metadata"]["labels"].get("pair") for each in there] if self.repelling else []
        return len(there) < int(allocatable) and pod["metadata"]["labels"].get("pair", "none") not in repels

    # --- the API client of the releasers ---

    def pages(self, path: str, fieldSelector: str = "") -> Iterator[tuple[str, list[msgspec.Raw]]]:  # noqa: N803
        """List the pods of one name, as the API server does with a field selector."""
        del path
        name = fieldSelector.partition("=")[2]
        yield "1", [msgspec.Raw(json.dumps(self.pods[name]).encode())] if name in self.pods else []

    def send(self, method: str, path: str, options: Object, timeout: float) -> Object:
        """Delete a pod if the preconditions hold, and have KubeVirt start its VM again."""
        del timeout
        assert method == "DELETE"
        pod = self.pods.get(path.rpartition("/")[2])
        if pod is None:
            raise ClusterError(404, "gone")
        if options["preconditions"] != {key: pod["metadata"][key] for key in ("uid", "resourceVersion")}:
            raise ClusterError(409, "changed")
        assert not pod["spec"].get("nodeName"), "the webhook deleted a bound pod"
        del self.pods[pod["metadata"]["name"]]
        self.deletions += 1
        self.append("DELETED", pod)
        vm = pod["metadata"]["annotations"]["kubevirt.io/domain"]
        self.restarted[vm] += 1
        self.restarts.append((self.clock.now + RESTART_SECONDS, vm))
        return {}

    # --- what a test asks ---

    def pending(self) -> list[Object]:
        """List the pods without a node."""
        return [pod for pod in self.pods.values() if not pod["spec"].get("nodeName")]

    def pinned(self) -> int:
        """Count the pods that are pinned to the share-manager's node."""
        return sum(pinned_node(pod) == SERVING for pod in self.pods.values())

    def nodes(self) -> Counter[str]:
        """Count the pods by node."""
        return Counter(pod["spec"].get("nodeName", "") for pod in self.pods.values())


ONE_CPU: dict[str, Any] = {"requests": {"cpu": "1"}}


def virtual_machine(name: str) -> Object:
    """Build a VM that KubeVirt starts again whenever it stops."""
    return {
        "kind": "VirtualMachine",
        "metadata": {"namespace": "default", "name": name},
        "spec": {"runStrategy": "Always"},
    }
