"""A fake Longhorn manager on a real API server. It does what Longhorn's real controllers were seen to do.

tests/data/longhorn/ has the trails of the real ones, and tests/e2e/test_trails.py plays them here. What no trail shows
is read in the source of longhorn-manager 5ddaa369f (August 2026). A comment names its line, in
controller/share_manager_controller.go if no file is named.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from tests.support import crds
from tests.support.controlplane.api import ApiError, Object, Requests
from tests.support.controlplane.plane import ControlPlane
from tests.support.fleet import longhorn_volume, replica
from tests.support.paths import REVIEWS
from tests.support.reconcile_loop import ReconcileLoop
from tests.support.remounts import Remounts, is_serving, was_handled

DRIVER = "driver.longhorn.io"
GROUP = "/apis/longhorn.io/v1beta2"
STORAGE = "/apis/storage.k8s.io/v1"
VOLUMES = "/api/v1/persistentvolumes"
RECORDED = REVIEWS / "share-manager.json"
PRIORITY_CLASS = "longhorn-critical"  # the default of Longhorn's chart
BACK_OFF, MAX_BACK_OFF = 1.0, 120.0  # seconds; controller/utils.go:30
# The controller manager attaches volumes only to nodes with this annotation, and only if a CSIDriver exists.
ATTACHABLE = {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}


class Longhorn:
    """A fake Longhorn in one namespace. `install` creates its objects; `start` runs its thread until `stop`.

    `deletes_consumers` is what 1.12 and newer do by default after they replaced a share-manager, and `remounts` decides
    whose pods. Some tests, and the playground, need VMs that stay apart from their storage, as with 1.7.2 to 1.11. With
    `fast_failover`, a new share-manager avoids the lost node; Longhorn's default is off. New share-manager pods get
    `pod_annotations`, and the first one of a volume the node in `first_nodes`, if there is one.
    """

    def __init__(self, plane: ControlPlane, namespace: str = "longhorn-system", deletes_consumers: bool = True) -> None:
        self.namespace = namespace
        self.deletes_consumers, self.fast_failover = deletes_consumers, False
        self.remounts = Remounts()
        self.pod_annotations: Object = {}
        self.first_nodes: dict[str, str] = {}  # by volume: its first share-manager pod is bound there
        self._plane = plane
        self._requests: Requests = plane
        self.managers = f"{GROUP}/namespaces/{namespace}/sharemanagers"
        self.settings = f"{GROUP}/namespaces/{namespace}/settings"
        self.pods = f"/api/v1/namespaces/{namespace}/pods"
        self._volumes: dict[str, Object] = {}  # PVs by their name
        self._removed: set[str] = set()  # volumes
        self._lost_nodes: dict[str, str] = {}  # by volume, as the next one
        self._back_offs: dict[str, tuple[float, float]] = {}  # when the last pod was created, and the back-off since
        self._ready: set[str] = set()
        self._schedulable: set[str] = set()
        self.loop = ReconcileLoop(self._plane, f"longhorn-{namespace}", self._reconcile)

    def install(self) -> None:
        crds.install(self._plane, *(crds.crd(kind, "longhorn.io", "v1beta2") for kind in ("ShareManager", "Setting")))
        data = (crds.crd(kind, "longhorn.io", "v1beta2", status=False) for kind in ("Volume", "Replica"))
        crds.install(self._plane, *data)
        self._create(f"{STORAGE}/csidrivers", {"metadata": {"name": DRIVER}, "spec": {"attachRequired": True}})
        priority = {"metadata": {"name": PRIORITY_CLASS}, "value": 1_000_000_000}
        self._create("/apis/scheduling.k8s.io/v1/priorityclasses", priority)
        self._plane.create_namespace(self.namespace)
        account = {"metadata": {"name": "longhorn-service-account"}}
        self._create(f"/api/v1/namespaces/{self.namespace}/serviceaccounts", account)
        # Share-managers tolerate nothing by default.
        kind = {"apiVersion": "longhorn.io/v1beta2", "kind": "Setting", "metadata": {"name": "taint-toleration"}}
        self._create(self.settings, kind | {"value": ""})

    def start(self) -> None:
        self.loop.start()

    def stop(self) -> None:
        self.loop.stop()

    def paused(self) -> AbstractContextManager[None]:
        """Pause the thread inside the block: the real Longhorn notices a lost node only after a while."""
        return self.loop.paused()

    @contextmanager
    def reading(self, requests: Requests) -> Iterator[None]:
        """Let these answer the thread's requests inside the block."""
        with self.paused():
            self._requests = requests
        try:
            yield
        finally:
            with self.paused():
                self._requests = self._plane

    def add_data(self, volume: str, locality: str, nodes: Iterable[str]) -> None:
        """Create Longhorn's own object of a volume, and a healthy replica on each node. No controller acts on them."""
        data = [replica(node, volume) for node in nodes]
        for each in longhorn_volume(volume, locality, len(data), currentNodeID=""), *data:
            path = f"{GROUP}/namespaces/{self.namespace}/{each['kind'].lower()}s"
            self._create(path, each | {"metadata": each["metadata"] | {"namespace": self.namespace}})

    def remove_data(self, volumes: Iterable[str]) -> None:
        """Delete what `add_data` created for these volumes."""
        for kind in "replicas", "volumes":
            path = f"{GROUP}/namespaces/{self.namespace}/{kind}"
            for each in self._plane.request("GET", path)["items"]:
                if {each["metadata"]["name"], each["spec"].get("volumeName")} & set(volumes):
                    self._plane.request("DELETE", f"{path}/{each['metadata']['name']}")

    def provision(
        self,
        namespace: str,
        claim: str,
        volume: str,
        storage_class: str = "",
        attributes: Object | None = None,
        **fields: object,
    ) -> None:
        """Create a claim, and its RWX volume with a PV, whose name differs from the volume's.

        `fields` override fields of the claim: `accessModes`, `volumeMode`. `attributes` are `volumeAttributes`.
        """
        spec = {"accessModes": ["ReadWriteMany"], "storageClassName": storage_class} | fields
        spec |= {"resources": {"requests": {"storage": "10Gi"}}}
        claims = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
        created = self._plane.request("POST", claims, {"metadata": {"name": claim}, "spec": spec})
        self.provision_claim(created, volume, f"pv-{volume}", attributes)

    def provision_claim(
        self, claim: Object, volume: str = "", name: str = "", attributes: Object | None = None
    ) -> None:
        """Create the volume and the PV of an existing claim, by default with one name, as the CSI provisioner does."""
        metadata, spec = claim["metadata"], claim["spec"]
        volume = volume or f"pvc-{metadata['uid']}"
        fields = {key: spec[key] for key in ("accessModes", "volumeMode", "storageClassName")}
        # With the claim's UID, the controller manager binds the claim at once instead of at its next sync.
        reference = {"kind": "PersistentVolumeClaim"} | {key: metadata[key] for key in ("namespace", "name", "uid")}
        csi = {"driver": DRIVER, "volumeHandle": volume} | ({"volumeAttributes": attributes} if attributes else {})
        spec = fields | {"capacity": spec["resources"]["requests"], "claimRef": reference, "csi": csi}
        pv = {"metadata": {"name": name or volume}, "spec": spec}
        if _is_shared(pv):
            self._create_manager(volume)
        created = self._plane.request("POST", VOLUMES, pv)
        self._volumes = {**self._volumes, created["metadata"]["name"]: created}

    def remove_volume(self, volume: str) -> None:
        """Delete a volume that may be in use. Its ShareManager is stopped first: line 651."""
        self._removed.add(volume)
        self._volumes = {name: pv for name, pv in self._volumes.items() if _handle(pv) != volume}

    def share_manager(self, volume: str) -> Object | None:
        return self._plane.find(f"{self.managers}/{volume}")

    def pod(self, volume: str) -> Object | None:
        return self._plane.find(f"{self.pods}/share-manager-{volume}")

    def wait_running(self, volume: str, other_than: str = "") -> str:
        """Wait until the share-manager runs on a node other than `other_than`, and return its node.

        The owner may be another node: it leaves a node that is cordoned, and the pod stays.
        """

        def node() -> str:
            manager, pod = self.share_manager(volume) or {}, self.pod(volume)
            if manager.get("status", {}).get("state") != "running" or pod is None or _is_terminating(pod):
                return ""
            return found if (found := _node(pod)) != other_than else ""

        return self.loop.wait(node, 20, f"the share-manager of {volume} running")

    def _create_manager(self, volume: str) -> None:
        """Create a ShareManager, give it an owner, and stop it, before the PV exists."""
        kind = {"apiVersion": "longhorn.io/v1beta2", "kind": "ShareManager", "metadata": {"name": volume}}
        self._create(self.managers, kind | {"spec": {"image": "longhornio/longhorn-share-manager:v1.10.0"}})
        self._watch_nodes()
        for status in {"state": "", "ownerID": self._next_owner("", "")}, {"state": "stopped"}:
            self._set_status(volume, status)

    def _reconcile(self) -> None:
        managers = {each["metadata"]["name"]: each for each in self._list(self.managers)}
        if not managers and not self._volumes:
            return
        self._watch_nodes()
        pods = {each["metadata"]["name"].removeprefix("share-manager-"): each for each in self._list(self.pods)}
        attachments = self._attachments()
        volumes = {_handle(pv): pv for pv in self._volumes.values() if _is_shared(pv)}
        for volume, manager in managers.items():
            # An untracked one without a state is being created.
            if volume in volumes or _state(manager):
                self._sync(manager, pods.get(volume), attachments.get(volume, []), volumes.get(volume, {}))
                self._delete_consumers(volume, pods.get(volume))

    def _watch_nodes(self) -> None:
        nodes = self._list("/api/v1/nodes")
        self._ready = {each["metadata"]["name"] for each in nodes if _is_ready(each)}
        cordoned = {each["metadata"]["name"] for each in nodes if each["spec"].get("unschedulable")}
        self._schedulable = self._ready - cordoned

    def _attachments(self) -> dict[str, list[Object]]:
        """Return the VolumeAttachments of each shared volume. Attach all other volumes at once."""
        found: dict[str, list[Object]] = {}
        for attachment in self._list(f"{STORAGE}/volumeattachments"):
            pv = self._volumes.get(attachment["spec"]["source"]["persistentVolumeName"])
            if pv is None or _is_terminating(attachment):
                continue
            if _is_shared(pv):
                found.setdefault(_handle(pv), []).append(attachment)
            else:
                self._attach(attachment, _handle(pv))
        return found

    def _attach(self, attachment: Object, volume: str) -> None:
        if not attachment.get("status", {}).get("attached"):
            path = f"{STORAGE}/volumeattachments/{attachment['metadata']['name']}/status"
            self._requests.request("PATCH", path, {"status": {"attached": True} | self._attachment_status(volume)})

    def _attachment_status(self, volume: str) -> Object:  # noqa: ARG002 (for real nodes)
        return {}

    def _sync(self, manager: Object, pod: Object | None, attachments: list[Object], pv: Object) -> None:
        """Bring a ShareManager one step forward (`syncShareManager`).

        Its pod is created before its status is written, and deleted after that.
        """
        volume, before = manager["metadata"]["name"], _state(manager)
        owner = manager.get("status", {}).get("ownerID", "")
        if (next_owner := self._next_owner(owner, _node(pod))) != owner:
            self._set_status(volume, {"ownerID": next_owner})
        state = self._next_state(before, pod, bool(attachments), next_owner)
        if before == "error" and state in ("starting", "running"):
            if not self._is_replaced(manager, pod, pv):
                return
            state = "starting"
        elif state == "starting" and pod is None:
            self._create_pod(manager, pv)
        self._store(volume, before, state)
        if state == "running":
            for attachment in attachments:
                self._attach(attachment, volume)
        elif state != "starting" and pod is not None:
            self._delete_pod(volume, pod)
        elif state != "starting" and volume in self._removed:
            self._delete(f"{self.managers}/{volume}")
            self._removed.discard(volume)

    def _store(self, volume: str, before: str, state: str) -> None:
        if state != before:
            endpoint = f"nfs://10.0.0.1/{volume}" if state == "running" else ""
            self._set_status(volume, {"state": state, "endpoint": endpoint})
        if state == "error":
            self.remounts.request(volume, again=before == "error")

    def _is_replaced(self, manager: Object, pod: Object | None, pv: Object) -> bool:
        """Create the pod that replaces a lost one, and return whether `error` has ended then."""
        volume = manager["metadata"]["name"]
        if lasts := self.remounts.lasts(volume):
            self.remounts.request(volume, again=True)
        elif pod is None and self.deletes_consumers and not self.remounts.is_past(volume):
            return False
        if pod is None:
            self._create_pod(manager, pv)
        return not lasts or was_handled(pod)

    def _next_owner(self, owner: str, node: str) -> str:
        """Return the owner of a ShareManager whose pod is on this node: `isResponsibleFor`.

        With no schedulable node at all, the owner only leaves a node that isn't ready: line 1772.
        """
        if node in (able := self._schedulable or self._ready):
            return node
        return owner if owner in able or not able else random.choice(sorted(able))

    def _next_state(self, state: str, pod: Object | None, required: bool, owner: str) -> str:
        """Return the state of a ShareManager after `syncShareManagerVolume`, then `syncShareManagerPod`."""
        # Line 705: it can't start from a node that isn't schedulable, but may go on there.
        if not required or (state != "running" and owner not in self._schedulable):
            state = "stopped" if state == "stopped" else "stopping"
        elif state not in ("running", "stopping"):  # line 717: after `stopping`, it is `stopped` before it starts again
            state = "starting"
        if state == "stopped":
            return state
        if pod is None:
            return {"stopping": "stopped", "starting": "starting"}.get(state, "error")
        if state == "stopping":
            return state
        phase, node = pod["status"].get("phase"), _node(pod)
        if _is_terminating(pod) or (node and node not in self._ready):
            return "error"
        if phase == "Running" and not is_serving(pod):
            return state
        # Lines 975 to 998: a pod that Failed or Succeeded, or is Pending although the state was `running`.
        return {"Running": "running", "Pending": state if state == "starting" else "error"}.get(phase, "error")

    def _set_status(self, volume: str, status: Object) -> None:
        self._requests.request("PATCH", f"{self.managers}/{volume}/status", {"status": status})

    def _create_pod(self, manager: Object, pv: Object) -> None:
        """Create the pod, but for the back-off, which grows with each pod of a volume, failed or not: line 912."""
        volume, now = manager["metadata"]["name"], time.monotonic()
        created_at, back_off = self._back_offs.get(volume, (0.0, 0.0))
        if now - created_at < back_off:
            return
        # client-go's Backoff forgets a volume after twice the longest back-off.
        forgotten = now - created_at > 2 * MAX_BACK_OFF
        next_back_off = BACK_OFF if forgotten or not back_off else min(2 * back_off, MAX_BACK_OFF)
        self._back_offs[volume] = now, next_back_off
        self._create(self.pods, self._pod(volume, manager, pv))
        self._lost_nodes.pop(volume, None)

    def _delete_pod(self, volume: str, pod: Object) -> None:
        """Delete the pod, by force if its node is down: `cleanupShareManagerPod`."""
        node, path = _node(pod), f"{self.pods}/share-manager-{volume}"
        if node and node not in self._ready:
            # There is no Lease here, which only Longhorn reads: a node counts as lost when it isn't ready.
            if self.fast_failover:
                self._lost_nodes[volume] = node
            self._delete(f"{path}?gracePeriodSeconds=0")
        elif not _is_terminating(pod):
            self._delete(path)

    def _delete_consumers(self, volume: str, server: Object | None) -> None:
        """Delete the pods that still mount the share of a replaced share-manager."""
        for pod in self.remounts.take(volume, server, lambda: self._consumers(volume), self._ready):
            metadata = pod["metadata"]
            path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
            if self.deletes_consumers:
                self._delete(f"{path}?gracePeriodSeconds=30")

    def _consumers(self, volume: str) -> Iterator[Object]:
        """Yield the pods that mount a claim of the volume."""
        for pv in self._volumes.values():
            claim = pv["spec"]["claimRef"]
            if _handle(pv) != volume:
                continue
            for pod in self._list(f"/api/v1/namespaces/{claim['namespace']}/pods"):
                volumes = pod["spec"].get("volumes", [])
                if claim["name"] in [each.get("persistentVolumeClaim", {}).get("claimName") for each in volumes]:
                    yield pod

    def _pod(self, volume: str, manager: Object, pv: Object) -> Object:
        pod: Object = json.loads(RECORDED.read_text().replace("vol-disk1", volume))["request"]["object"]
        metadata, spec = pod["metadata"], pod["spec"]
        metadata["namespace"] = self.namespace
        metadata["annotations"] |= self.pod_annotations
        owner = metadata["ownerReferences"][0]
        owner["uid"] = manager["metadata"]["uid"]
        del metadata["managedFields"], owner["blockOwnerDeletion"], spec["priority"], spec["preemptionPolicy"]
        spec["priorityClassName"] = PRIORITY_CLASS
        affinity: Object = {}
        storage_class = self._storage_class(pv["spec"].get("storageClassName", ""))
        parameters = storage_class.get("parameters", {})
        spec["nodeSelector"] = _node_selector(parameters.get("shareManagerNodeSelector", ""))
        spec["tolerations"] += _tolerations(parameters.get("shareManagerTolerations", ""))
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
            spec["affinity"] = {"nodeAffinity": affinity}
        if node := self.first_nodes.pop(volume, ""):
            spec["nodeName"] = node
        return pod

    def _storage_class(self, name: str) -> Object:
        return (self._plane.find(f"{STORAGE}/storageclasses/{name}") if name else None) or {}

    def _delete(self, path: str) -> None:
        with suppress(ApiError):
            self._requests.request("DELETE", path)

    def _list(self, path: str) -> list[Object]:
        # Version 0: read the API server's watch cache. Polling etcd would slow down the tests.
        found: list[Object] = self._requests.request("GET", f"{path}?resourceVersion=0")["items"]
        return found

    def _create(self, path: str, body: Object) -> None:
        try:
            self._requests.request("POST", path, body)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise


def _is_ready(node: Object) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in node["status"].get("conditions", []))


def _is_terminating(item: Object) -> bool:
    return "deletionTimestamp" in item["metadata"]


def _handle(pv: Object) -> str:
    return str(pv["spec"]["csi"]["volumeHandle"])


def _node(pod: Object | None) -> str:
    return str(pod["spec"].get("nodeName", "")) if pod else ""


def _state(manager: Object) -> str:
    return str(manager.get("status", {}).get("state", ""))


def _is_shared(pv: Object) -> bool:
    """Return whether the volume has a ShareManager: `isRegularRWXVolume`. The access mode is csi/util.go:632."""
    attributes = pv["spec"]["csi"].get("volumeAttributes", {})
    many = any(mode in ("ReadWriteMany", "ReadOnlyMany") for mode in pv["spec"]["accessModes"])
    return (many or attributes.get("share") == "true") and attributes.get("migratable") != "true"


# Not the product's parsers of these settings, whose mistakes the tests would otherwise share.


def _node_selector(setting: str) -> Object:
    """Parse "disk:ssd; rack:7"."""
    return {key.strip(): value.strip() for key, value in (part.split(":") for part in setting.split(";") if part)}


def _tolerations(setting: str) -> list[Object]:
    """Parse "a=b:NoSchedule; c:NoExecute"."""
    found = []
    for part in filter(None, setting.replace(" ", "").split(";")):
        pair, effect = part.split(":")
        key, equal, value = pair.partition("=")
        operator = {"operator": "Equal", "value": value} if equal else {"operator": "Exists"}
        found.append({"key": key, "effect": effect} | operator)
    return found
