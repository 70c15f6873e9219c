"""KubeVirt's answer to evictions, and its evacuation controller, on a real API server. They do what its source says.

pkg/virt-api/webhooks/validating-webhook/admitters/pod-eviction-admitter.go: by the eviction strategy of the VMI, the
eviction of its pod is admitted, or denied with status 429. The denial of one that shall migrate also marks the VMI.
pkg/virt-controller/watch/drain/evacuation/evacuation.go: a marked VMI without an unfinished migration gets one.
"""

from __future__ import annotations

import base64

from tests.support.controlplane.api import Object
from tests.support.json_server import JsonServer
from tests.support.migration_controller import FINAL
from tests.support.reconcile_loop import ReconcileLoop
from tests.support.scenario import Scenario

REGISTRATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
RULE: Object = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/eviction"]}
MIGRATES = ("LiveMigrate", "LiveMigrateIfPossible")


class Evacuation:
    """`with Evacuation(scenario)`: answer the evictions of a scenario's VMs, and migrate those that are marked."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario, self._plane = scenario, scenario.plane
        group = f"/apis/kubevirt.io/v1/namespaces/{scenario.namespace}"
        self._vmis, self._migrations = f"{group}/virtualmachineinstances", f"{group}/virtualmachineinstancemigrations"
        self._loop = ReconcileLoop(self._plane, f"evacuation-{scenario.namespace}", self._reconcile)
        self._server = JsonServer(self._answer, "localhost")

    def __enter__(self) -> Evacuation:
        self._server.__enter__()
        url = f"https://localhost:{self._server.address[1]}/"
        webhook = {
            "name": "virt-launcher-eviction-interceptor.kubevirt.io",
            "clientConfig": {"url": url, "caBundle": base64.b64encode(self._server.ca).decode()},
            "rules": [RULE],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self._scenario.namespace}},
            "sideEffects": "NoneOnDryRun",
            "admissionReviewVersions": ["v1"],
        }
        metadata = {"name": f"evacuation-{self._scenario.namespace}"}
        self._plane.request("POST", REGISTRATIONS, {"metadata": metadata, "webhooks": [webhook]})
        self._loop.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.stop()
        self._plane.request("DELETE", f"{REGISTRATIONS}/evacuation-{self._scenario.namespace}")
        self._server.__exit__()

    def denial(self, pod: str) -> str:
        """Return why the eviction of a pod is denied, empty if it is admitted. Mark a VMI that shall migrate."""
        found = self._scenario.get(pod)
        metadata = found["metadata"]
        if metadata.get("labels", {}).get("kubevirt.io") != "virt-launcher" or found["status"].get("phase") in FINAL:
            return ""
        vmi = self._plane.request("GET", f"{self._vmis}/{metadata['annotations']['kubevirt.io/domain']}")
        strategy, name = vmi["spec"].get("evictionStrategy", "None"), vmi["metadata"]["name"]
        if strategy not in MIGRATES or (strategy == "LiveMigrateIfPossible" and not _is_migratable(vmi)):
            return ""
        if not _is_migratable(vmi):
            return f"VMI {name} is configured with an eviction strategy but is not live-migratable"
        node = found["spec"]["nodeName"]
        if vmi["status"].get("evacuationNodeName"):
            return f'Evacuation in progress: Eviction triggered evacuation of VMI "{name}"'
        if vmi["status"]["nodeName"] != node:
            return "Eviction request for target Pod"
        self._plane.request("PATCH", f"{self._vmis}/{name}/status", {"status": {"evacuationNodeName": node}})
        return f'Eviction triggered evacuation of VMI "{name}"'

    def _answer(self, review: Object) -> Object:
        problem = self.denial(review["request"]["name"])
        response = {"uid": review["request"]["uid"], "allowed": not problem}
        response |= {"status": {"code": 429, "message": problem}} if problem else {}
        return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}

    def _reconcile(self) -> None:
        migrations = self._plane.request("GET", self._migrations)["items"]
        unfinished = {
            each["spec"]["vmiName"] for each in migrations if each.get("status", {}).get("phase") not in FINAL
        }
        for vmi in self._plane.request("GET", self._vmis)["items"]:
            name, status = vmi["metadata"]["name"], vmi.get("status", {})
            marked = status.get("evacuationNodeName")
            if marked and marked != status["nodeName"]:
                self._plane.request("PATCH", f"{self._vmis}/{name}/status", {"status": {"evacuationNodeName": None}})
            elif marked and name not in unfinished:
                metadata = {"generateName": "kubevirt-evacuation-"}
                kind = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration"}
                self._plane.request("POST", self._migrations, kind | {"metadata": metadata, "spec": {"vmiName": name}})


def _is_migratable(vmi: Object) -> bool:
    conditions = vmi["status"].get("conditions", [])
    return any((each["type"], each["status"]) == ("LiveMigratable", "True") for each in conditions)
