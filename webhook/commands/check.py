"""`kubevirt-scheduler check`: does the API server show pods of VMs to the webhook? This is what `helm test` runs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import click

from webhook.cluster.documents import BadInput, printable
from webhook.commands.options import connect, live_options
from webhook.placement.affinity import DECISION
from webhook.placement.settings import read_settings
from webhook.placement.shape import JsonObject, text

if TYPE_CHECKING:
    from webhook.cluster.client import ClusterClient

Found: TypeAlias = tuple[str, str]  # the decision, and the problem

NAME = "kubevirt-scheduler-check"
PATIENCE = 60  # seconds: after an installation it takes some until certificate and caBundle are there
PAUSE = 2.0  # seconds between two tries
ANSWER = 15.0  # seconds: a review may take as long as `timeoutSeconds`, and there may be other webhooks


@click.command(short_help="create a VM's pod, as a dry run, and see whether it was changed")
@click.option("-n", "--namespace", default="default", show_default=True, metavar="NAME", help="Where to create it.")
@click.option(
    "--webhook-configuration",
    "configuration",
    default="kubevirt-scheduler",
    show_default=True,
    metavar="NAME",
    help="The MutatingWebhookConfiguration to look at where it was not.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0),
    default=PATIENCE,
    show_default=True,
    metavar="SECONDS",
    help="How long to try again; 0 tries once.",
)
@live_options
def check(namespace: str, configuration: str, timeout: float, kubeconfig: str | None, context: str | None) -> None:
    """Create a pod like that of an opted-in VM, as a dry run, and see whether it came back with a decision.

    Nothing is stored, and nothing starts. It needs the right to create pods in the namespace. Exit status 0: the
    decision is printed. 1: the pod came back without one, or not at all. Which annotation opts a VM in is read from
    CO_SCHEDULE_OPT_IN_ANNOTATIONS.

    \b
    Examples:
      kubevirt-scheduler check
      kubevirt-scheduler check -n shop --timeout 0
    """  # noqa: D301 (click's mark of a block that keeps its lines)
    key = read_settings(os.environ).opt_in_annotations[0]
    cluster = connect(kubeconfig, context)
    decision, problem = retry(partial(attempt, cluster, namespace, key), timeout)
    if decision:
        click.echo(printable(f"A pod like a VM's came back from namespace {namespace} with this decision: {decision}"))
        return
    raise click.ClickException(
        printable(
            f"namespace {namespace}: {problem}. See whether the webhook is ready, whether its caBundle is there, and "
            f"whether it is meant for this namespace: kubectl get mutatingwebhookconfiguration {configuration} -o yaml"
        )
    )


def retry(
    once: Callable[[], Found],
    patience: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Found:
    """Try once, and again until there is a decision or the patience, in seconds, is at its end."""
    last = clock() + patience
    while True:
        decision, problem = once()
        if decision or clock() + PAUSE > last:
            return decision, problem
        sleep(PAUSE)


def attempt(cluster: ClusterClient, namespace: str, key: str) -> Found:
    """Create the pod; return the decision, or else why there is none. Raises BadInput where waiting can't help."""
    from webhook.cluster.client import ClusterError  # noqa: PLC0415 (the client takes a second to import)

    try:
        pod = cluster.send("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", vm_pod(key), ANSWER)
    except ClusterError as error:
        # A webhook that fails, with failurePolicy Fail, is a 500.
        if 400 <= error.code < 500 and error.code != 429:
            raise BadInput(f"the API server does not take the pod: {error}") from None
        return "", f"the API server does not answer: {error}"
    decision = text(pod, "metadata", "annotations", DECISION)
    return decision, f"the pod came back without the annotation {DECISION}, so that the webhook was not asked"


def vm_pod(key: str) -> JsonObject:
    """Return a pod that is a VM's as far as the webhook can tell, opted in, and as harmless as a namespace may ask."""
    # Asked for and limited, in case there is a quota; unprivileged, in case the namespace is restricted.
    enough = {"cpu": "1m", "memory": "1Mi"}
    container = {
        "name": "compute",
        "image": NAME,  # of a dry run nobody pulls it
        "resources": {"requests": enough, "limits": enough},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"virt-launcher-{NAME}-",
            "labels": {"kubevirt.io": "virt-launcher"},
            "annotations": {key: "true", "kubevirt.io/domain": NAME},
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
            # A pod without a claim is left alone. This one need not exist: that is a decision too.
            "volumes": [{"name": "disk", "persistentVolumeClaim": {"claimName": NAME}}],
        },
    }
