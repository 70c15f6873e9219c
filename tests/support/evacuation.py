"""KubeVirt's answer to evictions, on a real API server."""

from __future__ import annotations

from tests.support.controlplane.api import ApiError, Object
from tests.support.json_server import JsonServer
from tests.support.migration_controller import FINAL
from tests.support.scenario import Scenario

REGISTRATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


class Evacuation:
    """KubeVirt's answer to the evictions of a scenario's VMs. It does what its source says.

    `default` is the eviction strategy of a VM that names none.

    pkg/virt-api/webhooks/validating-webhook/admitters/pod-eviction-admitter.go: by the eviction strategy of the VMI,
    the eviction of its pod is admitted, or denied with status 429. The denial of one that shall migrate also marks the
    VMI, and pkg/virt-controller/watch/drain/evacuation/evacuation.go migrates it. Here, the denial migrates it.
    """

    def __init__(self, scenario: Scenario, default: str = "None") -> None:
        self._scenario, self._plane, self._default = scenario, scenario.plane, default
        group = f"/apis/kubevirt.io/v1/namespaces/{scenario.namespace}"
        self._vmis, self._path = f"{group}/virtualmachineinstances", f"{group}/virtualmachineinstancemigrations"
        self._server = JsonServer(self._answer, tls=True)

    def __enter__(self) -> Evacuation:
        self._server.__enter__()
        name, namespace = "virt-launcher-eviction-interceptor.kubevirt.io", self._scenario.namespace
        webhook = self._server.webhook(name, namespace, "pods/eviction")
        metadata = {"name": f"evacuation-{namespace}"}
        self._plane.request("POST", REGISTRATIONS, {"metadata": metadata, "webhooks": [webhook]})
        return self

    def __exit__(self, *_: object) -> None:
        self._plane.request("DELETE", f"{REGISTRATIONS}/evacuation-{self._scenario.namespace}")
        self._server.__exit__()

    def denial(self, pod: str) -> str:
        """Return why the eviction of a pod is denied, empty if it is admitted. Begin the migration of its VMI."""
        found = self._plane.find(f"{self._scenario.pods}/{pod}")
        if found is None:
            return ""
        metadata = found["metadata"]
        label = metadata.get("labels", {}).get("kubevirt.io")
        if label == "hotplug-disk":
            owner = self._plane.find(f"{self._scenario.pods}/{metadata['ownerReferences'][0]['name']}")
            runs = owner is not None and owner["status"].get("phase") not in FINAL
            return f"cannot evict hotplug pod: {pod} associated with running vmi" if runs else ""
        if label != "virt-launcher" or found["status"].get("phase") in FINAL:
            return ""
        name = metadata["annotations"]["kubevirt.io/domain"]
        vmi = self._plane.request("GET", f"{self._vmis}/{name}")
        strategy = vmi["spec"].get("evictionStrategy") or self._default
        if strategy == "External":
            return f'Eviction triggered evacuation of VMI "{name}"'  # by another controller, which does not exist here
        if strategy not in ("LiveMigrate", "LiveMigrateIfPossible"):
            return ""
        if not _is_migratable(vmi):
            denied = f"VMI {name} is configured with an eviction strategy but is not live-migratable"
            return denied if strategy == "LiveMigrate" else ""
        migrations = [each for each in self._migrations() if each["spec"]["vmiName"] == name]
        is_migrating = any(each.get("status", {}).get("phase") not in FINAL for each in migrations)
        if vmi["status"]["nodeName"] == found["spec"]["nodeName"] and not is_migrating:
            kind = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration"}
            migration = kind | {"metadata": {"generateName": "kubevirt-evacuation-"}, "spec": {"vmiName": name}}
            self._plane.request("POST", self._path, migration)
        return f'Eviction triggered evacuation of VMI "{name}"'

    def _answer(self, review: Object) -> Object:
        try:
            problem = self.denial(review["request"]["name"])
        except ApiError as error:  # the VMI has just ended
            problem = f"try again: {error}"
        response = {"uid": review["request"]["uid"], "allowed": not problem}
        response |= {"status": {"code": 429, "message": problem}} if problem else {}
        return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}

    def _migrations(self) -> list[Object]:
        found: list[Object] = self._plane.request("GET", self._path)["items"]
        return found


def _is_migratable(vmi: Object) -> bool:
    conditions = vmi["status"].get("conditions", [])
    return any((each["type"], each["status"]) == ("LiveMigratable", "True") for each in conditions)
