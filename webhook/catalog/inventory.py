"""Collect the fleet from the cluster's objects: a `Machine` for each VM, and the load of each node."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from webhook.catalog.kind import key_of
from webhook.catalog.pod_tables import vm_key
from webhook.catalog.store import NO_KEY, Store, parse_time
from webhook.fleet.machine import Machine, RefusedServer
from webhook.fleet.nfs import Servers
from webhook.fleet.rendering.instance_type import KINDS as INSTANCE_TYPE_KINDS
from webhook.fleet.rendering.instance_type import NotFound, expanded
from webhook.fleet.rendering.next_pod import next_pod, pod_of_vmi, rendered_pod
from webhook.fleet.rendering.template import Rendering, claim_of
from webhook.fleet.volumes import VolumeData, data_of
from webhook.placement.eligibility import is_share_manager_pod
from webhook.placement.objects import longhorn
from webhook.placement.objects.facts import Key, Pod, VirtualMachine, VirtualMachineInstance
from webhook.placement.objects.fields import (
    JsonObject,
    Malformed,
    has_condition,
    mapping,
    mappings,
    text,
    version_numbers,
)
from webhook.placement.objects.kubevirt import HOTPLUG_POD, VIRT_LAUNCHER, copied_annotations, is_copied
from webhook.placement.objects.pod import Manifest
from webhook.placement.objects.pod_object import PodObject, PodSpec, Toleration
from webhook.placement.objects.typed import convert
from webhook.placement.opt_in import Applicant
from webhook.placement.settings import Settings

_SHARED_RESOURCES = ("cpu", "memory", "pods")
_MANIFESTS = {  # the table of each kind
    "VirtualMachine": "vms",
    "VirtualMachineInstance": "vmis",
    "KubeVirt": "kubevirts",
    "PodDisruptionBudget": "budgets",
}


# The VMs, the VMIs, the virt-launcher pods and the hotplug pods.
Facts = tuple[tuple[VirtualMachine, ...], tuple[VirtualMachineInstance, ...], tuple[Pod, ...], tuple[Pod, ...]]


def facts_of(store: Store) -> Facts:
    """Copy the cached facts about VMs. That takes a fraction of a millisecond, so that no decision waits for long."""
    vms = store.virtual_machines.values()
    vmis = store.vmis.values()
    pods = store.pods
    return tuple(vms), tuple(vmis), tuple(pods.of_app(VIRT_LAUNCHER)), tuple(pods.of_app(HOTPLUG_POD))


def volume_data(store: Store) -> dict[str, VolumeData]:
    """Return where Longhorn keeps the data of each volume, by its name."""
    return data_of(store.longhorn_volumes.values(), store.replicas.values())


def machines(facts: Facts) -> list[Machine]:
    """Return a machine for each VM, and for each VMI without a VM, sorted by namespace and name.

    Machines lack manifest and template. Where VMIs are known, the pod of none is skipped: anybody can create it.
    """
    all_vms, all_vmis, all_launchers, hotplug_pods = facts
    vms = {vm.key: vm for vm in all_vms}
    vmis = {(vmi.namespace, vmi.uid): vmi.key for vmi in all_vmis}
    launchers: dict[Key, list[Pod]] = {key: [] for key in vms}
    for each in all_launchers:
        named = (each.namespace, each.vm) if each.vm else vm_key(each)
        if key := vmis.get((each.namespace, each.vmi_uid)) if vmis else named:
            launchers.setdefault(key, []).append(each)
    hotplugged = _hotplugged_claims(hotplug_pods)
    found = {}
    for key, pods in launchers.items():
        vm = vms.get(key)
        pod = _current(pods)
        if applicant := _applicant(vm, pod):
            claims = tuple(hotplugged.get((pod.namespace, pod.uid), ())) if pod else ()
            migrating = sum(one.alive for one in pods) > 1
            found[key] = Machine(*key, applicant, pod, claims, vm.strategy if vm else None, migrating)
    return [found[key] for key in sorted(found)]


def _applicant(vm: VirtualMachine | None, pod: Pod | None) -> Applicant | None:
    """Return what decides on the opt-in of a VM's next pod; None if there is neither a VM nor a pod."""
    if vm is None or pod is None:
        return vm or pod
    true, false = vm.true_annotations, vm.false_annotations
    if vm.inherits:
        own = true | false  # the template takes precedence
        true |= pod.true_annotations - own
        false |= pod.false_annotations - own
    return replace(vm, claims=(*vm.claims, *pod.claims), true_annotations=true, false_annotations=false)


