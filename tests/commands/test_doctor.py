"""`doctor` checks the cluster before an installation, and the installed webhook: one table row per finding."""

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from certs.controller import CertificateController
from certs.rotation import Policy
from tests.support.builders import (
    OPT_IN,
    Object,
    claim,
    node,
    pinned_vm_pod,
    pod,
    storage,
    virtual_machine,
    volume,
)
from tests.support.fake_api_server import ApiServer, body, error_response, status
from tests.support.fake_certificate_cluster import CONFIGURATION_PATH, NAMES, SECRET_PATH, FakeCertificateCluster
from tests.support.fleet import vm_pod, vmi
from tests.support.paths import DOCS
from tests.support.webhook_process import RIGHTS
from webhook import __version__
from webhook.cli import commands
from webhook.commands.doctor.before_installation import CHART_RESOURCES
from webhook.commands.doctor.run import AFTER, BEFORE, CONFIGURATION
from webhook.placement.affinity import DECISION

NAME = "kubevirt-scheduler"
LABELS = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/component": "webhook"}
ARGUMENTS = ["serve", f"--tls-secret={NAME}/{NAME}-tls", f"--webhook-configuration={NAME}", f"--lease={NAME}/{NAME}"]
CONTROLLER_LABELS = {"kubevirt.io": "virt-controller"}
READY = {"conditions": [{"type": "Ready", "status": "True"}], "phase": "Running"}
WITH_DECISION = body({"metadata": {"annotations": {DECISION: "a decision"}}}, 201)
POD_RULE = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
OPTED_IN = virtual_machine("vm1", "shop", annotations={OPT_IN: "true"})

RunDoctor = Callable[..., Result]


def named(kind: str, name: str, namespace: str = "", **rest: Any) -> Object:
    metadata = {"name": name, "labels": rest.pop("labels", {})} | ({"namespace": namespace} if namespace else {})
    return {"kind": kind, "metadata": metadata, **rest}


def deployment(version: str = __version__, **container: Any) -> Object:
    containers = [{"name": "webhook", "image": "webhook:1", "args": ARGUMENTS} | container]
    template = {"spec": {"containers": containers, "serviceAccountName": NAME}}
    labels = LABELS | {"app.kubernetes.io/version": version}
    return named("Deployment", NAME, NAME, labels=labels, spec={"replicas": 2, "template": template})


def replica(name: str, image: str = "webhook:1", **status: Any) -> Object:
    found = pod(name, NAME, labels=LABELS)
    found["spec"]["containers"] = [{"name": "w", "image": image, "ports": [{"name": "http", "containerPort": 8080}]}]
    return found | {"status": status or READY}


def cache(resource: str = "pods", age: float | None = 3.0) -> Object:
    return {"resource": resource, "synced": True, "objects": 1, "age": age, "problem": "", "required": True}


def readyz(*caches: Object, **problems: str) -> Any:
    return body({"status": "ok", "problems": problems, "caches": list(caches)})


def other_webhook(name: str, **webhook: Any) -> Object:
    return named("MutatingWebhookConfiguration", name, webhooks=[{"name": "a", "rules": [POD_RULE]} | webhook])


