"""A fake Longhorn manager on a real API server. It does what section 2 of the design says that Longhorn does, no more.

An attached volume gets a ShareManager in state `starting` with an interim owner, and a share-manager pod without a
node. When the pod runs, the ShareManager becomes `running` and its owner becomes the pod's node. After the last
detachment, the pod is deleted and the ShareManager becomes `stopped`. If the pod's node is lost, the pod is recreated
and avoids that node. A volume with `volumeMode: Block` never gets a ShareManager.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from contextlib import AbstractContextManager, suppress

from tests.support.controlplane.api import ApiError, Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.paths import REVIEWS
from tests.support.reconcile_loop import ReconcileLoop

DRIVER = "driver.longhorn.io"
GROUP = "/apis/longhorn.io/v1beta2"
STORAGE = "/apis/storage.k8s.io/v1"
VOLUMES = "/api/v1/persistentvolumes"
RECORDED = REVIEWS / "share-manager.json"
# The controller manager attaches volumes only to nodes with this annotation, and only if a CSIDriver exists.
ATTACHABLE = {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}

SCHEMA: Object = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
VERSION: Object = {"name": "v1beta2", "served": True, "storage": True, "schema": {"openAPIV3Schema": SCHEMA}}
CRD: Object = {
    "metadata": {"name": "sharemanagers.longhorn.io"},
    "spec": {
        "group": "longhorn.io",
        "scope": "Namespaced",
        "names": {"kind": "ShareManager", "plural": "sharemanagers", "singular": "sharemanager"},
        "versions": [VERSION | {"subresources": {"status": {}}}],
    },
}


class Longhorn:
    """A fake Longhorn in one namespace. `install` creates its objects; `start` runs its thread until `stop`."""

    def __init__(self, plane: ControlPlane, namespace: str = "longhorn-system") -> None:
        self.namespace = namespace
        self._plane = plane
        self.managers = f"{GROUP}/namespaces/{namespace}/sharemanagers"
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._volumes: dict[str, Object] = {}
        self._lost_nodes: dict[str, str] = {}  # by volume
        self._loop = ReconcileLoop(f"longhorn-{namespace}", self._reconcile)

    def install(self) -> None:
        self._create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", CRD)
        self._create(f"{STORAGE}/csidrivers", {"metadata": {"name": DRIVER}, "spec": {"attachRequired": True}})
        self._plane.create_namespace(self.namespace)
        account = {"metadata": {"name": "longhorn-service-account"}}
        self._create(f"/api/v1/namespaces/{self.namespace}/serviceaccounts", account)
        self._plane.wait(lambda: self._plane.request("GET", self.managers), 20, "the ShareManager CRD")

    def start(self) -> None:
        self._loop.start()

    def stop(self) -> None:
        self._loop.stop()

    def paused(self) -> AbstractContextManager[None]:
        """Pause the thread inside the block: the real Longhorn notices a lost node only after a while."""
        return self._loop.paused()

    def provision(self, namespace: str, claim: str, volume: str, storage_class: str = "", **fields: object) -> None:
        """Create a claim, and its RWX volume with a PV, whose name differs from the volume's.

        `fields` override fields of the claim: `accessModes`, `volumeMode`.
        """
        spec = {"accessModes": ["ReadWriteMany"], "storageClassName": storage_class} | fields
        spec |= {"resources": {"requests": {"storage": "10Gi"}}}
        claims = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
        created = self._plane.request("POST", claims, {"metadata": {"name": claim}, "spec": spec})
        self.provision_claim(created, volume, f"pv-{volume}")

    def provision_claim(self, claim: Object, volume: str = "", name: str = "") -> None:
        """Create the volume and the PV of an existing claim, by default with one name, as the CSI provisioner does."""
        metadata, spec = claim["metadata"], claim["spec"]
        volume = volume or f"pvc-{metadata['uid']}"
        fields = {key: spec[key] for key in ("accessModes", "volumeMode", "storageClassName")}
        # With the claim's UID, the controller manager binds the claim at once instead of at its next sync.
        reference = {"kind": "PersistentVolumeClaim"} | {key: metadata[key] for key in ("namespace", "name", "uid")}
        spec = fields | {
            "capacity": spec["resources"]["requests"],
            "claimRef": reference,
            "csi": {"driver": DRIVER, "volumeHandle": volume},
        }
        created = self._plane.request("POST", VOLUMES, {"metadata": {"name": name or volume}, "spec": spec})
        self._volumes = {**self._volumes, created["metadata"]["name"]: created}

    def remove_volume(self, volume: str) -> None:
        """Stop tracking a volume, and delete its ShareManager and share-manager pod."""
        self._volumes = {name: pv for name, pv in self._volumes.items() if name != f"pv-{volume}"}
        self._delete(f"{self.managers}/{volume}")
        self._delete(f"{self._pods}/share-manager-{volume}?gracePeriodSeconds=0")

    def share_manager(self, volume: str) -> Object | None:
        return self._get(f"{self.managers}/{volume}")

    def pod(self, volume: str) -> Object | None:
        return self._get(f"{self._pods}/share-manager-{volume}")

    def wait_running(self, volume: str, other_than: str = "") -> str:
        """Wait until the share-manager runs on a node other than `other_than`, and return its node."""

        def owner() -> str:
            status = (self.share_manager(volume) or {}).get("status", {})
            node = str(status.get("ownerID", ""))
            return node if status.get("state") == "running" and node != other_than else ""

        return self._loop.wait(self._plane, owner, 20, f"the share-manager of {volume} running")

    def wait_stopped(self, volume: str) -> None:
        """Wait until the share-manager is `stopped` and its pod is gone."""

        def has_stopped() -> bool:
            manager = self.share_manager(volume) or {}
            return manager.get("status", {}).get("state") == "stopped" and self.pod(volume) is None

        self._loop.wait(self._plane, has_stopped, 30, f"the share-manager of {volume} stopped")

    def _reconcile(self) -> None:
        attached = self._attach()
        managers = {each["metadata"]["name"]: each for each in self._list(self.managers)}
        not_stopped = {name for name, each in managers.items() if each.get("status", {}).get("state") != "stopped"}
        if not attached and not not_stopped:
            return
        pods = {each["metadata"]["name"].removeprefix("share-manager-"): each for each in self._list(self._pods)}
        ready = {each["metadata"]["name"] for each in self._list("/api/v1/nodes") if _is_ready(each)}
        for volume, attachments in attached.items():
            self._advance(volume, attachments, managers.get(volume), pods.get(volume), ready)
        for volume in not_stopped - attached.keys():
            self._stop_manager(managers[volume], pods.get(volume))

    def _attach(self) -> dict[str, list[Object]]:
        """Mark new VolumeAttachments as attached; return each volume's attachments: the PV and the node."""
        attached: dict[str, list[Object]] = defaultdict(list)
        for attachment in self._list(f"{STORAGE}/volumeattachments"):
            metadata, spec = attachment["metadata"], attachment["spec"]
            if spec["attacher"] != DRIVER or "deletionTimestamp" in metadata:
                continue
            if (pv := self._volumes.get(spec["source"]["persistentVolumeName"])) is None:
                continue
            if not attachment.get("status", {}).get("attached"):
                path = f"{STORAGE}/volumeattachments/{metadata['name']}/status"
                self._plane.request("PATCH", path, {"status": {"attached": True}})
            if pv["spec"]["volumeMode"] != "Block":
                attached[pv["spec"]["csi"]["volumeHandle"]].append({"pv": pv, "node": spec["nodeName"]})
        return attached

    def _advance(
        self, volume: str, attachments: list[Object], manager: Object | None, pod: Object | None, ready: set[str]
    ) -> None:
        """Bring the ShareManager and the pod of an attached volume one step forward."""
        if manager is None:
            kind = {"apiVersion": "longhorn.io/v1beta2", "kind": "ShareManager", "metadata": {"name": volume}}
            self._create(self.managers, kind | {"spec": {"image": "longhornio/longhorn-share-manager:v1.10.0"}})
        elif pod is not None and "deletionTimestamp" not in pod["metadata"]:
            node = pod["spec"].get("nodeName", "")
            if node and node not in ready:
                self._lost_nodes[volume] = node
                self._delete(f"{self._pods}/share-manager-{volume}?gracePeriodSeconds=0")
                self._set_state(volume, "error")
            elif pod["status"].get("phase") == "Running":
                self._set_state(volume, "running", owner=node, current=manager)
        elif pod is None:
            owner = manager.get("status", {}).get("ownerID", "")
            if owner not in ready:
                attached_nodes = {each["node"] for each in attachments}
                owner = random.choice(sorted(ready - attached_nodes) or sorted(attached_nodes))
            self._set_state(volume, "starting", owner=owner, current=manager)
            self._create(self._pods, self._pod(volume, manager, attachments[0]["pv"]))
            self._lost_nodes.pop(volume, None)

    def _stop_manager(self, manager: Object, pod: Object | None) -> None:
        volume = manager["metadata"]["name"]
        if pod is None:
            self._set_state(volume, "stopped", current=manager)
        elif "deletionTimestamp" not in pod["metadata"]:
            self._set_state(volume, "stopping", current=manager)
            self._plane.request("DELETE", f"{self._pods}/share-manager-{volume}")

    def _set_state(self, volume: str, state: str, owner: str = "", current: Object | None = None) -> None:
        """Write the ShareManager's status if it differs from `current`. Without `owner`, the owner stays unchanged."""
        endpoint = f"nfs://10.0.0.1/{volume}" if state == "running" else ""
        status = {"state": state, "endpoint": endpoint} | ({"ownerID": owner} if owner else {})
        old = (current or {}).get("status", {})
        if old | status != old:
            self._plane.request("PATCH", f"{self.managers}/{volume}/status", {"status": status})

    def _pod(self, volume: str, manager: Object, pv: Object) -> Object:
        pod: Object = json.loads(RECORDED.read_text().replace("vol-disk1", volume))["request"]["object"]
        pod["metadata"]["namespace"] = self.namespace
        pod["metadata"]["ownerReferences"][0]["uid"] = manager["metadata"]["uid"]
        del pod["metadata"]["managedFields"]
        affinity: Object = {}
        storage_class = self._storage_class(pv["spec"].get("storageClassName", ""))
        if selector := storage_class.get("parameters", {}).get("shareManagerNodeSelector"):
            pod["spec"]["nodeSelector"] = dict(label.split(":") for label in selector.split(";"))
        # Longhorn puts the expressions of all topologies into one term.
        topologies = storage_class.get("allowedTopologies", [])
        allowed = [{"operator": "In", **label} for term in topologies for label in term["matchLabelExpressions"]]
        if allowed:
            term = {"matchExpressions": allowed}
            affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": [term]}
        if lost := self._lost_nodes.get(volume):
            avoided = {"key": "metadata.name", "operator": "NotIn", "values": [lost]}
            preferred = [{"weight": 100, "preference": {"matchFields": [avoided]}}]
            affinity["preferredDuringSchedulingIgnoredDuringExecution"] = preferred
        if affinity:
            pod["spec"]["affinity"] = {"nodeAffinity": affinity}
        return pod

    def _storage_class(self, name: str) -> Object:
        return (self._get(f"{STORAGE}/storageclasses/{name}") if name else None) or {}

    def _delete(self, path: str) -> None:
        with suppress(ApiError):
            self._plane.request("DELETE", path)

    def _list(self, path: str) -> list[Object]:
        # Version 0: read the API server's watch cache. Polling etcd would slow down the tests.
        found: list[Object] = self._plane.request("GET", f"{path}?resourceVersion=0")["items"]
        return found

    def _get(self, path: str) -> Object | None:
        try:
            return self._plane.request("GET", path)
        except ApiError as error:
            if error.reason != "NotFound":
                raise
            return None

    def _create(self, path: str, body: Object) -> None:
        try:
            self._plane.request("POST", path, body)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise


def _is_ready(node: Object) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in node["status"].get("conditions", []))