def _hotplugged_claims(hotplug_pods: Iterable[Pod]) -> dict[Key, list[str]]:
    """Return the claims that are hotplugged into each virt-launcher pod, by the namespace and UID of that pod."""
    found: defaultdict[Key, list[str]] = defaultdict(list)
    for pod in sorted(hotplug_pods, key=lambda pod: pod.key):
        if pod.alive and pod.owner:  # a terminating hotplug pod unplugs its disk
            found[pod.namespace, pod.owner].extend(pod.claims)
    return found


def _current(pods: Iterable[Pod]) -> Pod | None:
    """Return the pod that runs the VM: during a live migration the source, which is older than the target."""
    alive = [pod for pod in pods if pod.alive]
    return min(alive, key=lambda pod: (not pod.node, pod.created, pod.is_migration_target, pod.name), default=None)


class Inventory(Struct, frozen=True):
    """A store, and the manifests from which the next pod of each VM is derived. Keys are namespaces and names.

    `blueprints` are instance types, preferences, and their ControllerRevisions. `quotas` are grouped by namespace.
    `malformed` has a line for each object that could not be read, `with_secrets` the name of each object of a file that
    has what a snapshot lacks.
    """

    store: Store = field(default_factory=Store)
    vms: dict[Key, JsonObject] = field(default_factory=dict)
    vmis: dict[Key, JsonObject] = field(default_factory=dict)
    pods: dict[Key, PodObject] = field(default_factory=dict)
    kubevirts: dict[Key, JsonObject] = field(default_factory=dict)
    budgets: dict[Key, JsonObject] = field(default_factory=dict)
    quotas: dict[str, dict[Key, JsonObject]] = field(default_factory=dict)
    blueprints: dict[tuple[str, str, str], JsonObject] = field(default_factory=dict)
    longhorn_settings: dict[Key, str] = field(default_factory=dict)
    malformed: list[str] = field(default_factory=list)
    with_secrets: list[str] = field(default_factory=list)

    @property
    def time(self) -> str:
        """Return when the cluster was read, in RFC 3339; empty if unknown."""
        return f"{self.store.taken_at:%Y-%m-%dT%H:%M:%SZ}" if self.store.taken_at else ""

    @property
    def kubevirt(self) -> JsonObject | None:
        """Return KubeVirt's own object, None if it is unknown."""
        return next(iter(self.kubevirts.values()), None)

    def namespaces(self) -> list[str]:
        """Return the names of all namespaces; none if they are unknown."""
        return [each.name for each in self.store.namespaces.values()]

    def keep(self, kind: str, item: Any) -> None:
        """Keep a VM, a VMI, a pod, or an object of a kind that only the tool reads; ignore others."""
        if kind == "Pod":
            self.pods[item.metadata.key] = item
        elif kind in _MANIFESTS:
            getattr(self, _MANIFESTS[kind])[key_of(item)] = item
        elif kind == "ResourceQuota":
            self.quotas.setdefault(key_of(item)[0], {})[key_of(item)] = item
        elif kind == "Setting":
            # A hand-written file may name no namespace.
            self.longhorn_settings[text(item, "metadata", "namespace"), key_of(item)[1]] = text(item, "value")
        elif kind in INSTANCE_TYPE_KINDS:
            metadata = mapping(item, "metadata")
            self.blueprints[kind, text(metadata, "namespace"), text(metadata, "name")] = item

    def copy_annotations(self) -> None:
        """Give the running pods the annotations that KubeVirt copies to them from their VMs' templates, in seconds."""
        for each in machines(facts_of(self.store)) if copied_annotations(self.kubevirt) else ():
            vm = self.store.virtual_machine(*each.key)
            pod = each.pod
            if vm and pod and pod.claims:
                true = self._with_copied(pod.true_annotations, vm.true_annotations)
                false = self._with_copied(pod.false_annotations, vm.false_annotations)
                if (true, false) != (pod.true_annotations, pod.false_annotations):
                    self.store.put(replace(pod, true_annotations=true, false_annotations=false))

    def _with_copied(self, of_pod: frozenset[str], of_vm: frozenset[str]) -> frozenset[str]:
        copied = {key for key in of_pod | of_vm if is_copied(key, self.kubevirt)}
        return (of_pod - copied) | (of_vm & copied)

    def longhorn_setting(self, name: str, settings: Settings) -> str | None:
        """Return a setting of Longhorn, None if it is unknown. Anybody can create one in a namespace of theirs."""
        found = self.longhorn_settings
        return found.get((settings.longhorn_namespace, name), found.get(("", name)))

    def volume_data(self) -> dict[str, VolumeData]:
        """Return where Longhorn keeps the data of each volume, by its name."""
        return volume_data(self.store)

    def servers(self, settings: Settings) -> Servers:
        """Return the versions of what serves NFS: of each share-manager, the tag of its image."""
        running = {
            volume: container.image.partition("@")[0].rpartition(":")[2]
            for volume, pod in self._share_manager_pods(settings)
            for container in pod.spec.containers
        }
        version = self.longhorn_setting(longhorn.VERSION_SETTING, settings) or ""
        kernels = {node.name: version_numbers(node.kernel) for node in self.store.nodes.values()}
        return Servers(version, kernels, running)

    def _share_manager_pods(self, settings: Settings) -> Iterator[tuple[str, PodObject]]:
        """Yield the volume of each share-manager pod, and the pod."""
        for (namespace, _), pod in self.pods.items():
            if is_share_manager_pod(namespace, pod.metadata.labels, settings):
                yield pod.metadata.labels[longhorn.VOLUME_LABEL], pod

    def machines(self, settings: Settings) -> list[Machine]:
        """Return the machines with their manifests and templates."""
        state_claims = _state_claims(self.store)
        selector = longhorn.node_selector(self.longhorn_setting(longhorn.SELECTOR_SETTING, settings) or "")
        setting = self.longhorn_setting(longhorn.TOLERATION_SETTING, settings)
        # Unknown tolerations count as tolerations of everything.
        tolerations = (Toleration(operator="Exists"),) if setting is None else longhorn.tolerations(setting)
        servers = {"": PodSpec(node_selector=selector, tolerations=tolerations)}
        servers |= {volume: pod.spec for volume, pod in self._share_manager_pods(settings)}
        refused = dict(self._refused_servers(settings))
        found = (replace(each, servers=servers, refused=refused) for each in machines(facts_of(self.store)))
        return [self._completed(each, state_claims.get(each.key, ()), settings) for each in found]

    def _refused_servers(self, settings: Settings) -> Iterator[tuple[str, RefusedServer]]:
        for volume, pod in self._share_manager_pods(settings):
            scheduled = pod.status.condition("PodScheduled")
            if scheduled.status == "False" and not pod.metadata.is_terminating:
                yield volume, RefusedServer(pod.metadata.key, scheduled.message)

    def _completed(self, machine: Machine, state_claims: Collection[str], settings: Settings) -> Machine:
        vm = self.vms.get(machine.key)
        vmi = self.vmis.get(machine.key)
        pod = self.pods.get(machine.pod.key) if machine.pod else None
        # A utility volume, such as the target of a backup, is no disk of the VM.
        utility = {each.get("claimName") for each in mappings(vmi, "spec", "utilityVolumes")}
        found = replace(
            machine,
            hotplugged=tuple(claim for claim in machine.hotplugged if claim not in utility),
            strategy=self.store.run_strategy(*machine.key),
            paused=has_condition(vmi, "Paused"),
            vm=vm or {},
            vmi=vmi or {},
            quotas=tuple(self.quotas.get(machine.namespace, {}).values()),
        )
        return self.with_pod(found, pod, settings, state_claims)

    def with_pod(
        self, machine: Machine, pod: PodObject | None, settings: Settings, state_claims: Collection[str] = ()
    ) -> Machine:
        """Return the machine with the manifest of its pod, and with the pods that KubeVirt would create now."""
        key = machine.key
        template = None
        missing = ""
        try:
            template = _manifest_of(self._next_pod(pod, key, settings, state_claims), machine.namespace)
        except NotFound as error:
            missing = str(error)
        except Malformed:  # only a hand-written file has such a pod or VM
            pass
        target = template
        if pod and has_condition(self.vms.get(key), "RestartRequired"):
            target = _manifest_of(self._pod_of_vmi(pod, key), machine.namespace)
        return replace(
            machine,
            manifest=_manifest_of(pod, machine.namespace),
            template=template,
            target=target,
            missing=missing,
            age=seconds_since(pod.metadata.creation_timestamp, self.store.taken_at) if pod else None,
        )

    def _next_pod(
        self, pod: PodObject | None, key: Key, settings: Settings, state_claims: Collection[str]
    ) -> PodObject | None:
        """Return the pod that KubeVirt would create now, None if it is unknown. `pod` is the pod that runs the VM."""
        vm = self.vms.get(key)
        if pod is None:
            return convert(self.rendered_pod(key, state_claims), PodObject) if vm is not None else None
        if vm is not None and has_condition(vm, "RestartRequired"):
            vm = expanded(vm, self.blueprints)
        return next_pod(pod, vm, self.vmis.get(key), settings, self.kubevirt)

    def rendered_pod(self, key: Key, state_claims: Collection[str] = ()) -> JsonObject:
        """Return the pod that KubeVirt would create for a VM that doesn't run.

        Raises NotFound if an object is missing that the pod depends on, and Malformed.
        """
        vm = expanded(self.vms[key], self.blueprints)
        namespace = key[0]
        spec = mapping(vm, "spec", "template", "spec")
        names = [claim_of(volume) for volume in mappings(spec, "volumes")]
        claims = (self.store.claim(namespace, name) for name in names)
        uids = {claim.name: claim.uid for claim in claims if claim and claim.uid}
        return rendered_pod(vm, state_claims, Rendering.of(self.kubevirt, self.store.nodes.values()), uids)

    def _pod_of_vmi(self, pod: PodObject, key: Key) -> PodObject | None:
        """Return the pod that KubeVirt would create for the running VMI, None if a field is malformed."""
        try:
            return pod_of_vmi(pod, self.vms.get(key), self.vmis.get(key), self.kubevirt)
        except Malformed:
            return None


