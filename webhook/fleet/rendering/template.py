"""Render the spec of a VM's pod, as far as a decision reads it: claims, requests, and where the pod may run.

Source: KubeVirt, pkg/virt-controller/services/template.go and nodeselectorrenderer.go, and `createTargetPod` in
pkg/virt-controller/watch/migration/migration.go.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Self

from msgspec import Struct, field

from webhook.fleet.rendering.requests import Sizes, containers, count, has_sev
from webhook.placement.objects.facts import Node
from webhook.placement.objects.fields import JsonObject, mapping, mappings, text, version_numbers
from webhook.placement.objects.kubevirt import HOSTNAME, SCHEDULABLE_NODE
from webhook.placement.objects.selectors import REQUIRED

MACHINE_TYPE = "machine-type.node.kubevirt.io/"
_VENDOR = "cpu-vendor.node.kubevirt.io/"
CPU_FEATURE = "cpu-feature.node.kubevirt.io/"
_MODEL = "cpu-model-migration.node.kubevirt.io/"
OBSOLETE_HOST_MODEL = "node-labeller.kubevirt.io/obsolete-host-model"
# KubeVirt adds selectors with these prefixes to a migration target, so that it runs on a machine like the source's.
MIGRATION_SELECTORS = (_VENDOR, CPU_FEATURE, _MODEL, MACHINE_TYPE)
# The labels of a source node, and the selectors of a `host-model` VM that KubeVirt derives from them.
_FROM_SOURCE = {
    "host-model-cpu.node.kubevirt.io/": _MODEL,
    "host-model-required-features.node.kubevirt.io/": CPU_FEATURE,
}
TSC_FREQUENCY = "cpu-timer.node.kubevirt.io/tsc-frequency"  # a label of nodes
# `SetDefaultVirtualMachineInstance` in pkg/defaults/defaults.go
_MACHINES = {"amd64": "q35", "arm64": "virt", "s390x": "s390-ccw-virtio"}
_INVARIANT_TSC = (("invtsc", "require"), ("invtsc", "force"))
_TSC_NODE = "scheduling.node.kubevirt.io/tsc-frequency-"
RESERVATION_LABEL = "pr.kubevirt.io/"  # with the UID of a claim: of the pods that reserve its LUN
_COPIED = ("tolerations", "topologySpreadConstraints", "schedulerName", "resourceClaims")


class Rendering(Struct, frozen=True):
    """How KubeVirt renders the pods of all VMs: by its configuration, and by its version."""

    node_selectors: Mapping[str, str] = field(default_factory=dict)
    sizes: Sizes = Sizes()
    machine_types: bool = False  # since KubeVirt 1.6, a pod selects nodes by the VM's machine type
    cpu_model: str = ""  # of a VM that names none; empty for host-model
    tsc_frequency: int = 0  # the lowest one of the cluster, in Hz; 0 if no node has one
    architecture: str = ""  # of a VM that names none; empty if unknown
    machine_type: str = ""  # of a VM of that architecture that names none; empty if unknown
    reserves: bool = False  # since KubeVirt 1.9, pods that reserve the same LUN repel each other

    @classmethod
    def of(cls, kubevirt: JsonObject | None, nodes: Iterable[Node] = ()) -> Self:
        """Return the rendering of a KubeVirt object, with KubeVirt's defaults for all that it, or None, leaves open.

        `nodes` are the cluster's.
        """
        configuration = mapping(kubevirt, "spec", "configuration")
        of_developers = mapping(configuration, "developerConfiguration")
        cpu_model = text(configuration, "cpuModel")
        version = version_numbers(text(kubevirt, "status", "observedKubeVirtVersion"))
        lowest = count(of_developers, "minimumClusterTSCFrequency", 0) or _lowest_frequency(nodes)
        selectors = mapping(of_developers, "nodeSelectors")
        architecture = text(kubevirt, "status", "defaultArchitecture")
        machine = text(configuration, "architectureConfiguration", architecture, "machineType")
        return cls(
            selectors,
            Sizes.of(kubevirt),
            version >= (1, 6),
            cpu_model,
            lowest,
            architecture,
            machine or _MACHINES.get(architecture, ""),
            version >= (1, 9),
        )


def _lowest_frequency(nodes: Iterable[Node]) -> int:
    """Return the lowest TSC frequency of the nodes that run VMs: `LowestTSCFrequencyOnCluster`."""
    labels = [node.labels for node in nodes if node.labels.get(SCHEDULABLE_NODE) == "true"]
    values = (each.get(TSC_FREQUENCY, "") for each in labels)
    return min((int(value) for value in values if value.isdecimal() and int(value) > 0), default=0)


def reservation_labels(vmi_spec: JsonObject, uids: Mapping[str, str]) -> JsonObject:
    """Return the labels of a VM's pod for its LUNs with a persistent reservation. `uids` are its claims'.

    https://github.com/kubevirt/kubevirt/blob/d923fdb8/pkg/storage/reservation/pr.go
    """
    disks = mappings(vmi_spec, "domain", "devices", "disks")
    names = {text(each, "name") for each in disks if mapping(each, "lun").get("reservation") is True}
    claims = (claim_of(volume) for volume in mappings(vmi_spec, "volumes") if text(volume, "name") in names)
    return {f"{RESERVATION_LABEL}{uids[claim]}": "" for claim in claims if claim in uids}


def repelling_reservations(affinity: JsonObject, labels: Iterable[str]) -> JsonObject:
    """Return an affinity that also keeps a pod away from pods with these labels."""
    terms = [
        {"labelSelector": {"matchExpressions": [{"key": label, "operator": "Exists"}]}, "topologyKey": HOSTNAME}
        for label in labels
    ]
    repels = mapping(affinity, "podAntiAffinity")
    required = [*mappings(repels, REQUIRED), *terms]
    return affinity | {"podAntiAffinity": repels | {REQUIRED: required}} if terms else affinity


def rendered_spec(vmi_spec: JsonObject, state_claims: Iterable[str], rendering: Rendering) -> JsonObject:
    """Return the pod's spec for a VMI's spec. Raises Malformed for a quantity that can't be parsed."""
    claims = [*template_claims(vmi_spec), *state_claims]
    volumes = [{"name": f"volume-{i}", "persistentVolumeClaim": {"claimName": name}} for i, name in enumerate(claims)]
    architecture = text(vmi_spec, "architecture").lower() or rendering.architecture
    own, helpers = containers(vmi_spec, rendering.sizes, architecture)
    copied = {key: vmi_spec[key] for key in _COPIED if vmi_spec.get(key)}
    constraints = {
        "nodeSelector": node_selector(vmi_spec, rendering),
        "affinity": rendered_affinity(vmi_spec, rendering),
    }
    return copied | constraints | {"volumes": volumes, "containers": own, "initContainers": helpers}


