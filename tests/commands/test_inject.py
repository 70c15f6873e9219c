"""`inject` prints patched pods, copies other objects unchanged, and reports bad input in one line."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from click.testing import Result

from tests.support import paths
from tests.support.builders import (
    Object,
    apply_injection,
    catalog,
    claim,
    inject_request,
    node,
    pod,
    request,
    share_manager_pod,
    storage,
    virt_launcher,
    volume,
)
from tests.support.command_line import run_cli, write_manifests
from tests.support.fake_api_server import ApiServer
from tests.support.fleet import vm, without_settings
from webhook.commands.admission_requests import as_json
from webhook.placement.reasons import Reason
from webhook.placement.settings import Settings
from webhook.reading.kubernetes_yaml import documents, to_yaml
from webhook.serving.review.admission_review import API_VERSION, KIND

REVIEWS = sorted(paths.REVIEWS.glob("*.json"))
# The claim "pending" waits for its first consumer.
CLUSTER = [
    *storage(),
    *storage("disk2", "node-b"),
    claim("pending", volume=""),
    virt_launcher("consumer", node="node-c"),
]
CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"key": "1e3", "at": "12:30"}}
CREATION = {"apiVersion": API_VERSION, "kind": KIND, "request": request(virt_launcher())}

RunInject = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path) -> RunInject:
    """A function that runs `inject` on a file with CLUSTER as the snapshot."""
    cluster = write_manifests(tmp_path, {"apiVersion": "v1", "kind": "List", "items": CLUSTER})
    return partial(run_cli, "inject", "--snapshot", cluster, "-f")


write_yaml = partial(write_manifests, name="pod.yaml")


def json_output(result: Result) -> Any:
    assert (result.exit_code, without_settings(result.stderr)) == (0, "")
    return json.loads(result.stdout)


def yaml_output(result: Result) -> list[Any]:
    assert (result.exit_code, without_settings(result.stderr)) == (0, "")
    return list(documents(result.stdout))


def expected_pod(received: Object) -> Object:
    injection = inject_request(request(received, received["metadata"]["namespace"]), catalog(*CLUSTER), Settings())
    expected: Object = apply_injection(received, injection)
    return expected


def error_line(result: Result) -> str:
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = without_settings(result.stderr).splitlines()
    assert line.startswith("Error: ")
    return line.removeprefix("Error: ")


@pytest.mark.parametrize("review", REVIEWS, ids=lambda review: review.stem)
def test_a_recorded_review_prints_its_patched_object(run: RunInject, review: Path) -> None:
    received = json.loads(review.read_bytes())["request"]
    expected = apply_injection(received["object"], inject_request(received, catalog(*CLUSTER), Settings()))
    (found,) = yaml_output(run(review))
    assert json.dumps(found) == json.dumps(expected_pod(received["object"]))  # as text, to compare the order of keys
    assert found == expected


def test_a_list_is_printed_as_a_list_with_patched_pods(run: RunInject, tmp_path: Path) -> None:
    inner = {"kind": "PodList", "items": [virt_launcher("b")], "apiVersion": "v1"}
    content = {"apiVersion": "v1", "items": [CONFIG_MAP, virt_launcher("a"), inner], "kind": "List", "metadata": {}}
    expected = content | {
        "items": [CONFIG_MAP, expected_pod(virt_launcher("a")), inner | {"items": [expected_pod(virt_launcher("b"))]}]
    }
    assert json.dumps(yaml_output(run(write_yaml(tmp_path, content)))) == json.dumps([expected])


def test_json_output_is_always_a_list(run: RunInject, tmp_path: Path) -> None:
    vm, other = virt_launcher(), pod("other")
    one, two = write_yaml(tmp_path, vm, name="one.yaml"), write_yaml(tmp_path, vm, CONFIG_MAP, other, name="two.yaml")
    expected = inject_request(request(vm), catalog(*CLUSTER), Settings())
    unchanged = inject_request(request(other), catalog(*CLUSTER), Settings())
    assert json_output(run(write_yaml(tmp_path, CONFIG_MAP), "-o", "json")) == []
    assert json_output(run(one, "-o", "json")) == msgspec.to_builtins([as_json(expected)])
    assert json_output(run(two, "-o", "json")) == msgspec.to_builtins([as_json(expected), as_json(unchanged)])
    nothing = run(write_yaml(tmp_path, CONFIG_MAP), "-o", "diff")
    assert (nothing.stdout, "Nothing to inject: " in nothing.stderr) == ("", True)


MODES: Object = {"accessModes": ["ReadWriteMany"], "volumeMode": "Filesystem"}
DATA_VOLUME: Object = {"apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "metadata": {"name": "new"}}
SERVED = [claim("new"), volume("new"), share_manager_pod("vol-new", node="node-a")]
# The objects of a file besides a VM that mounts the claim `new`, the spec of its DataVolume, and why it has no node.
MANIFESTS: dict[str, tuple[list[Object], Object, Reason | None]] = {
    "no claim": ([], {}, Reason.CLAIM_NOT_FOUND),
    "a claim": ([claim("new", volume="")], {}, Reason.CLAIM_NOT_BOUND),
    "what serves it, too": (SERVED, {}, None),
    "a DataVolume": ([DATA_VOLUME | {"spec": {"pvc": MODES}}], {}, Reason.CLAIM_NOT_BOUND),
    "a DataVolume of the VM": ([], {"storage": MODES}, Reason.CLAIM_NOT_BOUND),
    "modes that CDI chooses": ([], {"storage": {"resources": {}}}, Reason.CLAIM_NOT_FOUND),
    "malformed": ([node(allocatable={"cpu": "x"})], {}, Reason.CLAIM_NOT_FOUND),
}


@pytest.mark.parametrize("case", MANIFESTS)
def test_the_objects_of_the_file_count(run: RunInject, tmp_path: Path, case: str) -> None:
    """`inject -f examples/vm.yaml` said ClaimNotFound, though the claim is in that file."""
    objects, data_volume, reason = MANIFESTS[case]
    built = vm(volumes=[{"name": "a", "dataVolume": {"name": "new"}}])
    built["spec"]["dataVolumeTemplates"] = [{"metadata": {"name": "new"}, "spec": data_volume}]
    decided, *_ = json_output(run(write_yaml(tmp_path, built, *objects), "-o", "json"))
    assert [each["reason"] for each in decided["decision"]["claims"]] == [reason]


@pytest.mark.parametrize(("scope", "namespace"), [("Machine", "default"), ("MachineCluster", None)])
def test_a_vm_uses_the_instance_type_and_the_preference_of_its_file(
    run: RunInject, tmp_path: Path, scope: str, namespace: str | None
) -> None:
    """People keep both beside their VMs in git. The answer was "not found"."""
    specs = {"Instancetype": {"nodeSelector": {"size": "large"}}, "Preference": {"preferredArchitecture": "arm64"}}
    built, objects = vm(volumes=[{"name": "a", "persistentVolumeClaim": {"claimName": "disk1"}}]), []
    for kind, spec in specs.items():
        described = {"apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": f"Virtual{scope}{kind}", "spec": spec}
        objects.append(described | {"metadata": {"name": "large"} | ({"namespace": namespace} if namespace else {})})
        built["spec"][kind.lower()] = {"kind": described["kind"], "name": "large"}
    for order in ([built, *objects], [*objects, built]):
        (found,) = [each for each in yaml_output(run(write_yaml(tmp_path, *order))) if each["kind"] == "Pod"]
        assert {"size": "large", "kubernetes.io/arch": "arm64"}.items() <= found["spec"]["nodeSelector"].items()


def test_a_vm_uses_the_controller_revision_of_its_file(run: RunInject, tmp_path: Path) -> None:
    built = vm(volumes=[{"name": "a", "persistentVolumeClaim": {"claimName": "disk1"}}])
    built["spec"]["instancetype"] = {"name": "large", "revisionName": "large-v1"}
    revision = {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {"name": "large-v1", "namespace": "default"},
        "data": {"spec": {"nodeSelector": {"size": "large"}}},
    }
    found, _ = yaml_output(run(write_yaml(tmp_path, built, revision)))
    assert found["spec"]["nodeSelector"]["size"] == "large"


def test_a_hotpluggable_disk_of_a_vm_in_the_file_counts(run: RunInject, tmp_path: Path) -> None:
    """The webhook knows the VM, and its virt-launcher pod doesn't mount the claim."""
    hotpluggable = {"name": "b", "persistentVolumeClaim": {"claimName": "data", "hotpluggable": True}}
    built = vm(volumes=[{"name": "a", "persistentVolumeClaim": {"claimName": "disk1"}}, hotpluggable])
    elsewhere = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}]}
    data = [claim("data", modes=["ReadWriteOnce"]), volume("data", driver="local", required=elsewhere)]
    objects = [node(labels={"kubevirt.io/schedulable": "true", "zone": "a"}), *data]
    (decided,) = json_output(run(write_yaml(tmp_path, built, *objects), "-o", "json"))
    assert decided["decision"]["reason"] == Reason.VOLUME_MISMATCH


