"""The next pod of a VM: the running pod as KubeVirt would create it now, or a pod rendered from a stopped VM."""

from typing import Any

import msgspec
import pytest

from tests.support.builders import (
    HOSTNAME,
    KINDS,
    OPT_IN,
    PREFERRED,
    REQUIRED,
    Object,
    apply_injection,
    fact_of,
    injection_for,
    name_requirement,
    node,
    node_terms,
    pinned_vm_pod,
    pod_anti_affinity,
    pod_term,
    storage,
    typed,
)
from tests.support.fleet import inventory, status, vm, vm_pod, vmi
from webhook.catalog.kind import as_map
from webhook.fleet.relocation.rules import Hindrance, Refusal
from webhook.fleet.rendering.instance_type import NotFound, expanded
from webhook.fleet.rendering.next_pod import (
    before_scheduling,
    next_pod,
    rendered_pod,
    target_pod,
)
from webhook.fleet.rendering.template import TSC_FREQUENCY, Rendering
from webhook.fleet.wording import advise
from webhook.placement.affinity import CO_SCHEDULED_NODE, with_node
from webhook.placement.reasons import Outcome
from webhook.placement.settings import Settings

SETTINGS = Settings()
MIGRATION = {"kubevirt.io/migrationJobUID": "job"}
DECISION = "kubevirt-scheduler/decision"
FULL = [*storage(), node(allocatable={"cpu": "1", "pods": "9"})]
# Another pinned VM waits for the last CPU of the node.
CONTESTED = [*FULL, pinned_vm_pod("rival", vm="rival", requests={"cpu": "1"})]


def created(**rest: Any) -> Object:
    """Build a pod as KubeVirt creates it."""
    pod = vm_pod(node="", **rest)
    del pod["status"]
    return pod


@pytest.mark.parametrize(
    ("pod", "cluster", "outcome"),
    [
        (created(), [*storage(), node()], Outcome.PINNED),
        (created(requests={"cpu": "2"}), FULL, Outcome.PREFERRED),
        (created(requests={"cpu": "1"}), CONTESTED, Outcome.UNCHANGED),
        (created(), [], Outcome.UNCHANGED),
        (created(affinity=node_terms({"matchExpressions": [{"key": HOSTNAME, "operator": "Exists"}]})),
         [*storage(), node()], Outcome.PINNED),
    ],
    ids=["pinned", "preferred", "avoiding a contested node", "without a node", "with a term of the user"],
)  # fmt: skip
def test_a_pod_is_restored_to_its_state_before_the_decision(
    pod: Object, cluster: list[Object], outcome: Outcome
) -> None:
    injection = injection_for(pod, *cluster)
    assert injection.decision.outcome is outcome
    assert injection.patch
    running = apply_injection(pod, injection)
    running["spec"]["nodeName"] = "node-b"
    running["status"] = {"phase": "Running"}
    restored = restored_from(running)
    affinity = {kind: terms for kind, terms in restored["spec"].pop("affinity").items() if terms}
    expected = as_map(typed(pod).pod)
    assert affinity == expected["spec"].pop("affinity", {})
    assert restored == expected


def restored_from(running: Object) -> Object:
    return as_map(before_scheduling(typed(running).pod))


def avoiding(*nodes: str, **term: Any) -> Object:
    fields = [name_requirement(name, "NotIn") for name in nodes]
    return {"weight": 100, "preference": {"matchFields": fields}} | term


@pytest.mark.parametrize(
    "term",
    [avoiding("node-a", "node-b"), avoiding("node-a", weight=50), {"weight": 100, "preference": {}}],
    ids=["two fields", "another weight", "no field"],
)
def test_preferences_of_the_user_stay(term: Object) -> None:
    affinity = {"nodeAffinity": {PREFERRED: [term, avoiding("node-c")]}}
    pod = restored_from(vm_pod(affinity=affinity, annotations={DECISION: "NodeFull: a sentence"}))
    assert pod["spec"]["affinity"] == {"nodeAffinity": {PREFERRED: [term]}}
    assert restored_from(vm_pod(affinity=affinity))["spec"]["affinity"] == affinity  # without a decision


def next_of(pod: Object, vm: Object | None = None, vmi: Object | None = None, kubevirt: Object | None = None) -> Object:
    known = [each and KINDS[each["kind"]].convert(each) for each in (vm, vmi)]
    return as_map(next_pod(typed(pod).pod, *known, SETTINGS, kubevirt))


def rendered(vm: Object, *state_claims: Any, **rest: Any) -> Object:
    """Render a pod from the fields of a VM that are kept."""
    return rendered_pod(KINDS[vm["kind"]].convert(vm), *state_claims, **rest)


