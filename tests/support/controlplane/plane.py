"""A real control plane on loopback: etcd, API server, controller manager, schedulers, and kwok in place of kubelets."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from tests.support.controlplane import build, programs, rights
from tests.support.controlplane.api import LOOPBACK, Api, ApiError, Object
from tests.support.controlplane.process import STARTED, Process, ProcessError, free_ports
from tests.support.controlplane.proxy import Address, EgressProxy

T = TypeVar("T")
COMMAND_TIMEOUT = 300  # seconds for kubectl and helm: the default of Helm's `--timeout`; kubectl has no timeout
PATIENCE = 3  # a wait takes so many times longer on a busy machine than its test allows
LAST_EVENTS, LOG_LINES = 20, 8  # of the cluster, and of each program's log, in the error of a failed wait


class ControlPlane(Api):
    """A control plane: `with ControlPlane(folder) as plane`. The logs of its programs remain in the folder."""

    def __init__(self, folder: Path) -> None:
        folder = folder.resolve()
        port, self.etcd_port, self.scheduler_port, *self._other_ports = free_ports(5)
        super().__init__(port, folder / programs.CERTIFICATES / "apiserver.crt", secrets.token_hex(16))
        self.folder = folder
        self.kubeconfig = folder / programs.KUBECONFIG
        self.etcd_url = f"http://{LOOPBACK}:{self.etcd_port}"
        self._etcd_connection = http.client.HTTPConnection(LOOPBACK, self.etcd_port, timeout=10)
        self._revision, self._etcd_lock = (0, ""), threading.RLock()
        self.binaries = build.binaries()
        self.processes: dict[str, Process] = {}
        # Not in `folder`: a Unix socket's path is limited to about a hundred characters, and pytest's paths are long.
        self._socket_folder = Path(tempfile.mkdtemp(prefix="egress-"))
        self._proxy = EgressProxy(self._socket_folder / "proxy")

    def __enter__(self) -> ControlPlane:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start all programs and return when they are healthy. Raises ProcessError with the log of one that is not."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.write_kubeconfig(self.kubeconfig)
        programs.write_files(self.folder, self.token, self._socket_folder / "proxy")
        self._start("etcd", "etcd", programs.etcd(self.etcd_url), f"{self.etcd_url}/health").wait_until_healthy()
        arguments = programs.apiserver(self.port, self.etcd_url)
        self._start("kube-apiserver", "kube-apiserver", arguments, f"{self.url}/readyz").wait_until_healthy()
        self._start_clients(*self._other_ports)

    def stop(self) -> None:
        """Kill the started programs by pid, in reverse order."""
        self.close_idle_connections()
        self._etcd_connection.close()
        for process in reversed(self.processes.values()):
            process.kill()
        self._proxy.stop()
        shutil.rmtree(self._socket_folder, ignore_errors=True)
        # The write-ahead log alone takes 128 MB, and pytest retains the folders of three runs.
        shutil.rmtree(self.folder / "etcd", ignore_errors=True)

    def stop_apiserver(self) -> None:
        """Kill the API server, as in a crash."""
        self.processes["kube-apiserver"].kill()

    def start_apiserver(self) -> None:
        """Start the API server on its old port with its old certificate, and return when all programs are healthy.

        Its clients are restarted. Otherwise they need up to a minute to reconnect (measured 20 to 50 s, because
        client-go backs off), and a scheduler that could not renew its lease has exited.
        """
        apiserver = self.processes["kube-apiserver"]
        clients = [process for name, process in self.processes.items() if name not in ("etcd", apiserver.name)]
        for process in clients:
            process.kill()
        apiserver.start()
        apiserver.wait_until_healthy()
        for process in clients:
            # Otherwise a restarted scheduler waits 15 s for its own old lease, which has another identity.
            with suppress(ApiError):
                self.request("DELETE", f"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{process.name}")
            process.start()
        for process in clients:
            process.wait_until_healthy()

    def start_scheduler(
        self, name: str, leader_elect: bool = True, profile: Object | None = None, extender: Object | None = None
    ) -> Process:
        """Start another kube-scheduler, for the pods that name it. Returns the existing one if it is running."""
        if name not in self.processes or not self.processes[name].alive:
            more = {
                "profiles": [{"schedulerName": name} | (profile or {})],
                "extenders": [extender] if extender else [],
            }
            self._start_scheduler(name, free_ports(1)[0], leader_elect, more).wait_until_healthy()
        return self.processes[name]

    @contextmanager
    def stopped_scheduler(self) -> Iterator[None]:
        """Stop the default scheduler inside the block."""
        scheduler = self.processes["default-scheduler"]
        scheduler.kill()
        try:
            yield
        finally:
            scheduler.start()
            scheduler.wait_until_healthy()

    def compact_etcd(self) -> None:
        """Drop all but the newest revision. Once the API server has restarted, a watch from an older one gets 410."""
        with self._etcd_lock:
            self._etcd("compaction", {"revision": self.revision(-1), "physical": True})

    def revision(self, turn: int) -> str:
        """Return etcd's revision, which grows with each change of an object. Callers with the same turn share it."""
        with self._etcd_lock:
            if turn != self._revision[0]:
                found = self._etcd("range", {"key": "AA==", "serializable": True})
                self._revision = turn, str(found["header"]["revision"])
            return self._revision[1]

    def _etcd(self, what: str, body: Object) -> Object:
        connection = self._etcd_connection
        try:
            connection.request("POST", f"/v3/kv/{what}", json.dumps(body))
            found: Object = json.load(connection.getresponse())
        except BaseException:
            connection.close()  # another call opens another one
            raise
        return found

    def kubectl(self, *arguments: str, input: str | None = None) -> str:  # noqa: A002 - as subprocess.run calls it
        """Run kubectl as the administrator and return its output. Raises RuntimeError with its stderr."""
        return self._run_as_admin("kubectl", arguments, input)

    def helm(self, *arguments: str, input: str | None = None) -> str:  # noqa: A002 - as subprocess.run calls it
        """Run Helm as the administrator and return its output. Raises RuntimeError with its stderr."""
        return self._run_as_admin("helm", arguments, input)

    def wait(self, predicate: Callable[[], T], seconds: float, what: str) -> T:
        """Poll until the predicate returns a true value, and return that value. A failed request counts as false.

        After PATIENCE times `seconds`, raises AssertionError with the last value, the newest events and the end of each
        program's log. Raises ProcessError if a program dies.
        """
        seconds *= PATIENCE
        began = time.monotonic()
        deadline = began + seconds
        last: object = None
        while True:
            try:
                if value := predicate():
                    return value
                last = value
            except (ApiError, OSError, http.client.HTTPException) as error:
                last = error
            self._raise_if_a_program_died()
            if (now := time.monotonic()) > deadline:
                raise self._with_diagnostics(AssertionError(f"not within {seconds:g} s: {what}; last seen: {last!r}"))
            time.sleep(min(0.05 + (now - began) / 20, 0.3))  # the longer the wait, the less a late end matters

    def create_namespace(self, name: str) -> str:
        """Create a namespace and return its name once it has the ServiceAccount that pods need."""
        self.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        self.wait(lambda: self.request("GET", account), 30, f"the default ServiceAccount of namespace {name}")
        return name

    def delete_pods(self, path: str) -> None:
        """Delete all pods of a collection. If one request times out before all are deleted, the next one continues."""
        self.wait(lambda: self.request("DELETE", f"{path}?gracePeriodSeconds=0"), 120, f"the end of all of {path}")

    def service_account_token(self, namespace: str, name: str) -> str:
        """Return a token of a ServiceAccount, valid for an hour, once the API server grants its rights."""
        self.wait(lambda: rights.are_effective(self, namespace, name), 20, f"the rights of {namespace}/{name}")
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        return str(self.request("POST", path, {"spec": {}})["status"]["token"])

    def route(self, host: str, port: int, *targets: Address) -> None:
        """Route the API server's calls to this port of a cluster IP or name to the targets, round robin."""
        self._proxy.routes[host, port] = targets

    def close_connections(self, host: str, port: int) -> None:
        """Close the API server's idle connections to this cluster IP, so that its next call needs a new handshake."""
        self._proxy.close_connections((host, port))

    def connections_opened(self, *targets: Address) -> int:
        """Return how many connections the API server has opened to these targets so far."""
        return sum(self._proxy.connections_opened[target] for target in targets)

    def route_service(self, namespace: str, name: str, *targets: Address) -> str:
        """Route every port of an existing Service to the targets, round robin. Return the Service's cluster IP."""
        spec = self.request("GET", f"/api/v1/namespaces/{namespace}/services/{name}")["spec"]
        for port in spec["ports"]:
            self.route(spec["clusterIP"], port["port"], *targets)
        return str(spec["clusterIP"])

    def _start_clients(self, controller_manager_port: int, kwok_port: int) -> None:
        name = "kube-controller-manager"
        arguments = programs.controller_manager(controller_manager_port, self.ca)
        controller_manager = self._start(name, name, arguments, f"https://{LOOPBACK}:{controller_manager_port}/healthz")
        arguments = programs.kwok(kwok_port, self.binaries[build.STAGES])
        kwok = self._start("kwok", "kwok", arguments, f"http://{LOOPBACK}:{kwok_port}/healthz")
        scheduler = self._start_scheduler("default-scheduler", self.scheduler_port, leader_elect=False)
        for process in controller_manager, kwok, scheduler:
            process.wait_until_healthy()

    def _start_scheduler(self, name: str, port: int, leader_elect: bool, more: Object | None = None) -> Process:
        arguments = programs.scheduler(self.folder, port, name, leader_elect, more or {})
        return self._start(name, "kube-scheduler", arguments, f"https://{LOOPBACK}:{port}/healthz")

    def _start(self, name: str, program: str, arguments: list[str], health: str) -> Process:
        self.processes[name] = Process(name, [str(self.binaries[program]), *arguments], health, self.folder)
        self.processes[name].start()
        return self.processes[name]

    def _raise_if_a_program_died(self) -> None:
        """Raise ProcessError for a program that died, unless the API server was stopped on purpose."""
        stopped_on_purpose = not self.processes["kube-apiserver"].should_run
        for process in list(STARTED):
            if process.died and not stopped_on_purpose:
                raise ProcessError(process.exit_report())

    def _with_diagnostics(self, error: AssertionError) -> AssertionError:
        try:
            newest_last = "--sort-by=.metadata.creationTimestamp"
            events = self.kubectl("get", "events", "--all-namespaces", newest_last, "--request-timeout=5s")
            error.add_note("\n".join(["last events:", *events.splitlines()[-LAST_EVENTS:]]))
        except (RuntimeError, subprocess.TimeoutExpired) as reason:  # the API server may be away
            error.add_note(f"no events: {reason}")
        for process in list(STARTED):
            error.add_note(f"{process.name} {'runs' if process.alive else 'has exited'}; {process.tail(LOG_LINES)}")
        return error

    def _run_as_admin(self, program: str, arguments: tuple[str, ...], text: str | None) -> str:
        # Discovery and repository caches go into `folder` instead of the home folder.
        variables = ("KUBECACHEDIR", "HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")
        environment = os.environ | {variable: str(self.folder / "cache" / variable) for variable in variables}
        environment["GOGC"] = "off"  # a short-lived process: saves a quarter of its CPU time
        command = [str(self.binaries[program]), f"--kubeconfig={self.kubeconfig}", *arguments]
        result = subprocess.run(
            command, input=text, env=environment, capture_output=True, text=True, check=False, timeout=COMMAND_TIMEOUT
        )
        if result.returncode:
            raise RuntimeError(f"`{program} {' '.join(arguments)}`: {result.stderr.strip()}")
        return result.stdout