def rendered_affinity(vmi_spec: JsonObject, rendering: Rendering) -> JsonObject:
    """Return the affinity of a VMI's pod: that of the VMI, without the nodes that KubeVirt excludes by a label.

    https://github.com/kubevirt/kubevirt/blob/d923fdb8/pkg/virt-controller/services/template.go#L195
    """
    own = mapping(vmi_spec, "affinity")
    cpu = mapping(vmi_spec, "domain", "cpu")
    architecture = text(vmi_spec, "architecture") or rendering.architecture
    default = "host-passthrough" if architecture == "arm64" else "host-model"
    has_host_model = (text(cpu, "model") or rendering.cpu_model or default) == "host-model"
    labels = [OBSOLETE_HOST_MODEL] if has_host_model else []
    forbidden = (each for each in mappings(cpu, "features") if text(each, "policy") == "forbid")
    labels += [f"{CPU_FEATURE}{text(each, 'name')}" for each in forbidden]
    if not labels:
        return own
    of_nodes = mapping(own, "nodeAffinity")
    excluded = [{"key": label, "operator": "DoesNotExist"} for label in labels]
    terms = mappings(of_nodes, REQUIRED, "nodeSelectorTerms") if REQUIRED in of_nodes else [JsonObject()]
    # Terms are ORed, so each of them excludes the nodes.
    terms = [term | {"matchExpressions": [*mappings(term, "matchExpressions"), *excluded]} for term in terms]
    return own | {"nodeAffinity": of_nodes | {REQUIRED: {"nodeSelectorTerms": terms}}}


def node_selector(vmi_spec: JsonObject, rendering: Rendering) -> JsonObject:
    """Return the node selector of a VMI's pod."""
    domain = mapping(vmi_spec, "domain")
    architecture = text(vmi_spec, "architecture").lower() or rendering.architecture
    model = text(domain, "cpu", "model") or rendering.cpu_model
    machine = text(domain, "machine", "type")
    machine = machine or (rendering.machine_type if architecture == rendering.architecture else "")
    # A VMI always has a CPU model, host-model by default. Without one, KubeVirt would ignore the features.
    features = mappings(domain, "cpu", "features")
    required = (text(each, "name") for each in features if text(each, "policy") in ("", "require"))
    enabled = [f"{CPU_FEATURE}{name}" for name in required]
    evmcs = mapping(domain, "features", "hyperv").get("evmcs")  # a feature of Hyper-V that only Intel's CPUs have
    if isinstance(evmcs, dict) and evmcs.get("enabled") is not False:
        enabled.append(f"{_VENDOR}Intel")
    if mapping(domain, "cpu").get("dedicatedCpuPlacement") is True:
        enabled.append("cpumanager")
    if model not in ("", "host-model", "host-passthrough"):
        enabled.append(f"cpu-model.node.kubevirt.io/{model}")
    if machine and rendering.machine_types:
        enabled.append(f"{MACHINE_TYPE}{machine}")
    enabled += _of_capabilities(domain, architecture)
    # By default, KubeVirt sets the architecture of the cluster when a VM starts.
    if rendering.tsc_frequency and architecture in ("", "amd64") and _needs_tsc_frequency(domain):
        enabled.append(f"{_TSC_NODE}{rendering.tsc_frequency}")
    everywhere = {SCHEDULABLE_NODE: "true"} | ({"kubernetes.io/arch": architecture} if architecture else {})
    return (
        everywhere | dict(rendering.node_selectors) | mapping(vmi_spec, "nodeSelector") | dict.fromkeys(enabled, "true")
    )