def test_the_next_pod_has_the_annotations_that_the_template_has_by_now() -> None:
    pod = vm_pod(annotations={"kubevirt-scheduler/co-schedule-mode": "preferred", "own": "kept"})
    assert next_of(pod)["metadata"]["annotations"] == pod["metadata"]["annotations"]
    changed = next_of(pod, vm(opt_in=False, annotations={"kubevirt-scheduler/co-schedule-claim": "disk2", "new": "1"}))
    assert changed["metadata"]["annotations"] == {
        "kubevirt.io/domain": "vm1",
        "own": "kept",
        "kubevirt-scheduler/co-schedule-claim": "disk2",
    }
    assert next_of(vm_pod(opt_in=None), vm())["metadata"]["annotations"][OPT_IN] == "true"


@pytest.mark.parametrize("matcher", ["instancetype", "preference"])
def test_the_next_pod_keeps_annotations_of_an_instancetype_or_a_preference(matcher: str) -> None:
    pod = vm_pod(opt_in="true", annotations={"kubevirt-scheduler/co-schedule-mode": "preferred"})
    inheriting = vm(opt_in=False, annotations={"kubevirt-scheduler/co-schedule-mode": "required"})
    inheriting["spec"][matcher] = {"name": "near-storage"}
    annotations = next_of(pod, inheriting)["metadata"]["annotations"]
    assert (annotations[OPT_IN], annotations["kubevirt-scheduler/co-schedule-mode"]) == ("true", "required")
    inheriting["spec"]["template"]["metadata"]["annotations"] = {OPT_IN: "false"}
    assert next_of(pod, inheriting)["metadata"]["annotations"][OPT_IN] == "false"


def test_a_term_of_the_vmi_for_the_pinned_node_stays() -> None:
    """It was taken for the webhook's, and a live migration was planned to a node that the user had excluded."""
    own = {"matchFields": [name_requirement("node-a")]}
    affinity = node_terms(own, {"matchExpressions": [{"key": HOSTNAME, "operator": "Exists"}]})
    pod = vm_pod(affinity=with_node(affinity, "node-a", pin=True), annotations={CO_SCHEDULED_NODE: "node-a"})
    assert next_of(pod, vm(), vmi(affinity=affinity))["spec"]["affinity"] == affinity
    assert next_of(pod, vm())["spec"]["affinity"] == node_terms(
        affinity["nodeAffinity"][REQUIRED]["nodeSelectorTerms"][1]
    )


def migrated(**rest: Any) -> Object:
    """Build a pod that was the target of a live migration."""
    own_term = pod_term({"kubevirt.io/created-by": "uid-of-vm1"})
    return vm_pod(labels=MIGRATION, **({"affinity": pod_anti_affinity(own_term)} | rest))


def test_the_next_pod_of_a_migrated_vm_is_no_migration_target_and_keeps_the_affinity_of_the_user() -> None:
    pod = migrated(annotations={"kubevirt.io/migrationJobName": "evacuation", "kubevirt.io/eviction-source": "x"})
    found = next_of(pod)
    assert found["metadata"]["labels"] == {"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": "uid-of-vm1"}
    assert set(found["metadata"]["annotations"]) == {OPT_IN, "kubevirt.io/domain"}
    avoided = {"key": HOSTNAME, "operator": "NotIn", "values": ["node-a"]}  # of a decentralized migration
    target = migrated(affinity=node_terms({"matchExpressions": [avoided]}))
    assert next_of(target, None, vmi(domain=NAMED_MODEL))["spec"]["affinity"] == {}
    own = node_terms({"matchExpressions": [avoided]}) | pod_anti_affinity(pod_term({"app": "db"}))
    assert next_of(target, None, vmi(domain=NAMED_MODEL, affinity=own))["spec"]["affinity"] == own


def excluded(label: str) -> Object:
    return {"key": label, "operator": "DoesNotExist"}


