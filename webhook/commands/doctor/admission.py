"""The checks of the admission: which VMs the API server calls the webhook for, and which webhooks it calls later."""

from collections.abc import Iterator
from functools import cache

from certs import CONFIGURATIONS
from webhook.cluster.caches.kinds import CLAIMS, VIRTUAL_MACHINES, metadata_kinds
from webhook.cluster.caches.store import Store
from webhook.commands.doctor.inspection import Inspection, Result, failure, listed, ok, warning
from webhook.placement.objects.facts import VirtualMachine
from webhook.placement.objects.fields import JsonObject, mapping, mappings, text
from webhook.placement.objects.kubevirt import APP_LABEL, VIRT_LAUNCHER
from webhook.placement.objects.longhorn import COMPONENT_LABEL, SHARE_MANAGER
from webhook.placement.objects.selectors import labels_match
from webhook.placement.opt_in import opted_in_by, stored_applicant
from webhook.placement.reasons import OptedInBy
from webhook.placement.settings import OptIn
from webhook.reading.installation import Installation

_VM_LABELS = {APP_LABEL: VIRT_LAUNCHER}
_STORAGE_LABELS = {COMPONENT_LABEL: SHARE_MANAGER}


def selection(inspection: Inspection, found: Installation) -> Iterator[Result]:
    """Check that the webhooks select the opted-in VMs, and the share-manager pods."""
    namespaces = {
        text(item, "metadata", "name"): mapping(item, "metadata", "labels")
        for item in inspection.items("/api/v1/namespaces")
    }
    opted_in = opted_in_vms(inspection, found)
    unselected = [vm for vm in opted_in if not _selects(found, _VM_LABELS, namespaces.get(vm.namespace, {}))]
    if unselected:
        names = sorted(f"{vm.namespace}/{vm.name}" for vm in unselected)
        yield failure(
            f"the API server does not call the webhook for opted-in VMs: {len(names)} ({listed(names)})",
            "Change webhook.namespaceSelector or webhook.excludedNamespaces to select the VMs' namespaces.",
        )
    else:
        yield ok(f"the selectors of the configuration include all opted-in VMs ({len(opted_in)})")
    longhorn = found.settings.longhorn_namespace
    if longhorn not in namespaces:
        yield failure(f'namespace "{longhorn}" not found', "Set settings.longhornNamespace to Longhorn's namespace.")
    elif found.settings.steering and not _selects(found, _STORAGE_LABELS, namespaces[longhorn]):
        yield failure(
            f"the API server does not call the webhook for share-manager pods in namespace {longhorn}",
            "Upgrade the release with the right values of settings.longhornNamespace and settings.steering.",
        )


@cache
def opted_in_vms(inspection: Inspection, found: Installation) -> list[VirtualMachine]:
    """List the VMs that an annotation, a namespace or a StorageClass opts in."""
    settings = found.settings
    sources = metadata_kinds(settings) if settings.opt_in is OptIn.NAMESPACE else ()
    claims = (CLAIMS,) if sources else ()
    store = Store(fact for kind in (VIRTUAL_MACHINES, *sources, *claims) for fact in inspection.facts(kind))
    vms = sorted(store.virtual_machines.values(), key=lambda vm: vm.key)
    return [vm for vm in vms if opted_in_by(stored_applicant(vm), store, settings) is not OptedInBy.NOTHING]


def _selects(found: Installation, pod: JsonObject, namespace: JsonObject) -> bool:
    return any(
        calls_for(webhook, pod) and _matches(webhook, "namespaceSelector", namespace) for webhook in found.webhooks
    )


def _matches(webhook: JsonObject, selector: str, labels: JsonObject) -> bool:
    return labels_match(mapping(webhook, selector), labels)


def calls_for(webhook: JsonObject, labels: JsonObject) -> bool:
    """Return whether the API server calls a webhook when a pod with these labels is created in a selected namespace."""
    return _matches(webhook, "objectSelector", labels) and any(
        _names(rule, "apiGroups", "")
        and _names(rule, "resources", "pods", "*/*")
        and _names(rule, "operations", "CREATE")
        for rule in mappings(webhook, "rules")
    )


def _names(rule: JsonObject, field: str, *values: str) -> bool:
    listed_values = rule.get(field)
    return isinstance(listed_values, list) and bool({"*", *values} & {str(value) for value in listed_values})


def other_webhooks(inspection: Inspection, found: Installation) -> Iterator[Result]:
    """Check which webhooks the API server calls after this one. It calls them in the order of their names."""
    own = inspection.configuration
    later = [
        f"{text(item, 'metadata', 'name')}/{text(webhook, 'name')}"
        for item in inspection.items(CONFIGURATIONS)
        if text(item, "metadata", "name") > own
        for webhook in mappings(item, "webhooks")
        if calls_for(webhook, _VM_LABELS)
    ]
    if not later:
        yield ok("the API server calls no other webhook for VMs after this one")
        return
    finding = f"the API server calls other webhooks for VMs after this one: {len(later)} ({listed(sorted(later))})"
    if all(text(webhook, "reinvocationPolicy") == "IfNeeded" for webhook in found.webhooks):
        yield ok(f"{finding}; if they change a pod, it calls this webhook again")
    else:
        yield warning(finding, "Set webhook.reinvocationPolicy to IfNeeded, so that this webhook checks their changes.")