def test_an_object_of_the_cluster_counts_instead_of_the_same_one_in_the_file(run: RunInject, tmp_path: Path) -> None:
    content = {"apiVersion": "v1", "kind": "List", "items": [claim(volume=""), virt_launcher()]}
    (decided,) = json_output(run(write_yaml(tmp_path, content), "-o", "json"))
    assert decided["decision"]["reason"] == Reason.CO_SCHEDULED


def test_a_manifest_without_a_namespace_is_one_of_the_context(tmp_path: Path) -> None:
    volumes = [{"name": "a", "persistentVolumeClaim": {"claimName": "disk1"}}]
    received = [vm(volumes=volumes), virt_launcher()]
    for each in received:
        del each["metadata"]["namespace"]
    file, objects = write_yaml(tmp_path, *received), [claim(namespace="shop"), volume(namespace="shop"), storage()[2]]
    with ApiServer() as server:
        server.put(*objects)
        kubeconfig = Path(server.kubeconfig(tmp_path))
        kubeconfig.write_text(kubeconfig.read_text().replace("    user: u\n", "    namespace: shop\n    user: u\n"))
        results = json_output(run_cli("inject", "-f", file, "-o", "json", "--kubeconfig", kubeconfig))
    cluster = write_manifests(tmp_path, *objects)
    explained = run_cli("explain", "-f", file, "-n", "shop", "-o", "json", "--snapshot", cluster)
    reasons = [each["decision"]["reason"] for each in (*results, *json_output(explained))]
    assert reasons == ["CoScheduled"] * 3


