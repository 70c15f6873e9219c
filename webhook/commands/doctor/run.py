"""Run the checks in their order. Each has the name of its heading in docs/reference/doctor.md."""

from collections.abc import Callable, Iterator
from functools import partial

from certs.cluster import CONFIGURATIONS
from webhook.commands.doctor import (
    admission,
    before_installation,
    installed_webhook,
    known_bugs,
    loopback_nfs,
    nodes,
    webhook_calls,
)
from webhook.commands.doctor.inspection import Denied, Inspection
from webhook.commands.doctor.result import Level, Result, failure
from webhook.reading.installation import Installation, find_installation

BEFORE: dict[str, Callable[[Inspection], Iterator[Result]]] = {
    "kubernetes": before_installation.kubernetes,
    "kubevirt": before_installation.kubevirt,
    "longhorn": before_installation.longhorn,
    "known-bugs": known_bugs.known_bugs,
    "claims": before_installation.claims,
    "loopback-nfs": loopback_nfs.loopback_nfs_before,
    "install-rights": before_installation.install_rights,
}
AFTER: dict[str, Callable[[Inspection, Installation], Iterator[Result]]] = {
    "replicas": installed_webhook.replicas,
    "caches": installed_webhook.caches,
    "certificates": installed_webhook.certificates,
    "accounts": webhook_calls.accounts,
    "calls": webhook_calls.calls,
    "selection": admission.selection,
    "undecided": webhook_calls.undecided,
    "other-webhooks": admission.other_webhooks,
    "rights": installed_webhook.rights,
    "nodes": nodes.nodes,
    "known-bugs": lambda inspection, _: known_bugs.known_bugs(inspection),
    "loopback-nfs": loopback_nfs.loopback_nfs,
}
CONFIGURATION = "configuration"


def run_before(inspection: Inspection) -> Iterator[tuple[str, Result]]:
    """Run the checks before an installation. Raises BadInput if the cluster can't be read."""
    for name, check in BEFORE.items():
        yield from ((name, result) for result in _results(partial(check, inspection)))


def run_after(inspection: Inspection) -> Iterator[tuple[str, Result]]:
    """Run the checks of the installed webhook. Raises BadInput if the cluster can't be read."""
    try:
        configuration = inspection.get(f"{CONFIGURATIONS}/{inspection.configuration}")
        found = find_installation(inspection, configuration, inspection.settings) if configuration else None
    except Denied as error:
        yield CONFIGURATION, _not_checked(error)
        return
    if found is None:
        finding = f'MutatingWebhookConfiguration "{inspection.configuration}" not found'
        advice = "Install the chart, or specify the name of its configuration: --webhook-configuration NAME"
        yield CONFIGURATION, failure(finding, advice)
        return
    for name, check in AFTER.items():
        yield from ((name, result) for result in _results(partial(check, inspection, found)))


def run_own_calls(inspection: Inspection, seconds: float) -> Iterator[tuple[str, Result]]:
    """Check only the calls, with the user's own account. Raises BadInput if the API server rejects the pod."""
    yield from (("calls", result) for result in webhook_calls.own_calls(inspection, seconds))


def _results(check: Callable[[], Iterator[Result]]) -> list[Result]:
    try:
        return list(check())
    except Denied as error:
        return [_not_checked(error)]


def _not_checked(error: Denied) -> Result:
    advice = "Run the command as a user with this right, for example as a cluster administrator."
    return Result(Level.UNKNOWN, f"not checked: {error}", advice)
