"""The source of the opt-in of a VM or a pod: its own annotation, its namespace's label, or a claim's StorageClass."""

import difflib
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from webhook.placement.catalog import Catalog
from webhook.placement.objects.facts import Pod, VirtualMachine
from webhook.placement.objects.fields import JsonObject, mapping
from webhook.placement.objects.pod import Manifest
from webhook.placement.objects.selectors import selects
from webhook.placement.reasons import OptedInBy
from webhook.placement.settings import Action, OptIn, Settings

Applicant: TypeAlias = Manifest | Pod | VirtualMachine


def opted_in_by(
    applicant: Applicant, catalog: Catalog | None, settings: Settings, names: Iterable[str] | None = None
) -> OptedInBy:
    """Return the source of a VM's opt-in. The first of annotation, namespace and StorageClass that is set decides.

    Nothing opts in a VM whose namespace isn't selected. A catalog of None means that the cache is not synced yet.
    `names` are the claims whose StorageClass counts.
    """
    if catalog is not None and not is_selected(applicant.namespace, catalog, settings):
        return OptedInBy.NOTHING
    keys = settings.opt_in_annotations
    for key in keys:
        if key in applicant.true_annotations:
            return OptedInBy.ANNOTATION
    if settings.opt_in is OptIn.ANNOTATION or any(key in applicant.false_annotations for key in keys):
        return OptedInBy.NOTHING
    if catalog is None:
        return OptedInBy.UNKNOWN
    namespace = catalog.namespace(applicant.namespace)
    label = namespace.opt_in if namespace else None
    if label is not None:
        return OptedInBy.NAMESPACE if label else OptedInBy.NOTHING
    names = applicant.claims if names is None else names
    claims = (catalog.claim(applicant.namespace, name) for name in names)
    classes = (catalog.storage_class(claim.storage_class) for claim in claims if claim)
    by_class = any(each.opts_in for each in classes if each)
    return OptedInBy.STORAGE_CLASS if by_class else OptedInBy.NOTHING


def opts_out(applicant: Applicant, catalog: Catalog, settings: Settings) -> bool:
    """Return whether an annotation, or its namespace, opts out a VM that nothing opts in."""
    if not is_selected(applicant.namespace, catalog, settings):
        return True
    if any(key in applicant.false_annotations for key in settings.opt_in_annotations):
        return True
    namespace = catalog.namespace(applicant.namespace)
    return settings.opt_in is OptIn.NAMESPACE and namespace is not None and namespace.opt_in is False


def is_selected(name: str, catalog: Catalog, settings: Settings) -> bool:
    """Return whether VMs in a namespace can be opted in. An unknown one counts: the API server called for its pod."""
    namespace = catalog.namespace(name) if settings.namespace_selector else None
    return namespace is None or selects(settings.namespace_selector, namespace.labels)


def is_handled(by: OptedInBy, settings: Settings) -> bool:
    """Return whether the webhook decides on the VM. In observe mode, it decides as if each VM were opted in."""
    return by is not OptedInBy.NOTHING or settings.action is Action.OBSERVE


# Where the webhook reads a VM's opt-in: KubeVirt copies these annotations to the VM's pods.
IN_TEMPLATE = "spec.template.metadata.annotations"


def opt_in_mistake(vm: JsonObject, keys: Sequence[str]) -> str:
    """Return which annotation of a VM looks like an opt-in but is none, and the right one; empty without a mistake.

    `keys` are the opt-in annotations.
    """
    template = mapping(vm, *IN_TEMPLATE.split("."))
    right = f'{IN_TEMPLATE}: {keys[0]}: "true"'
    for key in keys:
        if key in template and template[key] not in ("true", "false"):
            return f"{IN_TEMPLATE} has {key}: {template[key]!r}; write {right}"
    if not template.keys() & set(keys):
        for place, annotations in (
            (IN_TEMPLATE, template),
            ("metadata.annotations", mapping(vm, "metadata", "annotations")),
        ):
            for name in annotations:
                if name in keys or _is_misspelled(name, keys):
                    return f"{place} has {name}: {annotations[name]!r}; write {right}"
    return ""


def _is_misspelled(name: str, keys: Sequence[str]) -> bool:
    # The other annotations of the webhook begin with the same words.
    others = any(name.startswith(f"{key}{end}") for key in keys for end in ("-", "d-"))
    return "hedul" in name and not others and bool(difflib.get_close_matches(name, keys, n=1, cutoff=0.85))