class Cluster:
    """A fake API server with a healthy installation of the chart. Tests break one thing each."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self.server, self.certificates = server, FakeCertificateCluster()
        own = {"secret": (NAME, f"{NAME}-tls"), "configuration": NAME, "policy": Policy(NAMES), "folder": folder}
        CertificateController(self.certificates, **own, now=lambda: datetime.now(UTC)).run_pass()
        self.configuration = deepcopy(self.certificates.objects[CONFIGURATION_PATH])
        self.configuration |= {"kind": "MutatingWebhookConfiguration"}
        vms, share_managers = self.configuration["webhooks"]
        vms |= {"objectSelector": {"matchLabels": {"kubevirt.io": "virt-launcher"}}}
        share_managers |= {"objectSelector": {"matchLabels": {"longhorn.io/component": "share-manager"}}}
        excluded = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", NAME]}
        for webhook in (vms, share_managers):
            webhook |= {"rules": [POD_RULE], "reinvocationPolicy": "IfNeeded"}
            webhook["namespaceSelector"] = {"matchExpressions": [excluded]}
        server.put(self.configuration, self.certificates.objects[SECRET_PATH] | {"kind": "Secret"})
        for name in ("default", "shop", "longhorn-system", "kube-system", NAME):
            server.put(named("Namespace", name, labels={"kubernetes.io/metadata.name": name}))
        server.put(
            named("Service", "webhook", NAME, spec={"selector": LABELS}), deployment(), replica("a"), replica("b")
        )
        server.put(named("Setting", "current-longhorn-version", "longhorn-system", value="v1.11.2"))
        server.put(
            named("KubeVirt", "kubevirt", "kubevirt", status={"observedKubeVirtVersion": "v1.9.0", "phase": "Deployed"})
        )
        server.put(
            named(
                "Pod",
                "controller",
                "kubevirt",
                labels=CONTROLLER_LABELS,
                spec={"serviceAccountName": "kubevirt-controller"},
            )
        )
        server.put(node(allocatable={"pods": "110"}), *storage(), OPTED_IN)
        server.script("list", "version", body({"gitVersion": "v1.36.3"}))
        server.script("post", "pods", WITH_DECISION)
        server.script("get", "pods", readyz(cache()), readyz(cache("nodes", 12.0)))

    def change_configuration(self, **changes: Any) -> None:
        """Change a field of each webhook."""
        for webhook in self.configuration["webhooks"]:
            webhook.update(changes)
        self.server.put(self.configuration)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ApiServer() as server:
        yield Cluster(server, tmp_path / "certificates")


@pytest.fixture
def run(cluster: Cluster, tmp_path: Path) -> RunDoctor:
    kubeconfig = cluster.server.kubeconfig(tmp_path)

    def run(*arguments: str) -> Result:
        result = CliRunner().invoke(commands, ["doctor", "--kubeconfig", kubeconfig, *arguments])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return run


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
    assert [line[0] for line in lines] == ["✓"] * 14
    assert (result.exit_code, result.stderr) == (0, "")
    assert cluster.server.count("list", "virtualmachines") == 1


def test_a_cluster_that_is_ready_for_the_chart_has_no_warning(run: RunDoctor, cluster: Cluster) -> None:
    result = run("--pre")
    assert result.stdout.splitlines() == [
        "✓ Kubernetes v1.36.3",
        "✓ KubeVirt v1.9.0",
        "✓ Longhorn v1.11.2",
        "✓ no known bug of Longhorn v1.11.2 concerns RWX volumes on these nodes",
        "✓ Longhorn claims with ReadWriteMany and volumeMode Filesystem: 1",
        "✓ no VM writes to an NFS volume through the page cache, and Longhorn's NFS server protects itself",
        f"✓ you have the rights to install the chart in namespace {NAME}",
    ]
    assert result.exit_code == 0
    reviews = [each for each in cluster.server.requests if each.plural == "selfsubjectaccessreviews"]
    assert len(reviews) == len(CHART_RESOURCES)
    asked = [each.body["spec"]["resourceAttributes"] for each in reviews]
    assert {each["resource"]: each.get("namespace") for each in asked} == {
        resource: NAME if namespaced else None for _, resource, namespaced in CHART_RESOURCES
    }


def remove(*items: Object) -> Callable[[Cluster], None]:
    return lambda cluster: cluster.server.delete(*items)


def put(*items: Object) -> Callable[[Cluster], None]:
    return lambda cluster: cluster.server.put(*items)


def script(verb: str, plural: str, *answers: Any) -> Callable[[Cluster], None]:
    def change(cluster: Cluster) -> None:
        cluster.server._scripts[verb, plural].clear()
        cluster.server.script(verb, plural, *answers)

    return change


def deny(*rights: tuple[str, str]) -> Callable[[Cluster], None]:
    return lambda cluster: cluster.server.denied_rights.update(rights)


def forbid(verb: str, plural: str) -> Callable[[Cluster], None]:
    return lambda cluster: cluster.server.forbidden.add((verb, plural))


def longhorn(version: str) -> Object:
    return named("Setting", "current-longhorn-version", "longhorn-system", value=version)


def kubevirt(phase: str, version: str = "v1.9.0") -> Object:
    return named("KubeVirt", "kubevirt", "kubevirt", status={"observedKubeVirtVersion": version, "phase": phase})


def linux(kernel: str) -> Object:
    found = node(allocatable={"pods": "110"})
    found["status"]["nodeInfo"] = {"kernelVersion": kernel}
    return found


def cached_vm(claim: str = "disk1", **disk: str) -> Object:
    """A VMI whose disk has these fields; without any, its claim is shared by virtiofs."""
    devices = {"disks": [{"name": "root"} | disk]} if disk else {"filesystems": [{"name": "root"}]}
    volumes = [{"name": "root", "persistentVolumeClaim": {"claimName": claim}}]
    return vmi() | {"spec": {"domain": {"devices": devices}, "volumes": volumes}}


# How the healthy cluster is changed, and the check, the level and the beginning of its finding.
Case = tuple[Callable[[Cluster], None], str, str, str]

BROKEN_BEFORE: dict[str, Case] = {
    "old Kubernetes": (
        script("list", "version", body({"gitVersion": "v1.29.9"})),
        "kubernetes",
        "failure",
        "Kubernetes v1.29.9",
    ),
    "no version": (script("list", "version", body({})), "kubernetes", "failure", "Kubernetes of an unknown version"),
    "no KubeVirt": (remove(kubevirt("")), "kubevirt", "failure", "KubeVirt is not installed"),
    "KubeVirt deploying": (put(kubevirt("Deploying")), "kubevirt", "warning", "KubeVirt v1.9.0 is in phase Deploying"),
    "old KubeVirt": (
        put(kubevirt("Deployed", "v1.5.2")),
        "kubevirt",
        "ok",
        "KubeVirt v1.5.2, with which recolocate cannot migrate VMs to their storage",
    ),
    "no Longhorn": (
        remove(longhorn("")),
        "longhorn",
        "failure",
        "Longhorn is not installed in namespace longhorn-system",
    ),
    "new Longhorn": (
        put(longhorn("v1.12.0-rc1")),
        "longhorn",
        "ok",
        "Longhorn v1.12.0-rc1, which deletes a VM's pod when it replaces the share-manager of a volume",
    ),
    "old Longhorn": (
        put(longhorn("v1.7.1")),
        "longhorn",
        "ok",
        "Longhorn v1.7.1, which deletes a VM's pod when it replaces the share-manager of a volume",
    ),
    "a new kernel": (
        put(linux("7.0.8-200.fc44.x86_64")),
        "known-bugs",
        "warning",
        'Longhorn v1.11.2: processes get "Remote I/O error" on RWX volumes (nodes with Linux 6.19 or newer: node-a)',
    ),
    "a new kernel, and Longhorn with the cure": (
        put(linux("7.0.8"), longhorn("v1.11.3")),
        "known-bugs",
        "ok",
        "no known bug of Longhorn v1.11.3",
    ),
    "Longhorn with a known bug": (
        put(longhorn("v1.10.1"), linux("6.12.0")),
        "known-bugs",
        "warning",
        "Longhorn v1.10.1: an RWX volume may stay in state attaching",
    ),
    "an old kernel": (
        put(linux("5.4.0-216-generic")),
        "loopback-nfs",
        "warning",
        "the kernel of nodes lacks PR_SET_IO_FLUSHER: 1 (node-a)",
    ),
    "Longhorn without the flusher": (
        put(longhorn("v1.7.2")),
        "loopback-nfs",
        "warning",
        "the NFS server of Longhorn v1.7.2 does not set PR_SET_IO_FLUSHER",
    ),
    "a cached disk": (
        put(cached_vm(cache="writeback")),
        "loopback-nfs",
        "warning",
        "VMs with a cached or virtiofs volume over NFS: 1 (default/vm1)",
    ),
    "virtiofs": (
        put(cached_vm()),
        "loopback-nfs",
        "warning",
        "VMs with a cached or virtiofs volume over NFS: 1 (default/vm1)",
    ),
    "a cached disk, and an old kernel": (
        put(cached_vm(cache="writeback"), linux("5.4.0")),
        "loopback-nfs",
        "failure",
        "VMs with a cached or virtiofs volume over NFS: 1 (default/vm1); the kernel of nodes lacks PR_SET_IO_FLUSHER",
    ),
    "a disk that bypasses the page cache": (
        put(cached_vm(cache="none")),
        "loopback-nfs",
        "ok",
        "no VM writes to an NFS volume through the page cache",
    ),
    "a cached disk that is no NFS volume": (
        put(cached_vm("other", cache="writeback")),
        "loopback-nfs",
        "ok",
        "no VM writes to an NFS volume through the page cache",
    ),
    "Block claims, and claims of one node and of another driver": (
        put(
            claim(volumeMode="Block"),
            *(claim("local", modes=["ReadWriteOnce"]), volume("local")),
            *(claim("other"), volume("other", driver="nfs.csi.k8s.io")),
        ),
        "claims",
        "warning",
        "Longhorn claims with ReadWriteMany and volumeMode Filesystem: none (Block: 1)",
    ),
    "no right to install": (
        deny(("create", "clusterroles"), ("create", "deployments")),
        "install-rights",
        "failure",
        "missing rights: create clusterroles, deployments",
    ),
}


@pytest.mark.parametrize("case", BROKEN_BEFORE.values(), ids=BROKEN_BEFORE)
def test_doctor_reports_a_problem_before_the_installation(run: RunDoctor, cluster: Cluster, case: Case) -> None:
    break_it, check, level, finding = case
    break_it(cluster)
    result = run("--pre", "-o", "json")
    (found,) = findings(result, check)
    assert found[0] == level
    assert found[1].startswith(finding)
    assert result.exit_code == {"failure": 1, "unknown": 2}.get(level, 0)


def distrust(cluster: Cluster) -> None:
    for webhook in cluster.configuration["webhooks"]:
        webhook["clientConfig"] |= {"caBundle": ""}
    cluster.server.put(cluster.configuration)


def select_namespaces(**labels: str) -> Callable[[Cluster], None]:
    return lambda cluster: cluster.change_configuration(namespaceSelector={"matchLabels": labels})


BROKEN: dict[str, Case] = {
    "not installed": (
        lambda cluster: cluster.server.delete(cluster.configuration),
        CONFIGURATION,
        "failure",
        'MutatingWebhookConfiguration "kubevirt-scheduler" not found',
    ),
    "configuration forbidden": (
        forbid("get", "mutatingwebhookconfigurations"),
        CONFIGURATION,
        "unknown",
        "not checked: mutatingwebhookconfigurations is forbidden",
    ),
    "a cached disk of an opted-in VM": (
        put(cached_vm(cache="writethrough"), virtual_machine(annotations={OPT_IN: "true"})),
        "loopback-nfs",
        "warning",
        "VMs with a cached or virtiofs volume over NFS: 1 (default/vm1)",
    ),
    "a cached disk of a VM that is not opted in": (
        put(cached_vm(cache="writethrough"), virtual_machine()),
        "loopback-nfs",
        "ok",
        "no VM writes to an NFS volume through the page cache",
    ),
    "no Deployment": (
        remove(deployment()),
        "replicas",
        "failure",
        "no Deployment matches the selector of Service kubevirt-scheduler/webhook",
    ),
    "no Service": (
        remove(named("Service", "webhook", NAME)),
        "replicas",
        "failure",
        "no Deployment matches the selector of Service kubevirt-scheduler/webhook",
    ),
    "one replica not ready": (
        put(replica("b", phase="Running")),
        "replicas",
        "warning",
        "1 of 2 replicas are ready",
    ),
    "no replica ready": (
        put(replica("a", phase="Pending"), replica("b", phase="Pending")),
        "replicas",
        "failure",
        "0 of 2 replicas are ready",
    ),
    "two images": (
        put(replica("b", image="webhook:2")),
        "replicas",
        "warning",
        "the replicas run different images: webhook:1, webhook:2",
    ),
    "a new image that does not start": (
        put(replica("c", image="webhook:2", phase="Pending")),
        "replicas",
        "warning",
        "the replicas run different images: webhook:1, webhook:2",
    ),
    "a rollout that waits": (
        put(replica("c", phase="Pending")),
        "replicas",
        "warning",
        "the rollout waits for replicas that are not ready: c",
    ),
    "another version": (
        put(deployment(version="9.9.9")),
        "replicas",
        "warning",
        f"the installed version is 9.9.9, but this command has version {__version__}",
    ),
    "a cache is stale": (
        script("get", "pods", readyz(cache()), readyz(cache("nodes", 400.0))),
        "caches",
        "warning",
        "b: nodes: no update from the API server for 400 s",
    ),
    "a cache has a problem": (
        script("get", "pods", readyz(cache(), pods="forbidden"), readyz()),
        "caches",
        "warning",
        "a: pods: forbidden",
    ),
    "a replica can't be asked": (
        script("get", "pods", error_response(status(503, "no route")), readyz()),
        "caches",
        "warning",
        "a: /readyz: the API server responded with 503: no route",
    ),
    "empty caBundle": (
        distrust,
        "certificates",
        "failure",
        "the caBundle of vms.kubevirt-scheduler, share-managers.kubevirt-scheduler does not trust",
    ),
    "no Secret": (
        lambda cluster: cluster.server.delete(cluster.certificates.objects[SECRET_PATH] | {"kind": "Secret"}),
        "certificates",
        "failure",
        "Secret kubevirt-scheduler/kubevirt-scheduler-tls not found",
    ),
    "Secret forbidden": (forbid("get", "secrets"), "certificates", "unknown", "not checked: "),
    "no Secret is mounted": (
        put(deployment(args=["serve"])),
        "certificates",
        "failure",
        "the replicas have no Secret with a certificate",
    ),
    "another account of KubeVirt's controller": (
        put(
            named("KubeVirt", "kubevirt", "virtualization"),
            named("Pod", "c", "virtualization", labels=CONTROLLER_LABELS, spec={"serviceAccountName": "controller"}),
        ),
        "accounts",
        "failure",
        "the webhook ignores the VMs of KubeVirt's controller, system:serviceaccount:virtualization:controller",
    ),
    "a condition for another account": (
        lambda cluster: cluster.change_configuration(
            matchConditions=[{"name": "from-kubevirt", "expression": "request.userInfo.username == 'a'"}]
        ),
        "accounts",
        "failure",
        "the webhook ignores the VMs of KubeVirt's controller, system:serviceaccount:kubevirt:kubevirt-controller",
    ),
    "a tenant's pod with the label of virt-controller": (
        put(named("Pod", "c", "shop", labels=CONTROLLER_LABELS, spec={})),
        "accounts",
        "ok",
        "the webhook decides for KubeVirt's controller, system:serviceaccount:kubevirt:kubevirt-controller",
    ),
    "no virt-controller": (
        remove(named("Pod", "controller", "kubevirt")),
        "accounts",
        "warning",
        "no virt-controller runs",
    ),
    "a VM without a decision": (
        put(vmi(), vm_pod(), vm_pod("tenant", suffix="a")),
        "undecided",
        "warning",
        "opted-in VMs started without a decision: 1 (default/vm1)",
    ),
    "a VM with a decision": (
        put(vmi(), vm_pod(decided="NodeFull")),
        "undecided",
        "ok",
        "every opted-in VM that started since the installation has a decision",
    ),
    "not called": (
        script("post", "pods", body({"metadata": {}}, 201)),
        "calls",
        "failure",
        "namespace default: the response lacks the annotation",
    ),
    "webhook down": (
        script("post", "pods", error_response(status(500, "failed calling webhook", "InternalError"))),
        "calls",
        "failure",
        "namespace default: cannot create the pod: failed calling webhook",
    ),
    "dry run forbidden": (
        script("post", "pods", error_response(status(403, "exceeded quota", "Forbidden"))),
        "calls",
        "warning",
        "namespace default: the API server rejected the pod: exceeded quota",
    ),
    "namespace not selected": (
        select_namespaces(team="a"),
        "selection",
        "failure",
        "the API server does not call the webhook for opted-in VMs: 1 (shop/vm1)",
    ),
    "no Longhorn namespace": (
        remove(named("Namespace", "longhorn-system")),
        "selection",
        "failure",
        'namespace "longhorn-system" not found',
    ),
    "another Longhorn namespace": (
        put(deployment(env=[{"name": "CO_SCHEDULE_LONGHORN_NAMESPACE", "value": "storage"}])),
        "selection",
        "failure",
        'namespace "storage" not found',
    ),
    "later webhook": (
        put(other_webhook("z-policy", rules=[POD_RULE | {"resources": ["jobs"]}, POD_RULE]), other_webhook("a-policy")),
        "other-webhooks",
        "ok",
        "the API server calls other webhooks for VMs after this one: 1 (z-policy/a); if they change a pod, it",
    ),
    "later webhook for others": (
        put(other_webhook("z-policy", objectSelector={"matchLabels": {"app": "web"}})),
        "other-webhooks",
        "ok",
        "the API server calls no other webhook for VMs after this one",
    ),
    "missing rights": (
        deny(("list", "nodes"), ("update", "leases"), ("get", "mutatingwebhookconfigurations")),
        "rights",
        "failure",
        f"system:serviceaccount:{NAME}:{NAME} lacks rights: list nodes, update leases, get mutatingwebhook",
    ),
    "reviews forbidden": (
        script("post", "subjectaccessreviews", error_response(status(403, "not you", "Forbidden"))),
        "rights",
        "unknown",
        "not checked: not you",
    ),
}


@pytest.mark.parametrize("case", BROKEN.values(), ids=BROKEN)
def test_doctor_reports_a_problem_of_the_installation(run: RunDoctor, cluster: Cluster, case: Case) -> None:
    break_it, check, level, finding = case
    break_it(cluster)
    result = run("-o", "json")
    found = findings(result, check)
    assert (level, finding) in [(each, text[: len(finding)]) for each, text in found], found
    if level == "failure":
        assert result.exit_code == 1
        assert check != "certificates" or "ok" not in [each for each, _ in found]


def test_a_replica_that_is_not_ready_is_reported_once(run: RunDoctor, cluster: Cluster) -> None:
    cluster.server.put(replica("b", phase="Running"))
    assert findings(run("-o", "json"), "replicas") == [("warning", "1 of 2 replicas are ready")]


def test_without_a_ready_replica_no_cache_is_up_to_date(run: RunDoctor, cluster: Cluster) -> None:
    cluster.server.put(replica("a", phase="Pending"), replica("b", phase="Pending"))
    assert findings(run("-o", "json"), "caches") == []


@pytest.mark.parametrize("release", ["true", "false"])
def test_the_right_to_delete_pods_is_needed_for_releases_only(run: RunDoctor, cluster: Cluster, release: str) -> None:
    cluster.server.put(deployment(env=[{"name": "CO_SCHEDULE_RELEASE", "value": release}]))
    cluster.server.denied_rights.add(("delete", "pods"))
    ((level, _),) = findings(run("-o", "json"), "rights")
    assert level == {"true": "failure", "false": "ok"}[release]


def test_a_replica_that_terminates_does_not_count(run: RunDoctor, cluster: Cluster) -> None:
    old = replica("c", image="webhook:0")
    old["metadata"]["deletionTimestamp"] = "2026-08-01T12:00:00Z"
    cluster.server.put(old)
    assert findings(run("-o", "json"), "replicas") == [("ok", "2 of 2 replicas are ready")]


def test_a_later_webhook_needs_reinvocation(run: RunDoctor, cluster: Cluster) -> None:
    cluster.server.put(other_webhook("z-policy"))
    cluster.change_configuration(reinvocationPolicy="Never")
    (found,) = findings(run("-o", "json"), "other-webhooks")
    assert found == ("warning", "the API server calls other webhooks for VMs after this one: 1 (z-policy/a)")


def test_a_webhook_that_only_observes_is_a_warning(run: RunDoctor, cluster: Cluster) -> None:
    cluster.server.put(deployment(env=[{"name": "CO_SCHEDULE_ACTION", "value": "observe"}]))
    finding = "the webhook runs in observe mode and changes no pod"
    assert findings(run("-o", "json"), "calls")[1:] == [("warning", finding)]


def test_vms_that_their_namespace_or_a_storage_class_opts_in_need_a_webhook_too(
    run: RunDoctor, cluster: Cluster
) -> None:
    disk = {"name": "disk", "persistentVolumeClaim": {"claimName": "disk1"}}
    by_class, opted_out = virtual_machine("by-class"), virtual_machine("no", "shop", annotations={OPT_IN: "false"})
    by_class["spec"]["template"]["spec"] = {"volumes": [disk]}
    annotated = {"apiVersion": "storage.k8s.io/v1", "metadata": {"name": "fast", "annotations": {OPT_IN: "true"}}}
    cluster.server.put(named("Namespace", "shop", labels={OPT_IN: "true"}), annotated | {"kind": "StorageClass"})
    cluster.server.put(virtual_machine("by-namespace", "shop"), by_class, opted_out, claim(storageClassName="fast"))
    cluster.change_configuration(namespaceSelector={"matchLabels": {"team": "a"}})
    unselected = "the API server does not call the webhook for opted-in VMs: "
    assert findings(run("-o", "json"), "selection")[0] == ("failure", f"{unselected}1 (shop/vm1)")
    cluster.server.put(deployment(env=[{"name": "CO_SCHEDULE_OPT_IN", "value": "namespace"}]))
    names = "default/by-class, shop/by-namespace, shop/vm1"
    report = run("-o", "json")
    assert findings(report, "selection")[0] == ("failure", f"{unselected}3 ({names})")
    cluster.server.denied_rights.update({("list", "namespaces"), ("watch", "storageclasses")})
    account = f"system:serviceaccount:{NAME}:{NAME}"
    missing = ("failure", f"{account} lacks rights: list namespaces, watch storageclasses")
    assert findings(run("-o", "json"), "rights") == [missing]


def test_steering_needs_a_webhook_for_share_manager_pods(run: RunDoctor, cluster: Cluster) -> None:
    expected = "the API server does not call the webhook for share-manager pods in namespace longhorn-system"
    cluster.configuration["webhooks"].pop()
    cluster.server.put(cluster.configuration)
    assert findings(run("-o", "json"), "selection")[-1] == ("failure", expected)
    cluster.server.put(deployment(env=[{"name": "CO_SCHEDULE_STEERING", "value": "false"}]))
    assert findings(run("-o", "json"), "selection") == [
        ("ok", "the selectors of the configuration include all opted-in VMs (1)")
    ]


def test_a_certificate_that_ends_soon_is_a_warning(run: RunDoctor, cluster: Cluster, tmp_path: Path) -> None:
    past = datetime.now(UTC) - timedelta(days=25)
    certificates = FakeCertificateCluster()
    own = {"secret": (NAME, f"{NAME}-tls"), "configuration": NAME, "policy": Policy(NAMES), "folder": tmp_path / "old"}
    CertificateController(certificates, **own, now=lambda: past).run_pass()
    cluster.server.put(certificates.objects[SECRET_PATH] | {"kind": "Secret"})
    levels = [level for level, _ in findings(run("-o", "json"), "certificates")]
    assert levels == ["failure", "failure", "warning"]  # the renewal is overdue, and no caBundle has this CA


def test_the_nodes_and_the_waiting_vms_are_reported(run: RunDoctor, cluster: Cluster) -> None:
    taint = {"key": "a", "effect": "PreferNoSchedule"}
    cluster.server.put(node("node-b", taints=[taint], allocatable={"pods": "2"}), node("node-c"))
    cluster.server.put(pod("one", node="node-b"), pod("two", node="node-b"))
    cluster.server.put(pinned_vm_pod())
    assert findings(run("-o", "json"), "nodes") == [
        ("warning", "nodes with a PreferNoSchedule taint: 1 of 3 (node-b)"),
        ("warning", "nodes with almost no pod capacity left: 1 (node-b: 0 of 2 free)"),
        ("warning", "pinned VMs that cannot be scheduled: 1 (default/vm1)"),
    ]


def test_vms_whose_scheduler_does_not_run_are_named(run: RunDoctor, cluster: Cluster) -> None:
    cluster.server.put(
        pinned_vm_pod(unschedulable=False, schedulerName="kubevirt-scheduler", phase="Pending"),
        pinned_vm_pod("new", vm="new", unschedulable=False, created=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"),
    )
    found = [finding for finding in findings(run("-o", "json"), "nodes") if "VM" in finding[1]]
    assert found == [("warning", "VM pods that no scheduler has evaluated: 1 (default/vm1: kubevirt-scheduler)")]


def test_the_checked_rights_are_the_documented_ones(run: RunDoctor, cluster: Cluster) -> None:
    run()
    reviews = [each.body["spec"] for each in cluster.server.requests if each.plural == "subjectaccessreviews"]
    asked = {
        (
            each["resourceAttributes"]["group"],
            each["resourceAttributes"]["resource"],
            each["resourceAttributes"]["verb"],
        )
        for each in reviews
        if "name" not in each["resourceAttributes"]
    }
    assert asked == {(group, resource, verb) for group, resource, verbs in RIGHTS for verb in verbs}
    assert {each["user"] for each in reviews} == {f"system:serviceaccount:{NAME}:{NAME}"}


def test_advice_is_printed_below_the_finding_with_its_page(
    run: RunDoctor, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    cluster.server.put(deployment(version="9.9.9"))
    lines = run().stdout.splitlines()
    position = next(number for number, line in enumerate(lines) if "9.9.9" in line)
    assert lines[position].startswith("\x1b[33m‼\x1b[0m ")
    assert lines[position + 1].startswith("    Use the command of the installed version")
    assert lines[position + 1].endswith("(docs/reference/doctor.md#replicas)")


def test_json_counts_the_levels_and_names_the_page(run: RunDoctor, cluster: Cluster) -> None:
    cluster.server.delete(cluster.configuration)
    report = json.loads(run("-o", "json").stdout)
    assert report["summary"] == {"ok": 0, "warning": 0, "failure": 1, "unknown": 0}
    assert report["checks"][0]["docs"] == f"docs/reference/doctor.md#{CONFIGURATION}"


def test_a_cluster_that_does_not_answer_exits_with_2(run: RunDoctor, cluster: Cluster) -> None:
    cluster.server.script("get", "mutatingwebhookconfigurations", error_response(status(500, "etcd is down")))
    result = run()
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "Error: the API server responded with 500: etcd is down\n"


def test_each_check_is_described_under_its_own_heading() -> None:
    headings = [
        line.removeprefix("## ")
        for line in (DOCS / "reference/doctor.md").read_text().splitlines()
        if line[:3] == "## "
    ]
    assert set(headings) == {*BEFORE, *AFTER, CONFIGURATION}
