"""Create a VM's pod as a dry run, and find the webhook's decision in the response."""

import time
from collections.abc import Callable

from webhook.cluster.client import ClusterClient
from webhook.cluster.credentials import ClusterError
from webhook.placement.affinity import DECISION
from webhook.placement.objects.fields import JsonObject, text
from webhook.placement.objects.kubevirt import APP_LABEL, VIRT_LAUNCHER, VMI_NAME_ANNOTATION
from webhook.placement.wording import OBSERVED
from webhook.reading.api import REQUEST_TIMEOUT
from webhook.reading.documents import BadInput

AttemptResult = tuple[str, str]  # decision, problem; the problem counts only if the decision is empty

NAME = "kubevirt-scheduler-check"
RETRY_INTERVAL = 2.0  # seconds between attempts


def retry(
    once: Callable[[], AttemptResult],
    timeout: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> AttemptResult:
    """Call `once` until it returns a decision or `timeout` seconds have passed, but at least one time."""
    deadline = clock() + timeout
    while True:
        decision, problem = once()
        if decision or clock() + RETRY_INTERVAL > deadline:
            return decision, problem
        sleep(RETRY_INTERVAL)


def attempt(cluster: ClusterClient, namespace: str, key: str) -> AttemptResult:
    """Create the pod as a dry run, and return the decision and the problem.

    Raises BadInput if the API server rejects the pod, so that a retry can't help.
    """
    path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"
    warnings = list[str]()
    try:
        pod = cluster.send("POST", path, probe_pod(key), REQUEST_TIMEOUT, warnings)
    except ClusterError as error:
        # With failurePolicy Fail, a failing webhook makes the API server respond with 500. The webhook may recover.
        if 400 <= error.code < 500 and error.code != 429:
            raise BadInput(f"the API server rejected the pod: {error}") from None
        return "", f"cannot create the pod: {error}"
    decision = text(pod, "metadata", "annotations", DECISION) or _observed(warnings)
    cause = "the API server did not call the webhook, or the call failed"
    return decision, f"the response lacks the annotation {DECISION}: {cause}"


def _observed(warnings: list[str]) -> str:
    """Return the decision of a webhook that added no annotation, or an empty string."""
    found = (warning.partition(OBSERVED)[2].rstrip('"') for warning in warnings)
    return next(filter(None, found), "")


def probe_pod(key: str) -> JsonObject:
    """Return an opted-in pod that the webhook treats as a VM's and that a restricted namespace admits."""
    # A ResourceQuota may require requests and limits. Pod Security may require the unprivileged securityContext.
    minimum = {"cpu": "1m", "memory": "1Mi"}
    container = {
        "name": "compute",
        "image": NAME,  # not pulled, because this is a dry run
        "resources": {"requests": minimum, "limits": minimum},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"virt-launcher-{NAME}-",
            "labels": {APP_LABEL: VIRT_LAUNCHER},
            "annotations": {key: "true", VMI_NAME_ANNOTATION: NAME},
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
            # The webhook ignores pods without a claim. This claim need not exist: NoShareManager is a decision too.
            "volumes": [{"name": "disk", "persistentVolumeClaim": {"claimName": NAME}}],
        },
    }