def test_a_review_of_another_kind_is_decided_and_printed_unchanged(run: RunInject, tmp_path: Path) -> None:
    received = request(CONFIG_MAP, kind={"group": "", "version": "v1", "kind": "ConfigMap"})
    path = write_yaml(tmp_path, CREATION | {"request": received})
    assert yaml_output(run(path)) == [CONFIG_MAP]
    assert json_output(run(path, "-o", "json"))[0]["decision"]["reason"] == Reason.NOT_A_POD_CREATION
    deletion = CREATION | {"request": request(None, operation="DELETE")}  # it has no object
    assert yaml_output(run(write_yaml(tmp_path, deletion))) == [deletion]


def test_the_diff_shows_only_added_lines_of_patched_pods(run: RunInject, tmp_path: Path) -> None:
    path = write_yaml(tmp_path, CONFIG_MAP, virt_launcher("vm"), pod("other"))
    lines = run(path, "-o", "diff").stdout.splitlines()
    assert lines[:2] == [f"--- {path} default/vm", f"+++ {path} default/vm (injected)"]
    assert "+    kubevirt-scheduler/co-scheduled-node: node-a" in lines
    assert not [line for line in lines[2:] if line.startswith("-")]
    assert not [line for line in lines if "other" in line]
    colored = run(path, "-o", "diff", env={"FORCE_COLOR": "1"}).stdout
    assert "\x1b[32m+    kubevirt-scheduler/co-scheduled-node: node-a\x1b[0m\n" in colored
    assert click.unstyle(colored).splitlines() == lines


def test_a_warning_goes_to_standard_error_and_names_the_pod_if_there_are_several(
    run: RunInject, tmp_path: Path
) -> None:
    vm = virt_launcher("vm", claims=["disk1", "disk2"])
    (line,) = run(write_yaml(tmp_path, virt_launcher(claims=["a\x1b[31m\nb"]))).stderr.splitlines()
    assert "\x1b" not in line
    conflict = "kubevirt-scheduler: several nodes serve the claims: node-a is the target node, not node-b"
    assert without_settings(run(write_yaml(tmp_path, vm)).stderr) == f"Warning: {conflict}\n"
    assert run(write_yaml(tmp_path, vm, pod("other")), "-o", "diff").stderr.splitlines() == [
        f"Warning: default/vm: {conflict}",
        "default/other: unchanged, NotVirtLauncher: the pod is not a virt-launcher pod",
    ]
    assert json_output(run(write_yaml(tmp_path, vm), "-o", "json"))[0]["warnings"] == [conflict]


def test_inject_reads_settings_from_the_environment(run: RunInject, tmp_path: Path) -> None:
    path = write_yaml(tmp_path, virt_launcher())
    (observed,) = json_output(run(path, "-o", "json", env={"CO_SCHEDULE_ACTION": "observe"}))
    assert (observed["decision"]["node"], observed["patch"]) == ("node-a", None)
    assert error_line(run(path, env={"CO_SCHEDULE_ACTION": "perhaps"})).startswith(
        "CO_SCHEDULE_ACTION='perhaps': expected"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", " empty file: expected a Pod in YAML or JSON"),
        ("{apiVersion: v1, kind: Pod}", " document 1: Pod metadata: expected a mapping"),
        ("{apiVersion: v1, kind: Pod, metadata: {}, spec: x}", " document 1: Pod spec: expected object, got str"),
        ("{apiVersion: v1, kind: AdmissionReview}", " document 1: not an AdmissionReview of admission.k8s.io/v1"),
        (
            to_yaml(vm(domain={"memory": {"guest": "${MEM:=4Gi}"}})),
            " document 1: VirtualMachine vm1: domain.memory.guest: expected a quantity, such as 500m or 4Gi",
        ),
        (f"{{apiVersion: {API_VERSION}, kind: {KIND}}}", " document 1: the AdmissionReview has no request"),
        (to_yaml(CREATION | {"request": request({})}), " document 1: Pod metadata: expected a mapping"),
    ],
)
def test_bad_input_prints_one_line_with_file_document_and_problem(run: RunInject, content: str, message: str) -> None:
    assert error_line(run("-", stdin=content)) == f"standard input:{message}"