def _of_capabilities(domain: JsonObject, architecture: str) -> Iterator[str]:
    """Yield the labels of nodes that can run a VM with realtime CPUs, or with an encrypted memory."""
    security = mapping(domain, "launchSecurity")
    if mapping(domain, "cpu").get("realtime") is not None:
        yield "kubevirt.io/realtime"
    if has_sev(domain):
        yield "kubevirt.io/sev"
    if mapping(security, "sev", "policy").get("encryptedState") is True:
        yield "kubevirt.io/sev-es"
    if security.get("snp") is not None:
        yield "kubevirt.io/sev-snp"
    if architecture == "s390x" and domain.get("launchSecurity") is not None:
        yield "kubevirt.io/s390-pv"
    if security.get("tdx") is not None:
        yield "kubevirt.io/tdx"


def _needs_tsc_frequency(domain: JsonObject) -> bool:
    """Return whether a VM runs only with a TSC frequency: `GetTscFrequencyRequirement`."""
    features = mappings(domain, "cpu", "features")
    invariant = any((each.get("name"), each.get("policy")) in _INVARIANT_TSC for each in features)
    return invariant or mapping(domain, "features", "hyperv", "reenlightenment").get("enabled") is True


def template_claims(vmi_spec: JsonObject, *, hotpluggable: bool = False) -> Iterator[str]:
    """Yield the claims that the pod of a VMI mounts, in volume order, or else those that a hotplug pod mounts.

    Source: KubeVirt, `hotplugVolumes` in pkg/virt-controller/services/rendervolumes.go.
    """
    for volume in mappings(vmi_spec, "volumes"):
        sources = mapping(volume, "persistentVolumeClaim"), mapping(volume, "dataVolume")
        if any(source.get("hotpluggable") for source in sources) is hotpluggable and (name := claim_of(volume)):
            yield name


def claim_of(volume: JsonObject) -> str:
    """Return the claim of a volume of a VMI, empty if it has none. The claim of a DataVolume has its name."""
    claim = mapping(volume, "persistentVolumeClaim") or mapping(volume, "ephemeral", "persistentVolumeClaim")
    return text(claim, "claimName") or text(volume, "dataVolume", "name")


def target_selector(
    selector: dict[str, str], current: Mapping[str, str], vmi: JsonObject, source_labels: Mapping[str, str]
) -> dict[str, str]:
    """Return the node selector of a migration target.

    `selector` is the node selector after a restart, and `current` is the running pod's. A target selects the machine
    type in the VMI's status, such as pc-q35-rhel9.6.0, and a new VMI the machine type in its spec. The source node has
    `source_labels`.
    """
    machine = text(vmi, "status", "machine", "type")
    if machine and any(key.startswith(MACHINE_TYPE) for key in selector):
        selector = {key: value for key, value in selector.items() if not key.startswith(MACHINE_TYPE)}
        selector[f"{MACHINE_TYPE}{machine}"] = "true"
    selector = selector | _of_host_model(current, vmi, source_labels)
    if any(key.startswith(_VENDOR) for key in selector):
        return selector
    # Since version 1.8, KubeVirt keeps the VM on CPUs of one vendor.
    return selector | dict([(key, "true") for key in source_labels if key.startswith(_VENDOR)][:1])


def _of_host_model(current: Mapping[str, str], vmi: JsonObject, source_labels: Mapping[str, str]) -> dict[str, str]:
    if text(vmi, "spec", "domain", "cpu", "model") != "host-model":
        return {}
    if kept := {key: value for key, value in current.items() if key.startswith((CPU_FEATURE, _MODEL))}:
        return kept  # the VM has migrated before
    return {
        selected + key.removeprefix(prefix): value
        for key, value in source_labels.items()
        for prefix, selected in _FROM_SOURCE.items()
        if key.startswith(prefix)
    }