NAMED_MODEL: Object = {"cpu": {"model": "Haswell"}}
OBSOLETE, MPX = excluded("node-labeller.kubevirt.io/obsolete-host-model"), excluded("cpu-feature.node.kubevirt.io/mpx")
FORBIDDEN: Object = {"features": [{"name": "vmx"}, {"name": "mpx", "policy": "forbid"}]}
SSD, WEST = {"key": "disk", "operator": "Exists"}, {"key": "west", "operator": "Exists"}
USERS = node_terms({"matchExpressions": [SSD]}, {"matchFields": [name_requirement("node-a")]})
PREFERS = {"nodeAffinity": {PREFERRED: [{"weight": 1, "preference": {"matchExpressions": [WEST]}}]}}
# The CPU and the affinity of a VMI, and the affinity of its pod: `setNodeAffinityForPod` in KubeVirt's template.go.
EXCLUSIONS: dict[str, tuple[Object, Object, Object]] = {
    "the default model": ({}, {}, node_terms({"matchExpressions": [OBSOLETE]})),
    "host-model": ({"model": "host-model"}, {}, node_terms({"matchExpressions": [OBSOLETE]})),
    "another model": ({"model": "host-passthrough"}, {}, {}),
    "a forbidden feature": ({"model": "Haswell"} | FORBIDDEN, {}, node_terms({"matchExpressions": [MPX]})),
    "in each term of the user": (FORBIDDEN, USERS, node_terms(
        {"matchExpressions": [SSD, OBSOLETE, MPX]},
        {"matchFields": [name_requirement("node-a")], "matchExpressions": [OBSOLETE, MPX]})),
    "beside a preference": ({}, PREFERS, {"nodeAffinity": PREFERS["nodeAffinity"] | node_terms(
        {"matchExpressions": [OBSOLETE]})["nodeAffinity"]}),
}  # fmt: skip


@pytest.mark.parametrize("case", EXCLUSIONS)
def test_every_predicted_pod_excludes_the_nodes_that_kubevirt_excludes(case: str) -> None:
    """`report` predicted a pin, and `recolocate` planned a move, to a node that KubeVirt excludes."""
    cpu, affinity, expected = EXCLUSIONS[case]
    spec: Object = {"domain": {"cpu": cpu}} | ({"affinity": affinity} if affinity else {})
    changed = vm(**spec) | {"status": {"conditions": [{"type": "RestartRequired", "status": "True"}]}}
    predicted = {
        "stopped": rendered(vm(**spec)),
        "changed": next_of(vm_pod(), changed, vmi()),
        "migrated": next_of(migrated(), vm(**spec), vmi(**spec)),
    }
    assert {state: pod["spec"]["affinity"] for state, pod in predicted.items()} == dict.fromkeys(predicted, expected)


SELECTORS_OF_A_TARGET = {
    "kubevirt.io/schedulable": "true",
    "kubernetes.io/arch": "amd64",
    "hyperv.node.kubevirt.io/vpindex": "true",
    "cpu-model-migration.node.kubevirt.io/Skylake": "true",
    "cpu-feature.node.kubevirt.io/vmx": "true",
    "cpu-feature.node.kubevirt.io/svm": "true",
    "cpu-vendor.node.kubevirt.io/Intel": "true",
    HOSTNAME: "node-a",
    "disk": "ssd",
}
OWN_SELECTORS = {"kubevirt.io/schedulable": "true", "hyperv.node.kubevirt.io/vpindex": "true"}
VMX, VENDOR = {"cpu-feature.node.kubevirt.io/vmx": "true"}, {"cpu-vendor.node.kubevirt.io/Intel": "true"}
OF_THE_USER: Object = {"disk": "ssd", HOSTNAME: "node-a"}
FEATURES: Object = {"cpu": {"features": [{"name": "vmx"}, {"name": "svm", "policy": "optional"}]}}
EVMCS: Object = {"features": {"hyperv": {"evmcs": {}}}}
# The VMI, and what its next pod selects besides OWN_SELECTORS.
KEPT_SELECTORS: dict[str, tuple[Object, Object]] = {
    "nothing": (vmi(), {}),
    "the architecture": (vmi(architecture="amd64"), {"kubernetes.io/arch": "amd64"}),
    "a selector of the VMI": (vmi(nodeSelector=OF_THE_USER), OF_THE_USER),
    "a CPU selector of the VMI": (vmi(nodeSelector=VMX), VMX),
    "a CPU feature": (vmi(domain=FEATURES), VMX),
    "a required CPU feature": (vmi(domain={"cpu": {"features": [{"name": "vmx", "policy": "require"}]}}), VMX),
    "a feature of Intel CPUs": (vmi(domain=EVMCS), VENDOR),
    "no feature of Intel CPUs": (vmi(domain={"features": {"hyperv": {"evmcs": {"enabled": False}}}}), {}),
}


@pytest.mark.parametrize("case", KEPT_SELECTORS)
def test_the_selectors_of_a_migration_are_removed(case: str) -> None:
    of_vmi, kept = KEPT_SELECTORS[case]
    spec = next_of(migrated(nodeSelector=SELECTORS_OF_A_TARGET), None, of_vmi)["spec"]
    assert spec["nodeSelector"] == OWN_SELECTORS | kept


