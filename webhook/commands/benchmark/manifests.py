"""What the benchmark creates: a namespace, a claim and pods that satisfy the Pod Security profile `restricted`."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from webhook.catalog.kinds import CLAIMS, NAMESPACES, PODS
from webhook.placement.objects.fields import JsonObject

LABEL = "kubevirt-scheduler/benchmark"
PROBE = "webhook.commands.benchmark.probe"
SECONDS = "5"  # of each operation of a probe
LONGEST = 600  # seconds; then a kubelet ends the pods, also if the command was killed
MOUNT = "/disk"
HOLD = ("python3", "-c", f"import time; time.sleep({LONGEST})")
MEASURE = ("python3", "-m", PROBE, f"{MOUNT}/probe", "/dev/termination-log", SECONDS)
BESIDE, ELSEWHERE = "beside", "elsewhere"
VISITS = (BESIDE, ELSEWHERE, ELSEWHERE, BESIDE)  # a trend, such as a cluster that gets busier, hits both sides alike


@dataclass(frozen=True, slots=True)
class Plan:
    """One benchmark: where, and with what."""

    storage_class: str
    image: str
    longhorn_namespace: str
    retains: bool = False  # whether the StorageClass retains the volumes of deleted claims
    existing_namespace: str = ""  # empty for a temporary one
    pull_secrets: Sequence[JsonObject] = ()
    name: str = field(default_factory=lambda: f"kubevirt-scheduler-benchmark-{secrets.token_hex(3)}")

    @property
    def namespace(self) -> str:
        """Return the namespace of the claim and the pods."""
        return self.existing_namespace or self.name

    @property
    def paths(self) -> list[str]:
        """Return the paths of all that the benchmark may create, in the order of their deletion."""
        pods = [PODS.object_path((self.namespace, self.pod_name(number))) for number in range(len(VISITS) + 1)]
        claim = CLAIMS.object_path((self.namespace, self.name))
        return [*pods, claim] if self.existing_namespace else [*pods, claim, f"{NAMESPACES.path}/{self.name}"]

    def pod_name(self, number: int) -> str:
        """Return the name of the pod of a visit; 0 is the one that keeps the share-manager running."""
        return f"{self.name}-{number}-{VISITS[number - 1]}" if number else f"{self.name}-holder"

    def describe(self) -> list[str]:
        """Return what the benchmark creates, for the operator."""
        namespace = f"Namespace {self.namespace}" + (" (exists)" if self.existing_namespace else "")
        return [
            namespace,
            f"Claim {self.name}: 1Gi, ReadWriteMany, StorageClass {self.storage_class}",
            f"Pod {self.pod_name(0)}: keeps the share-manager of the claim on its node",
            *(f"Pod {self.pod_name(number)}: measures, {WHERE[side]}" for number, side in enumerate(VISITS, 1)),
        ]

    def namespace_manifest(self) -> JsonObject:
        """Return the temporary namespace."""
        return {"metadata": {"name": self.name, "labels": self._labels | RESTRICTED}}

    def claim_manifest(self) -> JsonObject:
        """Return the claim."""
        spec = {
            "accessModes": ["ReadWriteMany"],
            "volumeMode": "Filesystem",
            "storageClassName": self.storage_class,
            "resources": {"requests": {"storage": "1Gi"}},
        }
        return {"metadata": {"name": self.name, "labels": self._labels}, "spec": spec}

    def pod_manifest(self, number: int, operator: str = "", node: str = "") -> JsonObject:
        """Return the pod of a visit, on this node (In) or on another one (NotIn); without a node, on any.

        It needs no fsGroup and no runAsUser: the image has a user, a cluster may choose another one, and each may write
        to the volume: `SetPermissions` in
        https://github.com/longhorn/longhorn-share-manager/blob/1f69285a/pkg/server/share_manager.go
        """
        container = {
            "name": "benchmark",
            "image": self.image,
            "command": [*(MEASURE if number else HOLD)],
            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            },
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [{"name": "disk", "mountPath": MOUNT}],
        }
        term = {"matchFields": [{"key": "metadata.name", "operator": operator, "values": [node]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        spec = {
            "activeDeadlineSeconds": LONGEST,
            "affinity": {"nodeAffinity": required} if node else {},
            "automountServiceAccountToken": False,
            "containers": [container],
            "enableServiceLinks": False,
            "imagePullSecrets": [*self.pull_secrets],
            "restartPolicy": "Never",
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "terminationGracePeriodSeconds": 1,
            "volumes": [{"name": "disk", "persistentVolumeClaim": {"claimName": self.name}}],
        }
        return {"metadata": {"name": self.pod_name(number), "labels": self._labels}, "spec": spec}

    @property
    def _labels(self) -> dict[str, str]:
        return {LABEL: self.name}


RESTRICTED = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
WHERE = {BESIDE: "beside the share-manager", ELSEWHERE: "on another node"}
