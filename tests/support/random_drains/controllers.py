"""KubeVirt's controllers for a random fleet: they bind the first pod of each VM, and attach hotplugged claims."""

from __future__ import annotations

from tests.support.controlplane.api import Object
from tests.support.live_view import PODS, LiveView, NamespaceChanges, ViewedPlane
from tests.support.migration_controller import CREATED_BY, MigrationController
from tests.support.playground.simulation import KubeVirt
from tests.support.reconcile_loop import ReconcileLoop
from tests.support.scenario import HOSTNAME, POOL, Scenario
from tests.support.virt_controller import _Vm

MIGRATION, PATIENCE = 0.5, 4.0  # seconds of a migration, and until its unschedulable target pod is deleted
# `hotplugPodTolerations` in pkg/virt-controller/services/renderresources.go has more of them.
TOLERATIONS = [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}]


class FleetKubeVirt(KubeVirt):
    """A virt-controller that binds the first pod of each VM itself, to the node in `hosts`."""

    def __init__(self, scenario: Scenario, view: LiveView, hosts: dict[str, str]) -> None:
        super().__init__(scenario, back_off=1)
        self._hosts = hosts
        self._plane = ViewedPlane(scenario.plane, view)
        changes = NamespaceChanges(view, scenario.namespace)
        self.loop = ReconcileLoop(scenario.plane, f"virt-controller-{scenario.namespace}", self._reconcile, changes)
        self._loop = self.loop

    def _vmi_spec(self, vm: str) -> Object:
        spec = self.vm(vm)["spec"]["template"]["spec"]
        return super()._vmi_spec(vm) | {"volumes": spec.get("volumes", [])}

    def _owned_pod(self, name: str, vm: _Vm) -> Object:
        pod = super()._owned_pod(name, vm)
        pod["metadata"]["labels"] |= self.vm(name)["spec"]["template"]["metadata"].get("labels", {})
        pod["spec"]["nodeSelector"][POOL] = self._scenario.namespace
        if node := self._hosts.pop(name, ""):
            pod["spec"]["nodeName"] = node
        return pod

    def _reconcile(self) -> None:
        super()._reconcile()
        vmis = {vmi["metadata"]["uid"]: vmi for vmi in self._list(self._vmi_path)}
        pods = self._list(self._scenario.pods)
        launchers = {pod["metadata"]["uid"]: pod for pod in pods if CREATED_BY in pod["metadata"].get("labels", {})}
        attached = {owner_of(pod): pod for pod in pods if is_attachment(pod)}
        for uid, launcher in launchers.items():
            vmi = vmis.get(launcher["metadata"]["labels"][CREATED_BY], {})
            claims = hotplugged_claims(vmi)
            if claims and _runs(launcher) and uid not in attached:
                self._plane.request("POST", self._scenario.pods, _attachment_pod(launcher, claims))
        for owner, pod in attached.items():
            if not _runs(launchers.get(owner, {})):
                self._delete_pod(pod)


class FleetMigrations(MigrationController):
    """A migration controller that hands a VMI over once its hotplugged claims are attached to the target pod."""

    def __init__(self, scenario: Scenario, view: LiveView) -> None:
        super().__init__(scenario, MIGRATION)
        self._view, self._plane = view, ViewedPlane(scenario.plane, view)
        self.patience = PATIENCE
        changes = NamespaceChanges(view, scenario.namespace)
        self.loop = ReconcileLoop(scenario.plane, f"migrations-{scenario.namespace}", self._reconcile, changes)

    def _hand_over(self, migration: Object, vmi: Object, source: Object, target: Object | None) -> None:
        pods = self._view.objects(PODS, self._scenario.namespace) if hotplugged_claims(vmi) and target else []
        attached = {owner_of(pod) for pod in pods if is_attachment(pod) and _runs(pod)}
        if not hotplugged_claims(vmi) or target is None or target["metadata"]["uid"] in attached:
            super()._hand_over(migration, vmi, source, target)


def hotplugged_claims(vmi: Object) -> list[str]:
    """Return the claims that are hotplugged into a VMI."""
    claims = [each["persistentVolumeClaim"] for each in vmi.get("spec", {}).get("volumes", [])]
    return [claim["claimName"] for claim in claims if claim.get("hotpluggable")]


def is_attachment(pod: Object) -> bool:
    """Return whether a pod mounts hotplugged claims."""
    labels: Object = pod["metadata"].get("labels", {})
    return bool(labels.get("kubevirt.io") == "hotplug-disk" and "deletionTimestamp" not in pod["metadata"])


def owner_of(pod: Object) -> str:
    """Return the uid of the virt-launcher pod for which a pod mounts claims."""
    return str(pod["metadata"]["ownerReferences"][0]["uid"])


def _runs(pod: Object) -> bool:
    return bool(pod and pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"])


def _attachment_pod(launcher: Object, claims: list[str]) -> Object:
    """Return the pod that mounts hotplugged claims: `RenderHotplugAttachmentPodTemplate`."""
    metadata, node = launcher["metadata"], launcher["spec"]["nodeName"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"], "controller": True}
    here = {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": [node]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [here]}}
    volumes = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims]
    labels = {"kubevirt.io": "hotplug-disk"}
    return {
        "metadata": {"generateName": "hp-volume-", "labels": labels, "ownerReferences": [owner]},
        "spec": {
            "affinity": {"nodeAffinity": required},
            "tolerations": TOLERATIONS,
            "containers": [{"name": "hotplug-disk", "image": "none"}],
            "terminationGracePeriodSeconds": 0,
            "volumes": volumes,
        },
    }