@pytest.mark.parametrize("changed", [False, True])
def test_the_next_pod_runs_where_a_user_lets_the_running_vm_run_by_now(changed: bool) -> None:
    """A restart was predicted, and a migration planned, by the constraints that the VM had when it started."""
    old = {"nodeSelector": {"disk": "hdd"}, "tolerations": [{"key": "old"}], "affinity": USERS}
    new = {
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "new"}],
        "domain": {"cpu": {"model": "host-passthrough"}},
    }
    status = {"observedGeneration": 2, "desiredGeneration": 3 if changed else 2}
    spec = next_of(vm_pod(**old), vm() | {"status": status}, vmi(**new))["spec"]
    assert spec["nodeSelector"] == ({"disk": "ssd"} | SCHEDULABLE if changed else {"disk": "hdd"})
    assert spec["tolerations"] == (new if changed else old)["tolerations"]
    assert spec["affinity"] == ({} if changed else USERS)


def volumes(*sources: Object) -> list[Object]:
    return [{"name": f"volume-{number}"} | source for number, source in enumerate(sources)]


def claims(pod: Object) -> list[str]:
    return [volume["persistentVolumeClaim"]["claimName"] for volume in pod["spec"]["volumes"]]


def test_a_stopped_vm_mounts_its_disks_and_states_and_keeps_what_decides_where_it_may_run() -> None:
    stopped = vm(
        nodeSelector={"disk": "ssd"},
        tolerations=[{"operator": "Exists"}],
        affinity=pod_anti_affinity(pod_term({"app": "db"})),
        volumes=volumes(
            {"persistentVolumeClaim": {"claimName": "disk1"}},
            {"dataVolume": {"name": "disk2"}},
            {"ephemeral": {"persistentVolumeClaim": {"claimName": "image"}}},
            {"persistentVolumeClaim": {"claimName": "hot1", "hotpluggable": True}},
            {"dataVolume": {"name": "hot2", "hotpluggable": True}},
            {"containerDisk": {"image": "x"}},
        ),
    )
    stopped["spec"]["template"]["metadata"]["labels"] = {"app": "db"}
    pod = rendered(stopped)
    assert claims(pod) == ["disk1", "disk2", "image"]
    assert claims(rendered(stopped, ["state"])) == ["disk1", "disk2", "image", "state"]
    assert (pod["apiVersion"], pod["kind"], pod["metadata"]["namespace"]) == ("v1", "Pod", "default")
    assert pod["metadata"]["labels"] == {"app": "db", "kubevirt.io": "virt-launcher"}
    assert pod["metadata"]["annotations"] == {OPT_IN: "true", "kubevirt.io/domain": "vm1"}
    assert pod["spec"]["nodeSelector"] == {"disk": "ssd", "kubevirt.io/schedulable": "true"}
    assert pod["spec"]["tolerations"] == [{"operator": "Exists"}]
    own = stopped["spec"]["template"]["spec"]["affinity"]
    assert pod["spec"]["affinity"] == own | node_terms({"matchExpressions": [OBSOLETE]})


MEBIBYTE = 1024 * 1024
STORAGE = {"ephemeral-storage": "50000000"}
PROBE: Object = {"exec": {"command": ["true"]}}


# What tests/data/rendered-pods.json has no VM for: a VM, the CPU and the memory in MiB that its pod requests.
REQUESTS: list[tuple[Object, str, int]] = [
    ({"domain": {}}, "100m", 288),
    ({"domain": {"resources": {"limits": {"cpu": "1500m"}}}}, "1500m", 296),
    ({"domain": {"resources": {"requests": {"cpu": "3"}}}}, "3000m", 304),
    ({"domain": {"memory": {"guest": "64Mi", "reservedOverhead": {"addedOverhead": "16Mi"}}}}, "100m", 288 + 64 + 16),
    ({"domain": {"memory": {"guest": "512Mi", "hugepages": {"pageSize": "2Mi"}},
                 "resources": {"requests": {"memory": "1Gi"}}}}, "100m", 288 + 2 + 512),
    ({"domain": {"devices": {"interfaces": [{"name": "a", "passtBinding": {}}]}}}, "100m", 288 + 250),
    ({"domain": {"devices": {"interfaces": [{"name": each, "binding": {"name": "slow"}} for each in "ab"]}}},
     "100m", 288 + 10),
    ({"domain": {"devices": {"tpm": {"enabled": False}}}}, "100m", 288),
    ({"domain": {}, "livenessProbe": PROBE, "readinessProbe": PROBE}, "100m", 288 + 120),
]  # fmt: skip


@pytest.mark.parametrize("ratio", ["much", "nan", "inf"])
def test_an_overhead_ratio_without_a_value_is_ignored(ratio: str) -> None:
    configured = Rendering.of({"spec": {"configuration": {"additionalGuestMemoryOverheadRatio": ratio}}})
    assert rendered(vm(), rendering=configured) == rendered(vm(), rendering=Rendering.of({}))


