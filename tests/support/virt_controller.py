"""A fake virt-controller on a real API server. It restarts VMs as the real one was seen to do.

When the virt-launcher pod is deleted, the VMI has ended within 0.1 s: `Succeeded` if it ran, as its guest shuts down
cleanly, and `Failed` else. With the run strategies Always and RerunOnFailure, it is gone after 0.3 s. If the VM had
never run, it shows `CrashLoopBackOff`, and its n-th restart in a row comes after 10·n² s and up to half more, at most
300 s. Once the VM has run, the count starts again. A deleted VMI counts like a deleted pod. `Halted` deletes the VMI
and clears the count.

`virtctl` asks for starts and stops in `status.stateChangeRequests`. It acts on the first of them, and removes it then:
`syncRunStrategy` and `isTrimFirstChangeRequestNeeded` in
https://github.com/kubevirt/kubevirt/blob/d923fdb8/pkg/virt-controller/watch/vm/vm.go
"""

from __future__ import annotations

import random
import time
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field

from tests.support.controlplane.api import ApiError, Object, Requests
from tests.support.kubevirt import install_crds, vm_of
from tests.support.reconcile_loop import ReconcileLoop
from tests.support.scenario import Scenario

DELETION = 0.3  # seconds from a VMI's failure to its deletion
BACK_OFF = 10.0  # seconds after the first failure
MAX_BACK_OFF = 300.0
FINAL = ("Succeeded", "Failed")  # phases of pods
RESTARTING = ("Always", "RerunOnFailure")  # with these run strategies, a VMI that has ended is deleted
GONE: Object = {"spec": {}}  # the manifest of a VM that was deleted


@dataclass(slots=True)
class _Vm:
    """What the controller knows of a VM. `held`: the test creates the first pod itself."""

    pod: Object
    held: bool = False
    vmi: str = ""  # uid
    has_pod: bool = False
    has_run: bool = False
    failed_at: float | None = None
    failures: int = 0
    retry_at: float = 0.0
    starts: list[float] = field(default_factory=list)  # times of the controller's own creations of pods


