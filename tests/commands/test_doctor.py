"""`doctor` checks the cluster before an installation, and the installed webhook: one table row per finding."""

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result

from certs.controller import CertificateController
from certs.files import InMemory
from tests.support.authority import issue_ca
from tests.support.builders import (
    OPT_IN,
    Object,
    catalog,
    claim,
    inject_request,
    node,
    pinned_vm_pod,
    pod,
    request,
    share_manager_pod,
    storage,
    virtual_machine,
    volume,
)
from tests.support.command_line import run_cli
from tests.support.fake_api_server import ApiServer, body, error_response, status
from tests.support.fake_certificate_cluster import CONFIGURATION_PATH, NAMES, SECRET_PATH, FakeCertificateCluster
from tests.support.fake_clock import CertificateClock, FakeClock
from tests.support.fleet import longhorn_volume, vm_pod, vmi
from tests.support.fleet import replica as volume_replica
from tests.support.paths import DOCS, EXAMPLES
from tests.support.webhook_process import RIGHTS
from webhook import __version__
from webhook.cluster.client import ClusterClient
from webhook.commands.doctor.command import AFTER, BEFORE, CONFIGURATION
from webhook.commands.doctor.probe import RETRY_INTERVAL, attempt, probe_pod, retry
from webhook.fleet.webhook import VM_WEBHOOK
from webhook.placement.affinity import DECISION
from webhook.placement.objects.longhorn import DELETES_PODS
from webhook.placement.reasons import Reason
from webhook.placement.settings import OPT_IN_ANNOTATIONS, Settings
from webhook.placement.wording import OBSERVED

NAME = "kubevirt-scheduler"
LABELS = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/component": "webhook"}
ARGUMENTS = ["serve", f"--tls-secret={NAME}/{NAME}-tls", f"--webhook-configuration={NAME}", f"--lease={NAME}/{NAME}"]
CONTROLLER_LABELS = {"kubevirt.io": "virt-controller"}
READY = {"conditions": [{"type": "Ready", "status": "True"}], "phase": "Running"}
REJECTED = {"type": "ReplicaFailure", "status": "True", "message": 'violates PodSecurity "restricted:latest"'}
WITH_DECISION = body({"metadata": {"annotations": {DECISION: "a decision"}}}, 201)

RunDoctor = Callable[..., Result]


def named(kind: str, name: str, namespace: str = "", **rest: Any) -> Object:
    metadata = {"name": name, "labels": rest.pop("labels", {})} | ({"namespace": namespace} if namespace else {})
    return {"kind": kind, "metadata": metadata, **rest}


CONTROLLER = named("Pod", "c", "kubevirt", labels=CONTROLLER_LABELS, spec={"serviceAccountName": "kubevirt-controller"})


def deployment(version: str = __version__, **container: Any) -> Object:
    containers = [{"name": "webhook", "image": "webhook:1", "args": ARGUMENTS} | container]
    template = {"spec": {"containers": containers, "serviceAccountName": NAME}}
    labels = LABELS | {"app.kubernetes.io/version": version}
    return named("Deployment", NAME, NAME, labels=labels, spec={"replicas": 2, "template": template})


def replica(name: str, **status: Any) -> Object:
    found = pod(name, NAME, labels=LABELS)
    found["spec"]["containers"] = [{"name": "w", "ports": [{"name": "http", "containerPort": 8080}]}]
    return found | {"status": status or READY}


def longhorn(version: str) -> Object:
    return named("Setting", "current-longhorn-version", "longhorn-system", value=version)


def kubevirt(version: str = "v1.9.0", phase: str = "Deployed") -> Object:
    return named("KubeVirt", "kubevirt", "kubevirt", status={"observedKubeVirtVersion": version, "phase": phase})


def cache(resource: str = "pods", age: float | None = 3.0) -> Object:
    return {"resource": resource, "synced": True, "objects": 1, "age": age, "problem": "", "required": True}


def readyz(*caches: Object, **problems: str) -> Any:
    return body({"status": "ok", "problems": problems, "caches": list(caches)})


def new_certificates(*passes: datetime) -> FakeCertificateCluster:
    """A webhook configuration, and a Secret that a replica has filled and renewed in these passes."""
    found = FakeCertificateCluster()
    own = {"secret": (NAME, f"{NAME}-tls"), "configuration": NAME, "names": NAMES, "served": InMemory()}
    clock = CertificateClock()
    controller = CertificateController(found, **own, now=clock)
    for clock.time in passes:
        controller.run_pass()
    return found