@pytest.mark.parametrize(("spec", "cpu", "memory"), REQUESTS)
def test_the_requests_of_a_stopped_vm_are_those_that_kubevirt_computes(spec: Object, cpu: str, memory: int) -> None:
    network = {"binding": {"slow": {"computeResourceOverhead": {"requests": {"memory": "10Mi"}}}}}
    configuration = {"network": network, "additionalGuestMemoryOverheadRatio": "much"}  # which KubeVirt ignores
    rendering = Rendering.of({"spec": {"configuration": configuration}})
    (container,) = rendered(vm(**spec), rendering=rendering)["spec"]["containers"]
    requests = container["resources"]["requests"]
    assert (requests["cpu"], requests["memory"]) == (cpu, str(memory * MEBIBYTE))
    assert requests.get("hugepages-2Mi", str(512 * MEBIBYTE)) == str(512 * MEBIBYTE)


SCHEDULABLE = {"kubevirt.io/schedulable": "true"}
MACHINE = "machine-type.node.kubevirt.io/"


SEV, SNP, TDX = {"sev": {}}, {"snp": {}}, {"tdx": {}}
REENLIGHTENED = {"hyperv": {"reenlightenment": {"enabled": True}}}
LUN = {"disks": [{"name": "volume-0", "lun": {"reservation": True}}]}


# The domain of a VM, its architecture, and the selectors and devices that KubeVirt adds for it, by its source:
# newNodeSelectorRenderer and VMIResourcePredicates in pkg/virt-controller/services/template.go.
CAPABILITIES: list[tuple[Object, str, str, str]] = [
    ({"cpu": {"realtime": {}}}, "amd64", "kubevirt.io/realtime", ""),
    ({"launchSecurity": SEV}, "amd64", "kubevirt.io/sev", "sev"),
    ({"launchSecurity": {"sev": {"policy": {"encryptedState": True}}}}, "amd64", "kubevirt.io/sev kubevirt.io/sev-es",
     "sev"),
    ({"launchSecurity": {"sev": {"policy": {"encryptedState": False}}}}, "amd64", "kubevirt.io/sev", "sev"),
    ({"launchSecurity": SNP}, "amd64", "kubevirt.io/sev kubevirt.io/sev-snp", "sev"),
    ({"launchSecurity": TDX}, "amd64", "kubevirt.io/tdx", "tdx"),
    ({"launchSecurity": {}}, "s390x", "kubevirt.io/s390-pv", ""),
    ({"launchSecurity": {}}, "amd64", "", ""),
    ({"cpu": {"features": [{"name": "invtsc", "policy": "require"}]}}, "",
     "cpu-feature.node.kubevirt.io/invtsc scheduling.node.kubevirt.io/tsc-frequency-2100", ""),
    ({"cpu": {"features": [{"name": "invtsc", "policy": "optional"}]}}, "amd64", "", ""),
    ({"features": REENLIGHTENED}, "amd64", "scheduling.node.kubevirt.io/tsc-frequency-2100", ""),
    ({"features": REENLIGHTENED}, "arm64", "", ""),
    ({"devices": LUN}, "amd64", "", "pr-helper"),
]  # fmt: skip


@pytest.mark.parametrize(("domain", "architecture", "selectors", "devices"), CAPABILITIES)
def test_a_stopped_vm_selects_nodes_with_what_its_hardware_needs(
    domain: Object, architecture: str, selectors: str, devices: str
) -> None:
    labels = {"kubevirt.io/schedulable": "true", TSC_FREQUENCY: "2100"}
    nodes = [
        fact_of(node("node-a", labels=labels)),
        fact_of(node("node-b", labels=labels | {TSC_FREQUENCY: "2900"})),
        fact_of(node("node-c", labels={TSC_FREQUENCY: "1000"})),
        fact_of(node("node-d", labels=labels | {TSC_FREQUENCY: "fast"})),
    ]
    built = vm(domain=domain, architecture=architecture)
    spec = rendered(built, rendering=Rendering.of(None, nodes))["spec"]
    own = {"kubevirt.io/schedulable", "kubernetes.io/arch"}
    assert sorted(spec["nodeSelector"].keys() - own) == selectors.split()
    requests = spec["containers"][0]["resources"]["requests"]
    assert [name for name in requests if "/" in name] == [f"devices.kubevirt.io/{name}" for name in devices.split()]
    added = 256 * (devices == "sev") + 128 * (architecture == "arm64")
    assert int(requests["memory"]) == (288 + added) * MEBIBYTE
    kubevirt = {"spec": {"configuration": {"developerConfiguration": {"minimumClusterTSCFrequency": 7}}}}
    assert Rendering.of(kubevirt, nodes).tsc_frequency == 7
    assert Rendering.of(None).tsc_frequency == 0


