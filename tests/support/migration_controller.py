"""The migration part of a fake virt-controller on a real API server. It does what KubeVirt's source says.

pkg/virt-controller/watch/migration/migration.go: the target pod of a migration is created from the VMI, with the added
node selector. Once the pod runs, the VMI is handed over and the source pod has Succeeded. A deleted migration is
canceled. A target pod that the scheduler finds no node for is deleted, which fails the migration. The real controller
also limits the migrations that run at once, and those for each source node.
"""

from __future__ import annotations

import time
from contextlib import suppress
from copy import deepcopy

from tests.support import crds
from tests.support.builders import without_injection
from tests.support.controlplane.api import ApiError, Object, Requests
from tests.support.kubevirt import install_crds, vm_of
from tests.support.migrations import migration_crd
from tests.support.reconcile_loop import ReconcileLoop
from tests.support.scenario import HOSTNAME, Scenario

FINAL = ("Succeeded", "Failed")
FINALIZER = "kubevirt.io/migrationJobFinalize"
JOB = "kubevirt.io/migrationJobUID"
CREATED_BY = "kubevirt.io/created-by"
PATIENCE = 15.0  # seconds until an unschedulable target pod is deleted; the real time is in an annotation


class MigrationController:
    """`with MigrationController(scenario) as controller`: act on the migrations of a scenario's namespace.

    `seconds` is how long a migration runs, and `patience` how long an unschedulable target pod waits. `peak` is the
    highest number of unfinished migrations.
    """

    def __init__(self, scenario: Scenario, seconds: float = 0.0) -> None:
        self._scenario = scenario
        self._plane: Requests = scenario.plane
        group = f"/apis/kubevirt.io/v1/namespaces/{scenario.namespace}"
        self.path, self._vmi_path = f"{group}/virtualmachineinstancemigrations", f"{group}/virtualmachineinstances"
        self._vm_path = f"{group}/virtualmachines"
        self.seconds, self.patience = seconds, PATIENCE
        self.peak = 0
        self._began: dict[str, float] = {}
        self._nodes: dict[str, str] = {}
        self.loop = ReconcileLoop(scenario.plane, f"migrations-{scenario.namespace}", self._reconcile)
        install_crds(scenario.plane)
        crds.install(scenario.plane, migration_crd(), crds.crd("KubeVirt"))

    def __enter__(self) -> MigrationController:
        self.loop.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.stop()
        for path in (self.path, self._vmi_path, self._vm_path):
            for item in self._list(path):
                with suppress(ApiError):
                    own = f"{path}/{item['metadata']['name']}"
                    self._plane.request("PATCH", own, {"metadata": {"finalizers": None}})
            self._plane.request("DELETE", path)

    def add_vm(self, pod: Object, node: str, **status: object) -> None:
        """Create the VM of a virt-launcher pod, its VMI, and the pod on a node. `status` overrides the VMI's."""
        name = str(self._plane.request("POST", self._vm_path, vm_of(pod))["metadata"]["name"])
        vmi = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": name}}
        uid = self._plane.request("POST", self._vmi_path, vmi | {"spec": {}})["metadata"]["uid"]
        conditions = [{"type": kind, "status": "True"} for kind in ("Ready", "LiveMigratable")]
        self.change_vmi(name, {"phase": "Running", "nodeName": node, "conditions": conditions} | status)
        pod["metadata"]["labels"][CREATED_BY] = uid
        pod["spec"]["nodeName"] = node
        self._scenario.create(pod)

    def change_vmi(self, name: str, status: Object) -> None:
        """Change fields of a VMI's status."""
        self._plane.request("PATCH", f"{self._vmi_path}/{name}/status", {"status": status})

    def node(self, name: str) -> str:
        """Return the node that a VM runs on."""
        return str(self._plane.request("GET", f"{self._vmi_path}/{name}")["status"]["nodeName"])

    def migrations(self) -> list[Object]:
        return self._list(self.path)

    def _reconcile(self) -> None:
        vmis = {each["metadata"]["name"]: each for each in self._list(self._vmi_path)}
        pods = self._list(f"{self._scenario.pods}?labelSelector=kubevirt.io%3Dvirt-launcher")
        migrations = sorted(self.migrations(), key=lambda each: each["metadata"]["creationTimestamp"])
        self._nodes = {name: vmi.get("status", {}).get("nodeName", "") for name, vmi in vmis.items()}
        self.peak = max(self.peak, sum(_phase(each) not in FINAL for each in migrations))
        for migration in migrations:
            self._advance(migration, vmis.get(migration["spec"]["vmiName"]), pods, migrations)

    def _advance(self, migration: Object, vmi: Object | None, pods: list[Object], migrations: list[Object]) -> None:
        metadata, phase = migration["metadata"], _phase(migration)
        source = _source(vmi, pods) if vmi else None
        target = next((pod for pod in pods if pod["metadata"]["labels"].get(JOB) == metadata["uid"]), None)
        if phase in FINAL:
            if metadata.get("finalizers"):
                self._patch(migration, {"metadata": {"finalizers": None}})
        elif vmi is None or "deletionTimestamp" in metadata:
            self._fail(migration, target, "Migration failed due to being canceled")
        elif source is None or _phase(vmi) in FINAL:
            self._fail(migration, target, "Migration failed vmi shutdown during migration.")
        elif not phase:
            self._accept(migration, migrations)
        elif phase == "Pending":
            self._start(migration, source, target)
        elif phase == "Scheduling":
            self._schedule(migration, target)
        else:
            self._hand_over(migration, vmi, source, target)

    def _accept(self, migration: Object, migrations: list[Object]) -> None:
        same = [each for each in migrations if each["spec"]["vmiName"] == migration["spec"]["vmiName"]]
        if any(each is not migration and _phase(each) == "Running" for each in same):  # `canMigrateVMI`
            self._fail(migration, None, "VMI is not eligible for migration because another migration is in progress")
            return
        self._patch(migration, {"metadata": {"finalizers": [FINALIZER]}})
        self._set_phase(migration, "Pending")

    def _start(self, migration: Object, source: Object, target: Object | None) -> None:
        if target is None:
            self._plane.request("POST", self._scenario.pods, self._target_pod(migration, source))
        else:
            self._set_phase(migration, "Scheduling")

    def _target_pod(self, migration: Object, source: Object) -> Object:
        # KubeVirt renders it from the VMI, so without what the webhook added.
        pod = without_injection(deepcopy(source))
        metadata, spec = pod["metadata"], pod["spec"]
        labels = metadata["labels"] | {JOB: migration["metadata"]["uid"]}
        kept = {key: metadata[key] for key in ("generateName", "annotations", "ownerReferences") if key in metadata}
        pod["metadata"] = kept | {"labels": labels}
        pod.pop("status")
        spec.pop("nodeName")
        own = {key: value for key, value in spec["nodeSelector"].items() if key != HOSTNAME}
        spec["nodeSelector"] = migration["spec"].get("addedNodeSelector", {}) | own
        term = {"labelSelector": {"matchLabels": {CREATED_BY: labels[CREATED_BY]}}, "topologyKey": HOSTNAME}
        spec["affinity"] = spec.get("affinity", {}) | {
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        }
        return pod

    def _schedule(self, migration: Object, target: Object | None) -> None:
        uid = migration["metadata"]["uid"]
        self._began.setdefault(uid, time.monotonic())
        if target is None:
            self._fail(migration, None, "Migration target pod was removed during active migration.")
        elif target["status"].get("phase") == "Running":
            self._began[uid] = time.monotonic()
            state = {"sourceNode": self._nodes[migration["spec"]["vmiName"]]}
            self._set_phase(migration, "Running", {"migrationState": state})
        elif _is_unschedulable(target) and time.monotonic() - self._began[uid] > self.patience:
            self._delete_pod(target)

    def _hand_over(self, migration: Object, vmi: Object, source: Object, target: Object | None) -> None:
        name, uid = vmi["metadata"]["name"], migration["metadata"]["uid"]
        if target is None:
            self._fail(migration, target, "source node reported migration failed")
        elif time.monotonic() - self._began[uid] >= self.seconds:
            node = target["spec"]["nodeName"]
            self.change_vmi(name, {"nodeName": node})
            self._end_source(source)
            self._set_phase(migration, "Succeeded")

    def _end_source(self, source: Object) -> None:
        path = f"{self._scenario.pods}/{source['metadata']['name']}/status"
        self._plane.request("PATCH", path, {"status": {"phase": "Succeeded"}})

    def _fail(self, migration: Object, target: Object | None, message: str) -> None:
        if target is not None:
            self._delete_pod(target)
        name, namespace = migration["metadata"]["name"], self._scenario.namespace
        about = {"kind": "VirtualMachineInstanceMigration", "name": name, "namespace": namespace}
        event = {"metadata": {"generateName": f"{name}."}, "involvedObject": about, "type": "Warning"}
        path = f"/api/v1/namespaces/{namespace}/events"
        self._plane.request("POST", path, event | {"reason": "FailedMigration", "message": message})
        self._set_phase(migration, "Failed", {"migrationState": {"failed": True}})

    def _set_phase(self, migration: Object, phase: str, status: Object | None = None) -> None:
        path = f"{self.path}/{migration['metadata']['name']}/status"
        self._plane.request("PATCH", path, {"status": {"phase": phase} | (status or {})})

    def _patch(self, migration: Object, change: Object) -> None:
        self._plane.request("PATCH", f"{self.path}/{migration['metadata']['name']}", change)

    def _delete_pod(self, pod: Object) -> None:
        with suppress(ApiError):
            self._plane.request("DELETE", f"{self._scenario.pods}/{pod['metadata']['name']}?gracePeriodSeconds=0")

    def _list(self, path: str) -> list[Object]:
        found: list[Object] = self._plane.request("GET", path)["items"]
        return found


def _phase(item: Object) -> str:
    """Return the phase of a migration or a VMI."""
    return str(item.get("status", {}).get("phase", ""))


def _is_unschedulable(pod: Object) -> bool:
    """Return whether the scheduler found no node. On a slow machine, a pod without a node may only have to wait."""
    conditions = pod["status"].get("conditions", [])
    return any((each["type"], each["status"]) == ("PodScheduled", "False") for each in conditions)


def _source(vmi: Object, pods: list[Object]) -> Object | None:
    """Return the pod that runs a VMI."""
    node = vmi.get("status", {}).get("nodeName")
    own = [pod for pod in pods if pod["metadata"]["labels"].get(CREATED_BY) == vmi["metadata"]["uid"]]
    running = (pod for pod in own if pod["spec"].get("nodeName") == node and pod["status"].get("phase") == "Running")
    return next(running, None)