class Cluster:
    """A fake API server with a healthy installation of the chart. Tests break one thing each."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        now, minute = datetime.now(UTC), timedelta(minutes=1)
        # The old certificate expires in five days, which is no problem.
        certificates = new_certificates(now - timedelta(days=25), now - 6 * minute, now - 6 * minute, now, now)
        self.configuration = deepcopy(certificates.objects[CONFIGURATION_PATH])
        self.configuration |= {"kind": "MutatingWebhookConfiguration"}
        vms, share_managers = self.configuration["webhooks"]
        vms["name"] = VM_WEBHOOK
        excluded = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", NAME]}
        for webhook in (vms, share_managers):
            webhook |= {"namespaceSelector": {"matchExpressions": [excluded]}, "reinvocationPolicy": "IfNeeded"}
        server.put(self.configuration, certificates.objects[SECRET_PATH] | {"kind": "Secret"})
        for name in ("default", "shop", "longhorn-system", "kube-system", NAME):
            server.put(named("Namespace", name, labels={"kubernetes.io/metadata.name": name}))
        server.put(named("Service", "webhook", NAME, spec={"selector": LABELS}))
        server.put(deployment(), replica("a"), replica("b"), longhorn("v1.11.2"), kubevirt(), CONTROLLER)
        server.put(node(allocatable={"pods": "110"}), node("node-b"), *storage())
        server.put(virtual_machine("vm1", "shop", annotations={OPT_IN: "true"}))
        server.script("post", "pods", WITH_DECISION)
        server.script("get", "pods", readyz(cache()), readyz(cache("nodes", 12.0)))


Change = Callable[[Cluster], object]


@pytest.fixture
def cluster(server: ApiServer) -> Cluster:
    return Cluster(server)


@pytest.fixture
def run(cluster: Cluster, tmp_path: Path) -> RunDoctor:
    return partial(run_cli, "doctor", "--kubeconfig", cluster.server.kubeconfig(tmp_path))


def findings(result: Result, check: str) -> list[tuple[str, str]]:
    """The level and the text of each finding of a check."""
    checks = json.loads(result.stdout)["checks"]
    return [(each["level"], each["finding"]) for each in checks if each["check"] == check]


def test_a_healthy_installation_has_no_warning_and_exits_with_0(run: RunDoctor, cluster: Cluster) -> None:
    result = run()
    lines = result.stdout.splitlines()
    assert lines[:2] == [
        "✓ 2 of 2 replicas are ready",
        "✓ the caches of all ready replicas are up to date (oldest update: 12 s ago)",
    ]
    assert [line[0] for line in lines] == ["✓"] * 15
    assert (result.exit_code, result.stderr) == (0, "")
    assert cluster.server.count("list", "virtualmachines") == 1
    assert [line[0] for line in run("--pre").stdout.splitlines()] == ["✓"] * len(BEFORE)


def test_the_dry_run_is_that_of_the_virt_controller_that_runs(run: RunDoctor, cluster: Cluster) -> None:
    """Without the cluster, the chart accepts the accounts of several namespaces."""
    remove(kubevirt(), CONTROLLER)(cluster)
    for each in kubevirt(), CONTROLLER:
        cluster.server.put(each | {"metadata": each["metadata"] | {"namespace": "openshift-cnv"}})
    assert run().exit_code == 0
    account = "system:serviceaccount:openshift-cnv:kubevirt-controller"
    assert cluster.server.last("post", "pods").headers["impersonate-user"] == account


@pytest.mark.parametrize("forbidden", [False, True])
def test_without_an_installed_webhook_the_other_checks_go_on(
    run: RunDoctor, cluster: Cluster, *, forbidden: bool
) -> None:
    for change in AFTER_CASES["configuration forbidden" if forbidden else "not installed"][3:]:
        change(cluster)
    first, *others = [(each["check"], each["level"]) for each in json.loads(run("-o", "json").stdout)["checks"]]
    assert first == (CONFIGURATION, "unknown" if forbidden else "failure")
    assert others == [(name, "ok") for name in BEFORE if name != "rights"]


def put(*items: Object) -> Change:
    return lambda cluster: cluster.server.put(*items)


def remove(*items: Object) -> Change:
    return lambda cluster: cluster.server.delete(*items)


def script(verb: str, plural: str, *answers: Any) -> Change:
    def change(cluster: Cluster) -> None:
        cluster.server._scripts[verb, plural].clear()
        cluster.server.script(verb, plural, *answers)

    return change


def forbid(*rights: tuple[str, str]) -> Change:
    return lambda cluster: cluster.server.forbidden.update(rights)


def configure(**fields: Any) -> Change:
    """Change fields of each webhook."""

    def change(cluster: Cluster) -> None:
        for webhook in cluster.configuration["webhooks"]:
            webhook.update(fields)
        cluster.server.put(cluster.configuration)

    return change


def distrust(cluster: Cluster) -> None:
    for webhook in cluster.configuration["webhooks"]:
        webhook["clientConfig"] |= {"caBundle": ""}
    cluster.server.put(cluster.configuration)


def publish_another_ca(cluster: Cluster) -> None:
    for webhook in cluster.configuration["webhooks"]:
        own = b64decode(webhook["clientConfig"]["caBundle"])
        webhook["clientConfig"]["caBundle"] = b64encode(own + issue_ca(datetime.now(UTC)).certificate).decode()
    cluster.server.put(cluster.configuration)


def put_old_certificate(cluster: Cluster) -> None:
    old = new_certificates(datetime.now(UTC) - timedelta(days=25))
    cluster.server.put(old.objects[SECRET_PATH] | {"kind": "Secret"})


def linux(kernel: str) -> Object:
    found = node(allocatable={"pods": "110"})
    found["status"]["nodeInfo"] = {"kernelVersion": kernel}
    return found


def cached_vm(**disk: str) -> Change:
    """Run a VM whose disk has these fields; without any, its claim is shared by virtiofs."""
    devices = {"disks": [{"name": "root"} | disk]} if disk else {"filesystems": [{"name": "root"}]}
    volumes = [{"name": "root", "persistentVolumeClaim": {"claimName": "disk1"}}]
    return put(vmi() | {"spec": {"domain": {"devices": devices}, "volumes": volumes}}, vm_pod())


def runs_old_server(version: str) -> Change:
    """Let the share-manager of disk1 run the image of another version of Longhorn, and another pod use the volume."""
    server = share_manager_pod("vol-disk1", node="node-a")
    server["spec"]["containers"] = [{"name": "share-manager", "image": f"r:5000/share-manager:{version}@sha256:1.7.2"}]
    return put(server, vm_pod(), pod("backup", claims=["disk1"], node="node-a"))


def setting(name: str, value: str) -> Change:
    return put(deployment(env=[{"name": f"CO_SCHEDULE_{name}", "value": value}]))


def refusal(code: int, message: str) -> Any:
    return error_response(status(code, message))


OTHER_CLAIMS = [
    claim(volumeMode="Block"),
    *(claim("local", modes=["ReadWriteOnce"]), volume("local")),
    *(claim("other"), volume("other", driver="nfs.csi.k8s.io")),
]
OTHER_CONTROLLER = [
    named("KubeVirt", "kubevirt", "virtualization"),
    named("Pod", "c", "virtualization", labels=CONTROLLER_LABELS, spec={"serviceAccountName": "controller"}),
]
CONDITION = {"name": "from-kubevirt", "expression": "request.userInfo.username == 'a'"}
PENDING = [replica("a", phase="Pending"), replica("b", phase="Pending")]
ENDING = replica("c")
ENDING["metadata"]["deletionTimestamp"] = "2026-08-01T12:00:00Z"
OTHER_WEBHOOKS = [
    named("MutatingWebhookConfiguration", name, webhooks=[{"name": "a", "rules": [{"resources": [resource]}]}])
    for name, resource in (("z-policy", "pods/*"), ("z-jobs", "jobs"), ("a-policy", "pods"))
]
WEB = pod("web", claims=["disk1"], node="node-a", annotations={OPT_IN: "true"})
OPTED_IN_HERE = virtual_machine(annotations={OPT_IN: "true"})
EXHAUSTED = refusal(403, "exceeded quota")
NOT_OPTED_IN = put(vm_pod(opt_in=None))

# The check, the levels of its findings, words of one of them, and how the healthy cluster is changed.
Case = tuple[str, str, str, *tuple[Change, ...]]
BEFORE_CASES: dict[str, Case] = {
    "no KubeVirt": ("kubevirt", "failure", "not installed", remove(kubevirt())),
    "KubeVirt deploying": ("kubevirt", "warning", "phase Deploying", put(kubevirt(phase="Deploying"))),
    "old KubeVirt": ("kubevirt", "ok", "recolocate cannot migrate", put(kubevirt("v1.5.2"))),
    "the first KubeVirt with target nodes": ("kubevirt", "ok", "KubeVirt v1.6.0\n", put(kubevirt("v1.6.0"))),
    "no Longhorn": ("longhorn", "failure", "not installed in namespace longhorn-system", remove(longhorn(""))),
    "new Longhorn": ("longhorn", "ok", "may delete a VM's pod", put(longhorn("v1.12.0-rc1"))),
    "new Longhorn, with a setting that keeps the pods": (
        "longhorn", "ok", "Longhorn v1.12.0\n",
        put(longhorn("v1.12.0"), named("Setting", DELETES_PODS, "longhorn-system", value="false")),
    ),
    "an old share-manager": (
        "known-bugs", "warning", "share-managers of Longhorn v1.8.1 still run: 1: users", runs_old_server("v1.8.1")
    ),
    "an old share-manager, and Longhorn with the bug": (
        "known-bugs", "warning", "Longhorn v1.8.0: users", runs_old_server("v1.8.1"), put(longhorn("v1.8.0"))
    ),
    "a share-manager of an unknown version": ("known-bugs", "ok", "no known bug", runs_old_server("latest")),
    "a new kernel": ("known-bugs", "warning", "6.19 or newer: node-a)", put(linux("7.0.8-200.fc44.x86_64"))),
    "a new kernel, and Longhorn with the cure": (
        "known-bugs", "ok", "no known bug of Longhorn v1.11.3", put(linux("7.0.8"), longhorn("v1.11.3"))
    ),
    "an old kernel": ("loopback-nfs", "warning", "lacks PR_SET_IO_FLUSHER: 1 (node-a)", put(linux("5.4.0-216-gen"))),
    "Longhorn without the flusher": ("loopback-nfs", "warning", "v1.7.2 does not set", put(longhorn("v1.7.2"))),
    "virtiofs": ("loopback-nfs", "warning", "over NFS: 1 (default/vm1)", cached_vm()),
    "virtiofs, not opted in": ("loopback-nfs", "warning", "over NFS: 1 (default/vm1)", cached_vm(), NOT_OPTED_IN),
    "a cached disk, and an old kernel": (
        "loopback-nfs", "failure", "1 (default/vm1); the kernel", cached_vm(cache="writeback"), put(linux("5.4.0"))
    ),
    "an old share-manager without the flusher": (
        "loopback-nfs", "warning", "of Longhorn v1.7.2 still run: 1; they do not set", runs_old_server("v1.7.2")
    ),
    "a claim": ("claims", "ok", "volumeMode Filesystem: 1\n"),
    "claims of other kinds": ("claims", "warning", "none (Block: 1)", put(*OTHER_CLAIMS)),
    "no right to install": (
        "rights", "failure", f"in namespace {NAME}: create clusterroles, create leases",
        forbid(("create", "leases"), ("create", "clusterroles")),
    ),
}  # fmt: skip
AFTER_CASES: dict[str, Case] = {
    "not installed": (
        CONFIGURATION, "failure", "not installed",
        lambda it: it.server.delete(it.configuration), remove(deployment()),
    ),
    "stopped by deletion": (
        CONFIGURATION, "failure", f"does not call the webhook of Deployment {NAME}/{NAME}: Mutating",
        lambda it: it.server.delete(it.configuration),
    ),
    "replicas that Pod Security rejects": (
        "replicas", "failure", "0 of 2 replicas are ready, because the API server rejects their pods: violates Pod",
        put(deployment() | {"status": {"conditions": [REJECTED]}}), remove(replica("a")), remove(replica("b")),
    ),
    "configuration forbidden": (
        CONFIGURATION, "unknown", "not checked: the API server responded with 403: mutatingweb",
        forbid(("list", "mutatingwebhookconfigurations")),
    ),
    "a cached disk of an opted-in VM": (
        "loopback-nfs", "warning", "NFS: 1 (default/vm1)", cached_vm(cache="writethrough"), put(OPTED_IN_HERE)
    ),
    "a cached disk of another VM": ("loopback-nfs", "ok", "no VM writes", cached_vm(cache="writeback"), NOT_OPTED_IN),
    "a healthy replica elsewhere": (
        "data", "warning", "1 (default/vm1)", put(OPTED_IN_HERE, vm_pod(), longhorn_volume(), volume_replica("node-b"))
    ),
    "a healthy replica beside the share-manager": (
        "data", "ok", "none", put(OPTED_IN_HERE, vm_pod(), longhorn_volume(), volume_replica("node-a"))
    ),
    "no right to list replicas": (
        "data", "warning", "unknown", put(OPTED_IN_HERE, vm_pod(), longhorn_volume(), volume_replica("node-a")),
        forbid(("list", "replicas")),
    ),
    "a remote replica of a VM that is not opted in": (
        "data", "ok", "none", put(vm_pod(opt_in=None), longhorn_volume(), volume_replica("node-b"))
    ),
    "an opted-in pod": ("loopback-nfs", "ok", "opted-in pods with a volume over NFS: 1, and Longhorn", put(WEB)),
    "an opted-in pod, and an old kernel": (
        "loopback-nfs", "failure", "opted-in pods with a volume over NFS: 1 (default/web); the kernel",
        put(WEB, linux("5.4.0")),
    ),
    "an opted-in pod, and its old share-manager": (
        "loopback-nfs", "failure", "(default/web); share-managers of Longhorn v1.7.2 still run: 1",
        put(WEB), runs_old_server("v1.7.2"),
    ),
    "no Deployment": ("replicas", "failure", "no Deployment matches the selector", remove(deployment())),
    "one replica not ready": ("replicas", "warning", "1 of 2 replicas", put(replica("b", phase="Running"))),
    "no replica ready": ("replicas", "failure", "0 of 2 replicas", put(*PENDING)),
    "a replica that terminates": ("replicas", "ok", "2 of 2 replicas are ready", put(ENDING)),
    "a rollout that waits": ("replicas", "ok warning", "not ended: 3 replicas", put(replica("c", phase="Pending"))),
    "another version": ("replicas", "ok warning", "installed version is 9.9.9", put(deployment(version="9.9.9"))),
    "a cache is stale": (
        "caches", "warning", "b: nodes: no update from the API server for 400 s",
        script("get", "pods", readyz(cache()), readyz(cache("nodes", 400.0))),
    ),
    "a cache has a problem": (
        "caches", "warning", "a: pods: forbidden", script("get", "pods", readyz(cache(), pods="forbidden"), readyz())
    ),
    "a replica can't be asked": (
        "caches", "warning", "a: /readyz: the API server responded with 503: no route",
        script("get", "pods", refusal(503, "no route"), readyz()),
    ),
    "empty caBundle": ("certificates", "failure", f"{VM_WEBHOOK}, share-managers.{NAME} does not trust", distrust),
    "another CA is published": ("certificates", "warning ok", "differs from ca.crt in the Secret", publish_another_ca),
    "no Secret": (
        "certificates", "failure", f"Secret {NAME}/{NAME}-tls not found", remove(named("Secret", f"{NAME}-tls", NAME))
    ),
    "Secret forbidden": ("certificates", "unknown", "not checked: ", forbid(("get", "secrets"))),
    "no Secret is mounted": ("certificates", "failure", "have no Secret", put(deployment(args=["serve"]))),
    "an old certificate": ("certificates", "failure failure warning", "expires on", put_old_certificate),
    "another account": ("accounts", "failure", "virtualization:controller", put(*OTHER_CONTROLLER)),
    "a condition for another account": (
        "accounts", "failure", "kubevirt:kubevirt-controller", configure(matchConditions=[CONDITION])
    ),
    "no virt-controller": ("accounts", "warning", "no virt-controller runs", remove(CONTROLLER)),
    "a VM without a decision": (
        "undecided", "warning", "1 (default/vm1)", put(vmi(), vm_pod(), vm_pod("tenant", suffix="a"))
    ),
    "not called": ("calls", "failure", "lacks the annotation", script("post", "pods", body({"metadata": {}}, 201))),
    "webhook down": (
        "calls", "failure", "cannot create the pod: failed calling webhook",
        script("post", "pods", refusal(500, "failed calling webhook")),
    ),
    "dry run forbidden": ("calls", "warning", "rejected the pod: exceeded quota", script("post", "pods", EXHAUSTED)),
    "no Longhorn namespace": (
        "selection", "ok failure", '"longhorn-system" not found', remove(named("Namespace", "longhorn-system"))
    ),
    "another Longhorn namespace": (
        "selection", "ok failure", '"storage" not found', setting("LONGHORN_NAMESPACE", "storage")
    ),
    "an opt-in with a mistake": (
        "selection", "ok warning", "opt-in: 1 (shop/vm2); spec.template.metadata.annotations has kubevirt",
        put(virtual_machine("vm2", "shop", annotations={"kubevirt-scheduler/co-shedule": "true"})),
    ),
    "a second installation": (
        "other-webhooks", "failure ok", "installed more than once: kubevirt-scheduler, second",
        put(named("MutatingWebhookConfiguration", "second", webhooks=[{"name": VM_WEBHOOK, "rules": []}])),
    ),
    "a later webhook": ("other-webhooks", "ok", "1 are called after this one", put(*OTHER_WEBHOOKS)),
    "a later webhook without reinvocation": (
        "other-webhooks", "warning", "1 (z-policy/a)", put(*OTHER_WEBHOOKS), configure(reinvocationPolicy="Never")
    ),
    "missing rights": (
        "rights", "failure", "watch nodes, create events, delete pods, update leases, update mutatingwebhook",
        forbid(("watch", "nodes"), ("delete", "pods"), ("create", "events")),
        forbid(("update", "leases"), ("update", "mutatingwebhookconfigurations")),
    ),
    "no releases": ("rights", "ok", NAME, forbid(("delete", "pods")), setting("RELEASE", "false")),
    "no releases in observe mode": ("rights", "ok", NAME, forbid(("delete", "pods")), setting("ACTION", "observe")),
    "reviews forbidden": (
        "rights", "unknown", "not you", script("post", "subjectaccessreviews", refusal(403, "not you"))
    ),
    "reviews fail": (
        "rights", "unknown", "rights: not checked: the API server responded with 500: etcd",
        script("post", "subjectaccessreviews", refusal(500, "etcd")),
    ),
    "Secret unreadable": (
        "certificates", "unknown", "certificates: not checked: Secret", script("get", "secrets", refusal(500, "etcd"))
    ),
}  # fmt: skip
CASES = [
    pytest.param(*options, *case[:3], case[3:], id=name)
    for options, cases in ((("--pre",), BEFORE_CASES), (("",), AFTER_CASES))
    for name, case in cases.items()
]


@pytest.mark.parametrize(("option", "check", "levels", "words", "changes"), CASES)
def test_doctor_reports_a_problem(  # noqa: PLR0917 (the columns of the table)
    run: RunDoctor, cluster: Cluster, option: str, check: str, levels: str, words: str, changes: list[Change]
) -> None:
    for change in changes:
        change(cluster)
    result = run(*filter(None, [option]), "-o", "json")
    found = findings(result, check)
    assert " ".join(level for level, _ in found) == levels
    assert any(words in f"{finding}\n" for _, finding in found) or not found
    if option or "failure" in levels:
        assert result.exit_code == (1 if "failure" in levels else 2 if "unknown" in levels else 0)


def test_vms_that_their_namespace_or_a_storage_class_opts_in_need_a_webhook_too(
    run: RunDoctor, cluster: Cluster
) -> None:
    disk = {"name": "disk", "persistentVolumeClaim": {"claimName": "disk1"}}
    by_class, opted_out = virtual_machine("by-class"), virtual_machine("no", "shop", annotations={OPT_IN: "false"})
    by_class["spec"]["template"]["spec"] = {"volumes": [disk]}
    annotated = {"apiVersion": "storage.k8s.io/v1", "metadata": {"name": "fast", "annotations": {OPT_IN: "true"}}}
    cluster.server.put(named("Namespace", "shop", labels={OPT_IN: "true"}), annotated | {"kind": "StorageClass"})
    cluster.server.put(virtual_machine("by-namespace", "shop"), by_class, opted_out, claim(storageClassName="fast"))
    configure(namespaceSelector={"matchLabels": {"team": "a"}})(cluster)
    unselected = "the API server does not call the webhook for opted-in VMs: "
    assert findings(run("-o", "json"), "selection")[0] == ("failure", f"{unselected}1 (shop/vm1)")
    setting("OPT_IN", "namespace")(cluster)
    names = "default/by-class, shop/by-namespace, shop/vm1"
    assert findings(run("-o", "json"), "selection")[0] == ("failure", f"{unselected}3 ({names})")


def test_two_replicas_on_one_schedulable_node_are_reported(run: RunDoctor, cluster: Cluster) -> None:
    cluster.server.put(node("node-b", unschedulable=True))
    expected = ("warning", "2 replicas and only one schedulable node, node-a: a drain of it never ends")
    assert findings(run("-o", "json"), "nodes")[0] == expected
    cluster.server.put(node("node-b", taints=[{"key": "control-plane", "effect": "NoSchedule"}]))
    assert findings(run("-o", "json"), "nodes")[0] == expected
    cluster.server.put(node("node-b"))
    assert [level for level, _ in findings(run("-o", "json"), "nodes")] == ["ok"]


def test_tainted_and_crowded_nodes_are_reported(run: RunDoctor, cluster: Cluster) -> None:
    taint = {"key": "a", "effect": "PreferNoSchedule"}
    cluster.server.put(*(node(f"node-{letter}", taints=[taint]) for letter in "bcdef"), node("node-g"))
    cluster.server.put(*(node(name, allocatable={"pods": "10"}) for name in ("node-x", "node-y")))
    for name, number in {"node-a": 90, "node-x": 9, "node-y": 10}.items():
        cluster.server.put(*(pod(f"{name}-{index}", node=name) for index in range(number)))
    assert findings(run("-o", "json"), "nodes") == [
        ("warning", "nodes with a PreferNoSchedule taint: 5 of 9 (node-b, node-c, node-d, node-e, node-f)"),
        ("warning", "nodes with over 90% of their allocatable pods: 1 (node-y: 100%)"),
    ]


def test_running_vms_without_a_disk_are_failures_and_the_first_line_of_the_report(
    run: RunDoctor, cluster: Cluster, tmp_path: Path
) -> None:
    message = "0/1 nodes are available: 1 node(s) were unschedulable."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    refused = share_manager_pod() | {"status": {"phase": "Pending", "conditions": [condition]}}
    names = [f"vm{number}" for number in range(1, 7)]
    pods = [vm_pod(name, "node-a") for name in names]
    cluster.server.put(*storage()[:2], refused, *map(virtual_machine, names), *map(vmi, names), *pods)
    result = run("-o", "json")
    lost = [("failure", f"VM default/{name} runs without a disk") for name in names[:5]]
    assert findings(result, "disks") == [*lost, ("failure", "more VMs without a disk: 1")]
    assert result.exit_code == 1
    kubeconfig = cluster.server.kubeconfig(tmp_path)
    first = " ".join(run_cli("report", "-A", "-o", "wide", "--kubeconfig", kubeconfig).stdout.split())
    listed = ", ".join(f"default/{name}" for name in names[:5])
    why = "because the scheduler refuses its share-manager"
    assert first.startswith(f"6 VMs run without a disk, {why}: {listed} and 1 more ({message}).")
    explained = run_cli("explain", "vm", "vm1", "-n", "default", "--kubeconfig", kubeconfig).stdout
    assert "Its I/O hangs: the scheduler finds no node for its share-manager" in " ".join(explained.split())


def test_the_first_waiting_vms_are_reported_with_the_advice_of_the_report(
    run: RunDoctor, cluster: Cluster, tmp_path: Path
) -> None:
    names = [f"vm{number}" for number in range(1, 7)]
    other = pinned_vm_pod("other", vm="other", unschedulable=False, schedulerName=NAME)
    cluster.server.put(node(unschedulable=True), *map(virtual_machine, names), *map(vmi, names), vmi("other"), other)
    cluster.server.put(*(pinned_vm_pod(name, vm=name) for name in names))
    result = run("-o", "json")
    reasons = {"other": Reason.NOT_SCHEDULED} | dict.fromkeys(names[:4], Reason.NODE_CORDONED)
    waiting = [f"VM default/{name} waits: {reason}" for name, reason in reasons.items()]
    assert findings(result, "waiting") == [("warning", words) for words in (*waiting, "more VMs that wait: 2")]
    kubeconfig = cluster.server.kubeconfig(tmp_path)
    report = run_cli("report", "-A", "-o", "json", "--kubeconfig", kubeconfig)
    known = {(each["namespace"], each["name"]): each["advice"] for each in json.loads(report.stdout)["vms"]}
    advice = [each["advice"] for each in json.loads(result.stdout)["checks"] if each["check"] == "waiting"]
    assert advice[1:5] == [known["default", name] for name in names[:4]]
    assert f"it names {NAME}. " in advice[0]
    for name, last in zip(
        names, ("more VMs that wait: 1", f"VM default/vm6 waits: {Reason.NODE_CORDONED}"), strict=False
    ):
        cluster.server.delete(pinned_vm_pod(name, vm=name))
        assert findings(run("-o", "json"), "waiting")[-1] == ("warning", last)


def test_the_checked_rights_are_the_documented_ones(run: RunDoctor, cluster: Cluster) -> None:
    run()
    reviews = [each.body["spec"] for each in cluster.server.requests if each.plural == "subjectaccessreviews"]
    asked = [each["resourceAttributes"] for each in reviews]
    unnamed = {(each.get("group", ""), each["resource"], each["verb"]) for each in asked if "name" not in each}
    assert unnamed == {(group, resource, verb) for group, resource, verbs in RIGHTS for verb in verbs}
    assert {each["namespace"] for each in asked if each["resource"] == "sharemanagers"} == {"longhorn-system"}
    named_ones = {(each["resource"], each["namespace"], each["name"]) for each in asked if "name" in each}
    own = {("secrets", NAME, f"{NAME}-tls"), ("leases", NAME, NAME)}
    assert named_ones == own | {("mutatingwebhookconfigurations", "", NAME)}
    assert {each["user"] for each in reviews} == {f"system:serviceaccount:{NAME}:{NAME}"}


def test_a_namespace_that_does_not_exist_is_a_failure(run: RunDoctor) -> None:
    result = run("-n", "shpo", "-o", "json")
    assert findings(result, "calls") == [("failure", 'namespace "shpo" not found')]
    assert result.exit_code == 1


def test_advice_is_printed_below_the_finding_with_its_page_and_json_counts_the_levels(
    run: RunDoctor, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.server.put(deployment(version="9.9.9"))
    report = json.loads(run("-o", "json").stdout)
    assert report["summary"] == {"ok": 15, "warning": 1, "failure": 0, "unknown": 0}
    assert report["checks"][0]["docs"] == "docs/reference/doctor.md#replicas"
    monkeypatch.setenv("FORCE_COLOR", "1")
    lines = run().stdout.splitlines()
    position = next(number for number, line in enumerate(lines) if "9.9.9" in line)
    assert lines[position].startswith("\x1b[33m‼\x1b[0m ")
    assert re.fullmatch(r"    Use the command .* \(docs/reference/doctor\.md#replicas\)", lines[position + 1])


def test_advice_names_the_users_of_an_old_share_manager_and_what_cdi_needs_for_shared_claims(
    run: RunDoctor, cluster: Cluster
) -> None:
    """An upgrade of Longhorn changes no share-manager that runs: `doctor` said that there was no known bug."""
    runs_old_server("v1.8.1")(cluster)
    put(*OTHER_CLAIMS[1:])(cluster)
    assert "upgrades its server: VM default/vm1, pod default/backup " in run("--pre").stdout
    put(*OTHER_CLAIMS)(cluster)
    assert "nfsOptions" in run("--pre").stdout
    example = yaml.safe_load((EXAMPLES / "longhorn-rwx.yaml").read_text())
    assert {"nfsOptions", "migratable"} & set(example["parameters"]) == {"nfsOptions"}


@pytest.mark.parametrize("options", [[], ["--webhook-configuration", "co-scheduler"]])
def test_doctor_and_certs_find_a_release_of_another_name(cluster: Cluster, tmp_path: Path, options: list[str]) -> None:
    server, kubeconfig = cluster.server, ["--kubeconfig", cluster.server.kubeconfig(tmp_path)]
    secret = server.stored("secrets", (NAME, f"{NAME}-tls"))
    for renamed, name in ((cluster.configuration, "co-scheduler"), (secret | {"kind": "Secret"}, "co-scheduler-tls")):
        server.delete(renamed)
        server.put(renamed | {"metadata": renamed["metadata"] | {"name": name}})
    server.put(deployment(args=["serve", f"--tls-secret={NAME}/co-scheduler-tls"]))
    checked = run_cli("doctor", *options, *kubeconfig)
    assert (checked.exit_code, "every caBundle trusts the serving certificate" in checked.stdout) == (0, True)
    shown = run_cli("certs", "status", *options, *kubeconfig)
    assert (shown.exit_code, shown.stdout.splitlines()[0]) == (0, f"Secret {NAME}/co-scheduler-tls")
    assert run_cli("certs", "renew", "--yes", *options, *kubeconfig).exit_code == 0
    assert server.stored("secrets", (NAME, "co-scheduler-tls"))["data"] != secret["data"]


def test_a_cluster_that_does_not_answer_exits_with_2(run: RunDoctor, cluster: Cluster) -> None:
    cluster.server.script("list", "mutatingwebhookconfigurations", error_response(status(500, "etcd is down")))
    result = run()
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "Error: the API server responded with 500: etcd is down\n"


def test_each_check_is_described_under_its_own_heading() -> None:
    lines = (DOCS / "reference/doctor.md").read_text().splitlines()
    headings = {line.removeprefix("## ") for line in lines if line.startswith("## ")}
    assert headings == {*BEFORE, *AFTER, CONFIGURATION}


# --calls: the account of `helm test` creates the pod, and waits for a decision


def test_help_offers_no_check_that_fails_for_each_other_account() -> None:
    assert "--calls" not in run_cli("doctor", "--help").stdout


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (WITH_DECISION, 0),
        (body({"metadata": {}}, 201, Warning=f'299 - "{OBSERVED}NoClaims: it has none"'), 0),
        (body({"metadata": {}}, 201, Warning='299 - "would violate PodSecurity"'), 1),
    ],
    ids=["decided", "only observed", "a warning of another webhook"],
)
def test_own_calls_need_a_decision(run: RunDoctor, cluster: Cluster, answer: Any, code: int) -> None:
    script("post", "pods", answer)(cluster)
    result = run("--calls", "0", "-n", "shop", "--webhook-configuration", "co-scheduler")
    assert result.exit_code == code
    assert result.stdout.startswith("✓ the API server calls the webhook for VMs in namespace shop\n") is (code == 0)
    assert ("kubectl get mutatingwebhookconfiguration co-scheduler -o yaml" in result.stdout) is (code == 1)
    asked = cluster.server.last("post", "pods")
    assert (asked.path, asked.query) == ("/api/v1/namespaces/shop/pods", {"dryRun": "All"})


WITHOUT_DECISION = body({"metadata": {"annotations": {OPT_IN: "true"}}}, 201)
DOWN = refusal(500, "no endpoints available")


@pytest.mark.parametrize(
    ("answers", "decision", "problem", "seconds"),
    [
        ([DOWN, WITHOUT_DECISION, WITH_DECISION], "a decision", "", 2 * RETRY_INTERVAL),
        ([DOWN] * 100, "", "no endpoints available", 60 - RETRY_INTERVAL),
    ],
    ids=["until the webhook responds", "until the timeout"],
)
def test_calls_are_retried(  # noqa: PLR0917 (the columns of the table)
    cluster: Cluster, tmp_path: Path, answers: list[Any], decision: str, problem: str, seconds: float
) -> None:
    script("post", "pods", *answers)(cluster)
    client, clock = ClusterClient.connect(cluster.server.kubeconfig(tmp_path)), FakeClock(0.0)
    found = retry(partial(attempt, client, "shop", OPT_IN), 60.0, clock, clock.sleep)
    assert (found[0], problem in found[1]) == (decision, True)
    assert seconds <= clock.now <= seconds + RETRY_INTERVAL


@pytest.mark.parametrize("code", [403, 422])
def test_a_rejected_pod_is_not_retried(run: RunDoctor, cluster: Cluster, code: int) -> None:
    script("post", "pods", refusal(code, "no"), WITH_DECISION)(cluster)
    result = run("--calls", "60")
    assert (result.exit_code, result.stderr) == (2, "Error: the API server rejected the pod: no\n")


@pytest.mark.parametrize("key", OPT_IN_ANNOTATIONS)
def test_the_webhook_records_a_decision_on_the_probe_pod(key: str) -> None:
    (container,) = probe_pod(key)["spec"]["containers"]
    for amounts in container["resources"].values():  # a ResourceQuota may require each of them
        assert set(amounts) == {"cpu", "memory"}
    decision = inject_request(request(probe_pod(key)), catalog(), Settings()).decision
    assert (decision.recorded, decision.reason) == (True, Reason.NO_SHARE_MANAGER)