def test_pods_that_reserve_the_same_lun_repel_each_other_since_kubevirt_1_9() -> None:
    disks = volumes({"persistentVolumeClaim": {"claimName": "disk1"}}, {"dataVolume": {"name": "disk2"}})
    stopped = vm(domain={"devices": LUN}, volumes=disks, affinity=pod_anti_affinity(pod_term({"app": "db"})))
    uids = {"disk1": "uid-1", "disk2": "uid-2"}
    new = Rendering.of({"status": {"observedKubeVirtVersion": "v1.9.0"}})
    pod = rendered(stopped, rendering=new, uids=uids)
    assert pod["metadata"]["labels"] == {"kubevirt.io": "virt-launcher", "pr.kubevirt.io/uid-1": ""}
    _, term = pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term == {
        "labelSelector": {"matchExpressions": [{"key": "pr.kubevirt.io/uid-1", "operator": "Exists"}]},
        "topologyKey": "kubernetes.io/hostname",
    }
    old = Rendering.of({"status": {"observedKubeVirtVersion": "v1.8.0"}})
    assert rendered(stopped, rendering=old, uids=uids) == rendered(stopped)


def test_a_restart_selects_the_machine_type_of_the_spec_and_a_migration_that_of_the_status() -> None:
    running = vmi(domain={"machine": {"type": "q35"}})
    running["status"]["machine"] = {"type": "pc-q35-rhel9.6.0"}
    for machine_of_pod in ("q35", "pc-q35-rhel9.6.0"):
        migrated = vm_pod(labels=MIGRATION, nodeSelector={f"{MACHINE}{machine_of_pod}": "true"})
        found = next_of(migrated, vm(), running)
        assert found["spec"]["nodeSelector"] == SCHEDULABLE | {f"{MACHINE}q35": "true"}
        target = target_pod(typed(found), typed(migrated), running, "a", {}).spec.node_selector
        assert target == SCHEDULABLE | {HOSTNAME: "a", f"{MACHINE}pc-q35-rhel9.6.0": "true"}


def test_the_node_selectors_and_the_cpu_model_of_kubevirts_configuration_are_rendered() -> None:
    everywhere = {"pool": "vms"}
    migrated = vm_pod(labels=MIGRATION, nodeSelector=everywhere | {"added": "by the migration"})
    selecting: dict[str, Any] = {"spec": {"configuration": {"developerConfiguration": {"nodeSelectors": everywhere}}}}
    found = next_of(migrated, vm(), vmi(), selecting)
    assert found["spec"]["nodeSelector"] == SCHEDULABLE | everywhere
    selector = rendered(vm(nodeSelector={"disk": "ssd"}), rendering=Rendering(everywhere))["spec"]["nodeSelector"]
    assert selector == everywhere | {"disk": "ssd", "kubevirt.io/schedulable": "true"}
    configuration = {"cpuModel": "Haswell", "developerConfiguration": {"nodeSelectors": everywhere}}
    kubevirt = {"kind": "KubeVirt", "metadata": {"name": "kubevirt"}, "spec": {"configuration": configuration}}
    template = inventory(vm(), kubevirt).machines(SETTINGS)[0].template
    assert template
    model = {"cpu-model.node.kubevirt.io/Haswell": "true"}
    assert template.spec.node_selector == SCHEDULABLE | everywhere | model
    assert template.affinity == {}


def test_a_vm_that_requires_a_restart_is_rendered_from_its_template() -> None:
    disk = {"name": "a", "persistentVolumeClaim": {"claimName": "disk2"}}
    changed = vm(nodeSelector={"disk": "ssd"}, volumes=[disk], domain={"memory": {"guest": "1Gi"}})
    changed["status"] = {"conditions": [{"type": "RestartRequired", "status": "True"}]}
    found = next_of(vm_pod(claims=["disk1", "persistent-state-for-vm1"]), changed, vmi())
    assert found["metadata"]["name"] == "virt-launcher-vm1-abcde"
    assert found["metadata"]["labels"]["kubevirt.io/created-by"] == "uid-of-vm1"
    claims = [each["persistentVolumeClaim"]["claimName"] for each in found["spec"]["volumes"]]
    assert claims == ["disk2", "persistent-state-for-vm1"]
    assert found["spec"]["nodeSelector"]["disk"] == "ssd"


