"""The webhook reports each missing right. Every other scenario runs with the documented rights, and no others."""

from __future__ import annotations

import json
from contextlib import ExitStack

import pytest

from tests.support.controlplane.plane import ControlPlane
from tests.support.longhorn import Longhorn
from tests.support.scenario import Scenario
from tests.support.webhook_process import NAMESPACE, RIGHTS, Right, Webhook, create_service_account

pytestmark = pytest.mark.controlplane

# Without VMs only the release stops, without CSINodes and namespaces some VMs are only preferred.
OPTIONAL = {"virtualmachines", "csinodes", "namespaces", "storageclasses"}
KINDS = [kind for _, kind, verbs in RIGHTS if "list" in verbs and kind not in OPTIONAL]


def without(*missing: tuple[str, str]) -> tuple[Right, ...]:
    """Return the documented rights without these pairs of verb and resource."""
    return tuple(
        (group, kind, tuple(verb for verb in verbs if (verb, kind) not in missing)) for group, kind, verbs in RIGHTS
    )


def webhook_without(plane: ControlPlane, name: str, *missing: tuple[str, str]) -> Webhook:
    token = create_service_account(plane, name, without(*missing))
    return Webhook(plane, name, plane.write_kubeconfig(plane.folder / f"{name}-kubeconfig", token), {})


def refusal(webhook: Webhook, verb: str, kind: str) -> str:
    """Return the API server's message that the webhook's account lacks a right."""
    return f'User "system:serviceaccount:{NAMESPACE}:{webhook.name}" cannot {verb} resource "{kind}"'


def test_a_missing_right_to_write_events_is_logged_and_no_vm_is_rejected(
    plane: ControlPlane, longhorn: Longhorn
) -> None:
    with webhook_without(plane, "may-not-create", ("create", "events")) as webhook:
        scenario = Scenario(plane, longhorn, webhook.register(share_managers=False))
        scenario.create(scenario.vm_pod("vm1", "no-such-claim"))
        message = refusal(webhook, "create", "events")
        plane.wait(lambda: webhook.logged(message), 20, f"a log line with: {message}")
        scenario.close()


def is_reported(webhook: Webhook, verb: str, kind: str) -> bool:
    """Return whether the log, /readyz and the metrics report that a right is missing."""
    message = refusal(webhook, verb, kind)
    metric = f'kubevirt_scheduler_cache_forbidden{{resource="{kind}"}} 1.0'
    reported = webhook.logged(message) and message in problems(webhook).get(kind, "")
    return reported and metric in webhook.get("/metrics")[1]


def problems(webhook: Webhook) -> dict[str, str]:
    found: dict[str, str] = json.loads(webhook.get("/readyz")[1])["problems"]
    return found


@pytest.mark.parametrize("verb", ["list", "watch"])
def test_missing_rights_are_reported_and_a_missing_list_keeps_the_webhook_unready(
    plane: ControlPlane, verb: str
) -> None:
    webhook = webhook_without(plane, f"may-not-{verb}", *((verb, kind) for kind in KINDS))
    with ExitStack() as stack:
        stack.callback(webhook.stop)
        webhook.process.start()  # not `with webhook`, because it never becomes ready
        for kind in KINDS:
            plane.wait(lambda kind=kind: is_reported(webhook, verb, kind), 20, f"no right to {verb} {kind}")
        assert verb != "list" or webhook.get("/readyz")[0] == 503
