"""`kubevirt-scheduler check`: test that the API server calls the webhook for VM pods. `helm test` runs it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import click

from webhook.commands.options import connect, live_options
from webhook.placement.affinity import DECISION
from webhook.placement.objects.fields import JsonObject, printable, text
from webhook.placement.objects.kubevirt import APP_LABEL, VIRT_LAUNCHER, VMI_NAME_ANNOTATION
from webhook.placement.settings import read_settings
from webhook.placement.wording import OBSERVED
from webhook.reading.documents import BadInput

if TYPE_CHECKING:
    from webhook.cluster.client import ClusterClient

AttemptResult: TypeAlias = tuple[str, str]  # decision, problem; the problem counts only if the decision is empty

NAME = "kubevirt-scheduler-check"
DEFAULT_TIMEOUT = 60  # seconds; after an installation, the certificate and the caBundle need some time to appear
RETRY_INTERVAL = 2.0  # seconds between attempts
REQUEST_TIMEOUT = 15.0  # seconds; one review may take up to `timeoutSeconds`, and other webhooks may add their own time


@click.command(short_help="test that the API server calls the webhook")
@click.option(
    "-n", "--namespace", default="default", show_default=True, metavar="NAME", help="The test pod's namespace."
)
@click.option(
    "--webhook-configuration",
    "configuration",
    default="kubevirt-scheduler",
    show_default=True,
    metavar="NAME",
    help="The MutatingWebhookConfiguration to name in the error message.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0),
    default=DEFAULT_TIMEOUT,
    show_default=True,
    metavar="SECONDS",
    help="How long to retry. With 0, the command tries once.",
)
@live_options
def check(namespace: str, configuration: str, timeout: float, kubeconfig: str | None, context: str | None) -> None:
    """Create the pod of an opted-in VM as a dry run, and check that the response contains a decision.

    The API server stores nothing, and nothing starts. You need the right to create pods in the namespace. The API
    server calls the chart's webhook only for KubeVirt's controller, and for dry runs of the account of `helm test`;
    for the latter, the decision is NotFromKubeVirt. The opt-in
    annotation is the first of CO_SCHEDULE_OPT_IN_ANNOTATIONS. With CO_SCHEDULE_ACTION=observe, the webhook changes no
    pod and reports its decision as a warning.

    Exit status 0: the command printed the decision. 1: the response contains no decision, or there is no response.

    \b
    Examples:
      kubevirt-scheduler check
      kubevirt-scheduler check -n shop --timeout 0
    """  # noqa: D301 (click's mark for a block whose line breaks are kept)
    key = read_settings(os.environ).opt_in_annotations[0]
    cluster = connect(kubeconfig, context)
    decision, problem = retry(partial(attempt, cluster, namespace, key), timeout)
    if decision:
        click.echo(printable(f"The webhook decided on a test pod in namespace {namespace}: {decision}"))
        return
    raise click.ClickException(
        printable(
            f"namespace {namespace}: {problem}. Check that the webhook is ready, has a caBundle, and selects this "
            "namespace. If it requires client certificates (tls.clientCA), check that the API server has one. "
            f"Read the configuration: kubectl get mutatingwebhookconfiguration {configuration} -o yaml"
        )
    )


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
    from webhook.cluster.client import ClusterError  # noqa: PLC0415 (takes a second to import)

    path, warnings = f"/api/v1/namespaces/{namespace}/pods?dryRun=All", list[str]()
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
    """Return the decision of a webhook in observe mode, or an empty string."""
    found = (warning.partition(OBSERVED)[2].rstrip('"') for warning in warnings)
    return next((f"{decision} (observed only)" for decision in found if decision), "")


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