def test_a_missing_snapshot_is_an_error_and_a_malformed_object_a_warning(run: RunInject, tmp_path: Path) -> None:
    vm = write_yaml(tmp_path, virt_launcher())
    assert error_line(run(vm, "--snapshot", "missing.yaml")).startswith("missing.yaml: No such file or directory")
    odd = write_yaml(tmp_path, node(allocatable={"cpu": "lots"}), name="odd.yaml")
    problem = "status.allocatable.cpu: expected a quantity, such as 500m or 4Gi"
    warning = f"Warning: {odd}: document 1: Node node-a: {problem}; ignored\n"
    assert warning in run(vm, "--snapshot", str(odd)).stderr


DISK = {"name": "disk", "persistentVolumeClaim": {"claimName": "disk1"}}
TEMPLATE = vm("any", volumes=[DISK])["spec"]["template"]
OF_TEMPLATES: dict[str, Object] = {
    "VirtualMachineInstance": {
        "apiVersion": "kubevirt.io/v1",
        "metadata": TEMPLATE["metadata"],
        "spec": TEMPLATE["spec"],
    },
    "VirtualMachineInstanceReplicaSet": {"apiVersion": "kubevirt.io/v1", "spec": {"replicas": 2, "template": TEMPLATE}},
    "VirtualMachinePool": {
        "apiVersion": "pool.kubevirt.io/v1beta1",
        "spec": {"virtualMachineTemplate": {"spec": {"template": TEMPLATE}}},
    },
}


@pytest.mark.parametrize("kind", OF_TEMPLATES)
@pytest.mark.parametrize("namespace", ["default", "elsewhere"])
def test_the_next_pod_of_each_kind_of_vmi_is_decided_in_the_namespace_of_the_option(
    run: RunInject, tmp_path: Path, kind: str, namespace: str
) -> None:
    manifest = OF_TEMPLATES[kind] | {"kind": kind}
    manifest["metadata"] = manifest.get("metadata", {}) | {"name": "any"}
    result = run(write_yaml(tmp_path, manifest), "-n", namespace, "-o", "json")
    (review,) = json.loads(result.stdout)
    expected = "CoScheduled" if namespace == "default" else "NoShareManager"  # the claim is in `default` only
    assert review["decision"]["reason"] == expected


HARDWARE = {"cpu": "16", "memory": "64Gi", "ephemeral-storage": "100Gi", "pods": "110"}
HARDWARE |= {f"devices.kubevirt.io/{name}": "100" for name in ("kvm", "tun", "vhost-net")}
HARDWARE |= {"hugepages-1Gi": "16Gi", "nvidia.com/A10": "1"}
WITHOUT_GPU, WITHOUT_PAGES = ({key: HARDWARE[key] for key in HARDWARE if name not in key} for name in ("A10", "huge"))
CPUS = {"kubevirt.io/schedulable": "true", "kubernetes.io/arch": "amd64", "cpumanager": "true"}


@pytest.mark.parametrize(
    ("resources", "elsewhere", "labels", "expected"),
    [
        (HARDWARE, HARDWARE, CPUS, ("pinned", "CoScheduled")),
        (WITHOUT_GPU, HARDWARE, CPUS, ("preferred", "NodeFull")),
        (WITHOUT_PAGES, HARDWARE, CPUS, ("preferred", "NodeFull")),
        (WITHOUT_GPU, WITHOUT_GPU, CPUS, ("preferred", "Unjudged")),
        (HARDWARE, HARDWARE, CPUS | {"cpumanager": "false"}, ("preferred", "NodeMismatch")),
    ],
)
def test_a_vm_with_special_hardware_is_pinned_only_to_a_node_that_has_it(
    tmp_path: Path, resources: Any, elsewhere: Any, labels: Any, expected: tuple[str, str]
) -> None:
    nodes = node("node-a", allocatable=resources, labels=labels), node("node-b", allocatable=elsewhere, labels=CPUS)
    cluster = write_manifests(tmp_path, *storage(), *nodes, pod("user", claims=["disk1"], node="node-b"))
    options = "-n", "default", "-o", "json", "--snapshot", cluster
    (found,) = json.loads(run_cli("inject", "-f", paths.EXAMPLES / "hardware.yaml", *options).stdout)
    assert (found["decision"]["outcome"], found["decision"]["reason"]) == expected