def blueprint(kind: str, name: str, namespace: str = "", **spec: Any) -> Object:
    """Build an instance type or a preference."""
    return {"kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def revision(name: str, of: Object) -> Object:
    metadata = {
        "name": name,
        "namespace": "default",
        "labels": {"instancetype.kubevirt.io/object-name": of["metadata"]["name"]},
    }
    return {"kind": "ControllerRevision", "metadata": metadata, "data": of}


INSTANCE_TYPE = blueprint(
    "VirtualMachineClusterInstancetype",
    "u1",
    cpu={"guest": 4, "dedicatedCPUPlacement": True, "model": "Skylake"},
    memory={"guest": "4Gi", "overcommitPercent": 50},
    nodeSelector={"disk": "ssd"},
    schedulerName="second",
    gpus=[{"name": "one", "deviceName": "nvidia.com/A100"}, {"name": "two", "deviceName": "nvidia.com/A100"}],
    annotations={OPT_IN: "true", "both": "instance type"},
)
PREFERENCE = blueprint(
    "VirtualMachineClusterPreference",
    "linux",
    cpu={
        "preferredCPUTopology": "spread",
        "preferredCPUFeatures": [{"name": "vmx"}, {"name": "svm", "policy": "optional"}],
    },
    machine={"preferredMachineType": "pc-q35-rhel9.6.0"},
    preferredArchitecture="amd64",
    annotations={"both": "preference", "kubevirt-scheduler/co-schedule-mode": "preferred"},
)
KUBEVIRT = {"kind": "KubeVirt", "metadata": {"name": "kubevirt"}, "status": {"observedKubeVirtVersion": "v1.6.0"}}


def matching(instance_type: Object | None = None, preference: Object | None = None, **rest: Any) -> Object:
    """Build a VM that names an instance type and a preference."""
    matchers = {"instancetype": instance_type, "preference": preference}
    found = vm(**rest)
    found["spec"] |= {field: matcher for field, matcher in matchers.items() if matcher}
    return found


def test_a_stopped_vm_starts_with_its_instance_type_and_its_preference() -> None:
    """Checked against KubeVirt's source: pkg/instancetype/apply and pkg/instancetype/preference/apply."""
    stopped = matching({"name": "u1"}, {"name": "linux"}, opt_in=False, domain={"devices": {"disks": []}})
    (machine,) = inventory(stopped, INSTANCE_TYPE, PREFERENCE, KUBEVIRT).machines(SETTINGS)
    assert machine.template
    annotations, spec = machine.template.annotations, msgspec.to_builtins(machine.template.spec)
    assert (annotations["both"], annotations[OPT_IN]) == ("instance type", "true")
    assert annotations["kubevirt-scheduler/co-schedule-mode"] == "preferred"
    assert spec["schedulerName"] == "second"
    assert spec["nodeSelector"] == {
        "kubevirt.io/schedulable": "true",
        "kubernetes.io/arch": "amd64",
        "disk": "ssd",
        "cpumanager": "true",
        "cpu-model.node.kubevirt.io/Skylake": "true",
        "cpu-feature.node.kubevirt.io/vmx": "true",
        f"{MACHINE}pc-q35-rhel9.6.0": "true",
    }
    overhead = (280 + 1024 + 4 * 8 + 100 + 4) * MEBIBYTE  # 100 for dedicated CPUs
    requests = {"cpu": "4000m", "memory": str(2048 * MEBIBYTE + overhead), "nvidia.com/A100": "2"}
    assert spec["containers"][0]["resources"]["requests"] == requests | STORAGE


def test_the_template_takes_precedence_over_a_preference() -> None:
    own: Object = {
        "cpu": {"features": [{"name": "vmx", "policy": "forbid"}]},
        "machine": {"type": "pc"},
    }
    stopped = matching(None, {"name": "linux"}, annotations={"both": "template"}, domain=own, architecture="arm64")
    found = expanded(stopped, {("VirtualMachineClusterPreference", "", "linux"): PREFERENCE})["spec"]["template"]
    assert found["metadata"]["annotations"]["both"] == "template"
    assert found["spec"]["architecture"] == "arm64"
    features = [{"name": "vmx", "policy": "forbid"}, {"name": "svm", "policy": "optional"}]
    assert found["spec"]["domain"] == own | {"cpu": {"features": features}}


LARGE = blueprint(
    "VirtualMachineInstancetype",
    "large",
    "default",
    cpu={"guest": 8},
    memory={"guest": "1Gi", "hugepages": {"pageSize": "2Mi"}},
)
OTHER = blueprint("VirtualMachineInstancetype", "other", "default", cpu={"guest": 2}, memory={"guest": "1Gi"})


@pytest.mark.parametrize(
    ("matcher", "reference", "cpus"),
    [
        ({"name": "large", "kind": "virtualmachineinstancetypes"}, "", 8),
        ({"name": "large", "kind": "VirtualMachineInstancetype", "revisionName": "old"}, "newer", 2),
        ({"name": "other"}, "old", 2),
        ({"name": "large", "kind": "VirtualMachineInstancetype"}, "old", 8),
    ],
    ids=["the object", "the revision of the spec", "the revision of the status", "a revision of another object"],
)
def test_a_revision_decides_before_the_instance_type(matcher: Object, reference: str, cpus: int) -> None:
    stopped = matching(matcher)
    stopped["status"] = {"instancetypeRef": {"controllerRevisionRef": {"name": reference}}} if reference else {}
    (machine,) = inventory(stopped, LARGE, revision("old", OTHER)).machines(SETTINGS)
    assert machine.template
    requests = machine.template.spec.containers[0].resources.requests
    assert requests["cpu"] == f"{cpus * 100}m"
    assert requests.get("hugepages-2Mi") == (str(1024 * MEBIBYTE) if cpus == 8 else None)


@pytest.mark.parametrize(
    ("matcher", "missing"),
    [
        ({"name": "u1"}, "VirtualMachineClusterInstancetype u1"),
        ({"name": "large", "kind": "VirtualMachineInstancetype"}, "VirtualMachineInstancetype large"),
        ({"name": "u1", "revisionName": "old"}, "ControllerRevision old"),
    ],
)
def test_a_missing_instance_type_makes_the_next_start_unknown(matcher: Object, missing: str) -> None:
    with pytest.raises(NotFound, match=missing):
        expanded(matching(matcher), {})
    found = status(*storage(), node(), matching(matcher, volumes=[{"persistentVolumeClaim": {"claimName": "disk1"}}]))
    assert found.start is None
    assert (
        advise(found, Refusal(Hindrance.NOT_APART, "")).text
        == f"The next start is unknown: {missing} is missing, or you may not read it."
    )


# The target pod of a migration is the pod that KubeVirt would create


MODEL, FEATURE = "cpu-model-migration.node.kubevirt.io/Haswell", "cpu-feature.node.kubevirt.io/vmx"
SOURCE = {
    "host-model-cpu.node.kubevirt.io/Haswell": "true",
    "host-model-required-features.node.kubevirt.io/vmx": "true",
    "cpu-vendor.node.kubevirt.io/Intel": "true",
}
OWN_VENDOR, OTHER_VENDOR = {"cpu-vendor.node.kubevirt.io/Intel": "true"}, {"cpu-vendor.node.kubevirt.io/AMD": "true"}
HOST_MODEL = vmi(domain={"cpu": {"model": "host-model"}})
OWN = {"labelSelector": {"matchLabels": {"kubevirt.io/created-by": "uid-of-vm1"}}, "topologyKey": HOSTNAME}


def test_the_target_pod_has_no_name_and_stays_away_from_its_source() -> None:
    other = {"labelSelector": {"matchLabels": {"app": "db"}}, "topologyKey": HOSTNAME}
    pod = vm_pod(affinity={"podAntiAffinity": {REQUIRED: [other]}})
    target = target_pod(typed(pod), typed(pod), vmi(), "a", {})
    assert not msgspec.to_builtins(target.metadata).keys() & {"name", "uid", "creationTimestamp", "resourceVersion"}
    assert target.is_migration_target
    assert target.affinity == {"podAntiAffinity": {REQUIRED: [other, OWN]}}


@pytest.mark.parametrize(
    ("selector", "of_vmi", "source", "expected"),
    [
        ({"disk": "ssd"}, vmi(), {}, {HOSTNAME: "a", "disk": "ssd"}),
        ({HOSTNAME: "b"}, vmi(), {}, {HOSTNAME: "b"}),
        ({}, vmi(), SOURCE, {HOSTNAME: "a"} | OWN_VENDOR),
        (OTHER_VENDOR, vmi(), SOURCE, {HOSTNAME: "a"} | OTHER_VENDOR),
        ({}, HOST_MODEL, SOURCE, {HOSTNAME: "a", MODEL: "true", FEATURE: "true"} | OWN_VENDOR),
        ({MODEL: "true"}, HOST_MODEL, SOURCE, {HOSTNAME: "a", MODEL: "true"} | OWN_VENDOR),
    ],
    ids=["own selector", "own hostname wins", "vendor", "own vendor wins", "host-model", "host-model, migrated before"],
)  # fmt: skip
def test_the_target_pod_selects_its_node(selector: Object, of_vmi: Object, source: Object, expected: Object) -> None:
    pod = vm_pod(nodeSelector=selector)
    assert target_pod(typed(pod), typed(pod), of_vmi, "a", source).spec.node_selector == expected