def _manifest_of(pod: PodObject | None, namespace: str) -> Manifest | None:
    return Manifest(pod, namespace) if pod else None


def seconds_since(time: str | None, now: datetime | None) -> float | None:
    """Return for how long a time in RFC 3339 has passed; None if either time is unknown."""
    then = parse_time(time or "")
    return (now - then).total_seconds() if then and now else None


def _state_claims(store: Store) -> dict[Key, tuple[str, ...]]:
    """Return the claims of persistent states by VM. KubeVirt creates one when such a VM starts for the first time."""
    found: defaultdict[Key, list[str]] = defaultdict(list)
    for claim in store.claims.values():
        if claim.state_of:
            found[claim.namespace, claim.state_of].append(claim.name)
    return {key: tuple(names) for key, names in found.items()}


class NodeLoad(Struct, frozen=True):
    """What runs on a node."""

    name: str
    share_managers: int
    # share of its cpu, memory and pods (1.0 means all); without those that the node doesn't report
    requested: Mapping[str, float]
    ready: bool | None = None  # None without a Ready condition
    cordoned: bool = False


def node_loads(store: Store, settings: Settings) -> Iterator[NodeLoad]:
    """Yield the load of each node, sorted by name."""
    pods = [pod for pod in store.pods.values() if longhorn.is_share_manager(pod.labels)]
    of_longhorn = settings.longhorn_namespace
    servers = Counter(pod.node for pod in pods if pod.node and pod.alive and pod.namespace == of_longhorn)
    for node in sorted(store.nodes.values(), key=lambda node: node.name):
        allocatable = node.allocatable or {}
        load = store.requested(node.name, NO_KEY)
        shares = {
            resource: load.get(resource, 0) / allocatable[resource]
            for resource in _SHARED_RESOURCES
            if allocatable.get(resource)
        }
        yield NodeLoad(node.name, servers[node.name], shares, node.ready, node.unschedulable)