class VirtController:
    """`with VirtController(scenario) as controller`: handle the VMs that `add` or `prepare` creates.

    `back_off` are the seconds after the first failure; tests that wait for several restarts use a shorter time.
    """

    def __init__(self, scenario: Scenario, back_off: float = BACK_OFF) -> None:
        self._scenario, self._back_off = scenario, back_off
        self._plane: Requests = scenario.plane
        path = f"/apis/kubevirt.io/v1/namespaces/{scenario.namespace}"
        self._vm_path, self._vmi_path = f"{path}/virtualmachines", f"{path}/virtualmachineinstances"
        self._vms: dict[str, _Vm] = {}
        self._loop = ReconcileLoop(scenario.plane, f"virt-controller-{scenario.namespace}", self._reconcile)
        install_crds(scenario.plane)

    def __enter__(self) -> VirtController:
        self._loop.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.stop()
        for name in self._vms:
            for path in (self._vm_path, self._vmi_path):
                self._delete(f"{path}/{name}")

    def add(self, pod: Object, run_strategy: str = "Always") -> str:
        """Create the VM of a virt-launcher pod and return its name. The controller creates the pod."""
        name = self._create_vm(pod, run_strategy)
        with self._loop.paused():
            self._vms[name] = _Vm(pod)
        return name

    def prepare(self, pod: Object, run_strategy: str = "Always") -> Object:
        """Create the VM and its VMI, and return the pod, so that the test can create it at a time of its choice."""
        name = self._create_vm(pod, run_strategy)
        with self._loop.paused():
            vm = self._vms[name] = _Vm(pod, held=True)
            self._create_vmi(name, vm)
            return self._owned_pod(name, vm)

    def vm(self, vm: str) -> Object:
        return self._plane.request("GET", f"{self._vm_path}/{vm}")

    def starts(self, vm: str) -> list[float]:
        """Return when the controller itself created a pod of the VM (`time.monotonic()`)."""
        return list(self._vms[vm].starts)

    def pod(self, vm: str) -> Object:
        """Return the current virt-launcher pod of a VM, empty if there is none."""
        found = self._pods_by_vmi().get(self._vms[vm].vmi, {})
        return {} if not found or "deletionTimestamp" in found["metadata"] else found

    def wait_running(self, vm: str, seconds: float) -> Object:
        """Wait until a VM has a running pod, and return the pod."""

        def running() -> Object:
            return self.pod(vm) if self._vms[vm].has_run else {}

        return self._loop.wait(running, seconds, f"a running pod of VM {vm}")

    def wait_all_running(self, seconds: float) -> dict[str, str]:
        """Wait until all VMs run, and return the node of each."""

        def nodes() -> dict[str, str]:
            if not all(vm.has_run for vm in self._vms.values()):
                return {}
            pods = self._pods_by_vmi()
            return {name: pods[vm.vmi]["spec"]["nodeName"] for name, vm in self._vms.items()}

        return self._loop.wait(nodes, seconds, f"all {len(self._vms)} VMs running")

    def _reconcile(self) -> None:
        manifests = {vm["metadata"]["name"]: vm for vm in self._list(self._vm_path)}
        vmis = {vmi["metadata"]["uid"] for vmi in self._list(self._vmi_path)}
        pods = self._pods_by_vmi()
        for name, vm in self._vms.items():
            manifest = manifests.get(name, GONE)
            self._sync(name, vm, manifest, pods.get(vm.vmi), exists=vm.vmi in vmis)
            if manifest is not GONE:
                self._update_status(name, vm, manifest)

    def _sync(self, name: str, vm: _Vm, manifest: Object, pod: Object | None, *, exists: bool) -> None:
        request = _first_request(manifest)
        strategy = manifest["spec"].get("runStrategy", "Halted")
        if strategy == "Halted":
            self._halt(name, vm)
        elif exists and request == {"action": "Stop", "uid": vm.vmi}:
            self._delete(f"{self._vmi_path}/{name}")
            self._delete_pod(pod)
            self._end(name, vm)
        elif exists:
            self._follow(name, vm, pod, manifest)
        elif vm.vmi:
            self._delete_pod(pod)
            self._end(name, vm)
        elif _starts(manifest) and (strategy not in RESTARTING or time.monotonic() >= vm.retry_at):
            self._create_vmi(name, vm)

    def _update_status(self, name: str, vm: _Vm, manifest: Object) -> None:
        """Note the run strategy of a VM that has been started, and remove the first request if it is done."""
        status = manifest.get("status", {})
        request = _first_request(manifest)
        done = vm.vmi != request.get("uid") if request.get("action") == "Stop" else bool(request and vm.vmi)
        strategy = manifest["spec"].get("runStrategy", "Halted") if vm.vmi or "runStrategy" in status else None
        change: Object = {"stateChangeRequests": requests_of(manifest)[1:]} if done else {}
        change |= {"runStrategy": strategy} if strategy != status.get("runStrategy") else {}
        if change:
            self._change_status(name, change)

    def _halt(self, name: str, vm: _Vm) -> None:
        if vm.vmi:
            self._delete(f"{self._vmi_path}/{name}")
            self._delete_pod(self._pods_by_vmi().get(vm.vmi))
        if vm.vmi or vm.failures:
            self._set_status(name, "Stopped")
        vm.vmi, vm.held, vm.has_pod, vm.has_run = "", False, False, False
        vm.failed_at, vm.failures, vm.retry_at = None, 0, 0.0

    def _follow(self, name: str, vm: _Vm, pod: Object | None, manifest: Object) -> None:
        """Act on the pod of a VMI: start it, see it run, or see that it was deleted."""
        if pod is not None:
            vm.has_pod, vm.held = True, False
            if pod["status"].get("phase") == "Running" and not vm.has_run:
                vm.has_run, vm.failures = True, 0
                self._set_vmi_status(name, self._running(pod))
                self._set_status(name, "Running")
        elif not vm.has_pod:
            if not vm.held:
                self._plane.request("POST", self._scenario.pods, self._owned_pod(name, vm))
                vm.has_pod = True
                vm.starts.append(time.monotonic())
        elif vm.failed_at is None:
            vm.failed_at = time.monotonic()
            self._set_vmi_status(name, {"phase": "Succeeded" if vm.has_run else "Failed"})
        elif manifest["spec"]["runStrategy"] in RESTARTING and time.monotonic() >= vm.failed_at + DELETION:
            if manifest["spec"]["runStrategy"] == "RerunOnFailure" and not vm.has_run:
                requests = [*requests_of(manifest), {"action": "Start"}]
                self._change_status(name, {"stateChangeRequests": requests})
            self._delete(f"{self._vmi_path}/{name}")
            self._end(name, vm)

    def _end(self, name: str, vm: _Vm) -> None:
        """Record the end of a VMI, and when the VM restarts."""
        ended_at = vm.failed_at or time.monotonic()
        if not vm.has_run:
            vm.failures += 1
            delay = min(MAX_BACK_OFF, self._back_off * vm.failures**2 * random.uniform(1, 1.5))
            vm.retry_at = ended_at + delay
            self._set_status(name, "CrashLoopBackOff", vm.failures)
        vm.vmi, vm.has_pod, vm.has_run, vm.failed_at = "", False, False, None

    def _create_vm(self, pod: Object, run_strategy: str) -> str:
        created = self._plane.request("POST", self._vm_path, vm_of(pod, run_strategy))
        return str(created["metadata"]["name"])

    def _create_vmi(self, name: str, vm: _Vm) -> None:
        vmi = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": name}}
        vm.vmi = str(
            self._plane.request("POST", self._vmi_path, vmi | {"spec": self._vmi_spec(name)})["metadata"]["uid"]
        )
        vm.has_pod = vm.has_run = False
        vm.failed_at = None
        self._set_vmi_status(name, {"phase": "Scheduling"})

    def _owned_pod(self, name: str, vm: _Vm) -> Object:
        pod = deepcopy(vm.pod)
        pod["metadata"]["labels"]["kubevirt.io/created-by"] = vm.vmi
        kind = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": name, "uid": vm.vmi}
        pod["metadata"]["ownerReferences"] = [kind | {"controller": True, "blockOwnerDeletion": True}]
        return pod

    def _vmi_spec(self, _vm: str) -> Object:
        """Return the spec of a VM's next VMI."""
        return {}

    def _running(self, _pod: Object) -> Object:
        """Return the status of a VMI whose pod runs."""
        return {"phase": "Running"}

    def _set_vmi_status(self, vmi: str, status: Object) -> None:
        self._plane.request("PATCH", f"{self._vmi_path}/{vmi}/status", {"status": status})

    def _set_status(self, vm: str, printable: str, failures: int = 0) -> None:
        failure = {"consecutiveFailCount": failures} if failures else None  # None removes the field
        self._change_status(vm, {"printableStatus": printable, "startFailure": failure})

    def _change_status(self, vm: str, status: Object) -> None:
        self._plane.request("PATCH", f"{self._vm_path}/{vm}/status", {"status": status})

    def _pods_by_vmi(self) -> dict[str, Object]:
        """Return the pod that runs each VMI, by its uid: the oldest, as a migration target is younger than its source.

        A pod that is terminating counts until it is gone, and one that has ended doesn't count.
        """
        found = self._list(f"{self._scenario.pods}?labelSelector=kubevirt.io%3Dvirt-launcher")
        alive = [pod for pod in found if pod["status"].get("phase") not in FINAL]
        alive.sort(key=lambda pod: pod["metadata"]["creationTimestamp"], reverse=True)
        return {pod["metadata"]["labels"]["kubevirt.io/created-by"]: pod for pod in alive}

    def _list(self, path: str) -> list[Object]:
        found: list[Object] = self._plane.request("GET", path)["items"]
        return found

    def _delete_pod(self, pod: Object | None) -> None:
        if pod:
            self._delete(f"{self._scenario.pods}/{pod['metadata']['name']}?gracePeriodSeconds=0")

    def _delete(self, path: str) -> None:
        with suppress(ApiError):
            self._plane.request("DELETE", path)


def _starts(manifest: Object) -> bool:
    """Return whether a VM without a VMI starts.

    With `RerunOnFailure`, it does if somebody asks for it, or if it never had this run strategy while it ran.
    """
    strategy = manifest["spec"].get("runStrategy")
    asked = _first_request(manifest).get("action") == "Start"
    if strategy == "RerunOnFailure":
        return asked or manifest.get("status", {}).get("runStrategy") != strategy
    return strategy in ("Always", "Once") or (strategy == "Manual" and asked)


def requests_of(manifest: Object) -> list[Object]:
    """Return what virt-controller is asked for."""
    found: list[Object] = manifest.get("status", {}).get("stateChangeRequests", [])
    return found


def _first_request(manifest: Object) -> Object:
    """Return the request that virt-controller acts on, empty if there is none."""
    return next(iter(requests_of(manifest)), {})
