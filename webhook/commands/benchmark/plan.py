"""What a benchmark creates: a namespace, a claim, and pods that satisfy the Pod Security profile `restricted`."""

import secrets

from msgspec import Struct, field

from webhook.catalog.kinds import NAMESPACES, PODS
from webhook.catalog.storage_kinds import CLAIMS
from webhook.placement.objects.fields import JsonObject

LABEL = "kubevirt-scheduler/benchmark"
SECONDS = 5  # of each operation of a probe
LONGEST = 600  # seconds: then the kubelets end the pods, also if the command was killed
HOLD = ["python3", "-c", f"import time; time.sleep({LONGEST})"]
PROBE = ["python3", "-m", "webhook.commands.benchmark.probe", "/disk/probe", "/dev/termination-log", f"{SECONDS}"]
BESIDE, ELSEWHERE = "beside", "elsewhere"
VISITS = (BESIDE, ELSEWHERE, ELSEWHERE, BESIDE)  # if the cluster gets busier meanwhile, both sides are affected alike
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


class Plan(Struct, frozen=True):
    """One benchmark: where, and with what."""

    storage_class: str
    image: str
    longhorn_namespace: str
    retains: bool = False  # whether the StorageClass retains the volumes of deleted claims
    existing_namespace: str = ""  # empty for a temporary one
    name: str = field(default_factory=lambda: f"kubevirt-scheduler-benchmark-{secrets.token_hex(3)}")

    @property
    def namespace(self) -> str:
        """Return the namespace of the claim and the pods."""
        return self.existing_namespace or self.name

    @property
    def claim_path(self) -> str:
        """Return the path of the claim."""
        return CLAIMS.object_path((self.namespace, self.name))

    @property
    def paths(self) -> list[str]:
        """Return the paths of all that the benchmark creates, in the order of their deletion."""
        pods = [f"{PODS.path_in(self.namespace)}/{self.name}-{number}" for number in range(len(VISITS) + 1)]
        return [*pods, self.claim_path] + [f"{NAMESPACES.path}/{self.name}"] * (not self.existing_namespace)

    @property
    def words(self) -> str:
        """Return what the benchmark does, for the operator."""
        kind = "existing" if self.existing_namespace else "temporary"
        return (
            f"In the {kind} namespace {self.namespace}, the benchmark creates claim {self.name} (1Gi, StorageClass "
            f"{self.storage_class}) and {len(VISITS) + 1} pods of image {self.image}. One pod keeps the share-manager "
            "running, and the others measure one after the other. The command deletes all of it, also after Ctrl-C."
        )

    def namespace_manifest(self) -> JsonObject:
        """Return the temporary namespace."""
        return {"metadata": {"name": self.name, "labels": {LABEL: self.name} | RESTRICTED}}

    def claim_manifest(self) -> JsonObject:
        """Return the claim."""
        size = {"requests": {"storage": "1Gi"}}
        spec = {"accessModes": ["ReadWriteMany"], "resources": size, "storageClassName": self.storage_class}
        return {"metadata": {"name": self.name, "labels": {LABEL: self.name}}, "spec": spec}

    def pod_manifest(self, number: int, operator: str, node: str) -> JsonObject:
        """Return a pod, on this node (In) or on another one (NotIn). Pod 0 only keeps the share-manager running.

        It needs no fsGroup and no runAsUser: the image has a user, a cluster may choose another one, and each may write
        to the volume: `SetPermissions` in
        https://github.com/longhorn/longhorn-share-manager/blob/1f69285a/pkg/server/share_manager.go
        """
        container = {
            "name": "benchmark",
            "image": self.image,
            "command": PROBE if number else HOLD,
            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [{"name": "disk", "mountPath": "/disk"}],
        }
        term = {"matchFields": [{"key": "metadata.name", "operator": operator, "values": [node]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        spec = {
            "activeDeadlineSeconds": LONGEST,
            "affinity": {"nodeAffinity": required} if node else {},
            "automountServiceAccountToken": False,
            "containers": [container],
            "restartPolicy": "Never",
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "terminationGracePeriodSeconds": 1,
            "volumes": [{"name": "disk", "persistentVolumeClaim": {"claimName": self.name}}],
        }
        return {"metadata": {"name": f"{self.name}-{number}", "labels": {LABEL: self.name}}, "spec": spec}
