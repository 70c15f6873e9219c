"""A real control plane on loopback: etcd, API server, controller manager, schedulers, and kwok in place of kubelets."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from tests.support.controlplane import build, programs, rights
from tests.support.controlplane.api import LOOPBACK, Api, ApiError, Object
from tests.support.controlplane.process import STARTED, Process, ProcessError, free_ports
from tests.support.controlplane.proxy import Address, EgressProxy

T = TypeVar("T")
LONGEST = 300  # seconds for a command: Helm's own `--timeout`; kubectl has none
EVENTS, LINES = 20, 8  # of the cluster, and of each program's log, are told where something was waited for in vain


class ControlPlane(Api):
    """One control plane: `with ControlPlane(folder) as plane`. The logs of its programs stay in the folder."""

    def __init__(self, folder: Path) -> None:
        folder = folder.resolve()
        port, etcd_port, *self._other_ports = free_ports(5)
        super().__init__(port, folder / programs.CERTIFICATES / "apiserver.crt", secrets.token_hex(16))
        self.folder = folder
        self.kubeconfig = folder / programs.KUBECONFIG
        self.etcd_url = f"http://{LOOPBACK}:{etcd_port}"
        self.binaries = build.binaries()
        self.processes: dict[str, Process] = {}
        # Not in the folder: the path of a Unix socket may have about a hundred characters, and pytest's are long.
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
        """Start everything and return when all of it is healthy; raise ProcessError with the log of what is not."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.write_kubeconfig(self.kubeconfig)
        programs.write_files(self.folder, self.token, self._socket_folder / "proxy")
        self._start("etcd", "etcd", programs.etcd(self.etcd_url), f"{self.etcd_url}/health").wait_until_healthy()
        arguments = programs.apiserver(self.port, self.etcd_url)
        self._start("kube-apiserver", "kube-apiserver", arguments, f"{self.url}/readyz").wait_until_healthy()
        self._start_clients(*self._other_ports)

    def stop(self) -> None:
        """End what was started, by pid, the last one first."""
        for process in reversed(self.processes.values()):
            process.kill()
        self._proxy.stop()
        shutil.rmtree(self._socket_folder, ignore_errors=True)
        # Its write-ahead log alone takes 128 MB, and pytest keeps the folders of three runs.
        shutil.rmtree(self.folder / "etcd", ignore_errors=True)

    def stop_apiserver(self) -> None:
        """Take the API server away at once, as a crash does."""
        self.processes["kube-apiserver"].kill()

    def start_apiserver(self) -> None:
        """Bring the API server back, at the same port and with the same certificate, and return when all is healthy.

        Its clients are started anew. Left alone they need up to a minute to come back (measured 20 to 50 s: client-go
        waits ever longer between its tries), and a scheduler that could not renew its lease has ended itself.
        """
        apiserver = self.processes["kube-apiserver"]
        clients = [process for name, process in self.processes.items() if name not in ("etcd", apiserver.name)]
        for process in clients:
            process.kill()
        apiserver.start()
        apiserver.wait_until_healthy()
        for process in clients:
            # Else a scheduler would wait 15 s for the lease that it holds itself, under another identity.
            with suppress(ApiError):
                self.request("DELETE", f"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{process.name}")
            process.start()
        for process in clients:
            process.wait_until_healthy()

    def start_scheduler(self, name: str, leader_elect: bool = True, profile: Object | None = None) -> Process:
        """Start another kube-scheduler, for the pods that name it; one that runs already is returned as it is."""
        if name not in self.processes or not self.processes[name].alive:
            self._start_scheduler(name, free_ports(1)[0], leader_elect, profile).wait_until_healthy()
        return self.processes[name]

    def compact_etcd(self) -> None:
        """Forget all but the newest revision: a watch from an older one gets 410, once the API server has restarted."""
        revision = self._ask_etcd("range", {"key": "AA=="})["header"]["revision"]
        self._ask_etcd("compaction", {"revision": revision, "physical": True})

    def kubectl(self, *arguments: str, input: str | None = None) -> str:  # noqa: A002 - as subprocess.run calls it
        """Run kubectl as the administrator and return what it printed; raise RuntimeError with its complaint."""
        return self._run("kubectl", arguments, input)

    def helm(self, *arguments: str, input: str | None = None) -> str:  # noqa: A002 - as subprocess.run calls it
        """Run Helm as the administrator, as `kubectl` does."""
        return self._run("helm", arguments, input)

    def wait(self, predicate: Callable[[], T], seconds: float, what: str) -> T:
        """Poll until the predicate returns something true, and return that; a failed request means not yet.

        In vain, it tells the last that was seen, what the cluster has said since, and the end of each program's log.
        """
        deadline = time.monotonic() + seconds
        last: object = None
        while True:
            try:
                if value := predicate():
                    return value
                last = value
            except (ApiError, OSError, http.client.HTTPException) as error:
                last = error
            self._tend()
            if time.monotonic() > deadline:
                raise self._explained(AssertionError(f"not within {seconds:g} s: {what}; last seen: {last!r}"))
            time.sleep(0.05)

    def create_namespace(self, name: str) -> str:
        """Create a namespace and return its name once pods can be created in it: they need its ServiceAccount."""
        self.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        self.wait(lambda: self.request("GET", account), 30, f"the default ServiceAccount of namespace {name}")
        return name

    def delete_pods(self, path: str) -> None:
        """Delete all pods of a collection; where one request does not last for so many, the next one goes on."""
        self.wait(lambda: self.request("DELETE", f"{path}?gracePeriodSeconds=0"), 120, f"the end of all of {path}")

    def service_account_token(self, namespace: str, name: str) -> str:
        """Return a token of a ServiceAccount, good for an hour, once the API server knows what it may do."""
        self.wait(lambda: rights.are_known(self, namespace, name), 20, f"the rights of {namespace}/{name}")
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        return str(self.request("POST", path, {"spec": {}})["status"]["token"])

    def route(self, host: str, port: int, *targets: Address) -> None:
        """Let the API server's calls to this cluster IP or name, at this port, end at these targets in turn."""
        self._proxy.routes[host, port] = targets

    def hang_up(self, host: str, port: int) -> None:
        """End the API server's idle connections to this cluster IP, so that its next call shakes hands anew."""
        self._proxy.hang_up((host, port))

    def dialled(self, *targets: Address) -> int:
        """How many connections the API server has opened to these so far."""
        return sum(self._proxy.dialled[target] for target in targets)

    def route_service(self, namespace: str, name: str, *targets: Address) -> None:
        """The same for every port of a Service that exists."""
        spec = self.request("GET", f"/api/v1/namespaces/{namespace}/services/{name}")["spec"]
        for port in spec["ports"]:
            self.route(spec["clusterIP"], port["port"], *targets)

    def _start_clients(self, controllers_port: int, kwok_port: int, scheduler_port: int) -> None:
        name = "kube-controller-manager"
        arguments = programs.controller_manager(controllers_port, self.ca)
        controllers = self._start(name, name, arguments, f"https://{LOOPBACK}:{controllers_port}/healthz")
        arguments = programs.kwok(kwok_port, self.binaries[build.STAGES])
        kwok = self._start("kwok", "kwok", arguments, f"http://{LOOPBACK}:{kwok_port}/healthz")
        scheduler = self._start_scheduler("default-scheduler", scheduler_port, leader_elect=False)
        for process in controllers, kwok, scheduler:
            process.wait_until_healthy()

    def _start_scheduler(self, name: str, port: int, leader_elect: bool, profile: Object | None = None) -> Process:
        arguments = programs.scheduler(self.folder, port, name, leader_elect, profile)
        return self._start(name, "kube-scheduler", arguments, f"https://{LOOPBACK}:{port}/healthz")

    def _start(self, name: str, program: str, arguments: list[str], health: str) -> Process:
        self.processes[name] = Process(name, [str(self.binaries[program]), *arguments], health, self.folder)
        self.processes[name].start()
        return self.processes[name]

    def _tend(self) -> None:
        """Complain of a program that ended by itself, unless the API server was taken away from it."""
        away = not self.processes["kube-apiserver"].wanted
        for process in list(STARTED):
            if process.died and not away:
                raise ProcessError(process.obituary())

    def _explained(self, error: AssertionError) -> AssertionError:
        try:
            newest_last = "--sort-by=.metadata.creationTimestamp"
            events = self.kubectl("get", "events", "--all-namespaces", newest_last, "--request-timeout=5s")
            error.add_note("\n".join(["last events:", *events.splitlines()[-EVENTS:]]))
        except (RuntimeError, subprocess.TimeoutExpired) as reason:  # the API server may be away
            error.add_note(f"no events: {reason}")
        for process in list(STARTED):
            error.add_note(f"{process.name} {'runs' if process.alive else 'has ended'}; {process.tail(LINES)}")
        return error

    def _run(self, program: str, arguments: tuple[str, ...], text: str | None) -> str:
        # What they would keep in the home folder (discovery, repositories) stays in ours.
        homes = ("KUBECACHEDIR", "HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")
        environment = os.environ | {home: str(self.folder / "cache" / home) for home in homes}
        command = [str(self.binaries[program]), f"--kubeconfig={self.kubeconfig}", *arguments]
        done = subprocess.run(
            command, input=text, env=environment, capture_output=True, text=True, check=False, timeout=LONGEST
        )
        if done.returncode:
            raise RuntimeError(f"`{program} {' '.join(arguments)}`: {done.stderr.strip()}")
        return done.stdout

    def _ask_etcd(self, what: str, body: Object) -> Object:
        request = urllib.request.Request(f"{self.etcd_url}/v3/kv/{what}", json.dumps(body).encode())
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=10) as answer:
            found: Object = json.load(answer)
        return found
