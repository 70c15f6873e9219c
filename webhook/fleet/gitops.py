"""Detect a program that manages a VM from its own manifests and would revert a change."""

from collections.abc import Iterator
from dataclasses import dataclass

from webhook.placement.objects.fields import JsonObject, mapping, mappings, text


@dataclass(frozen=True, slots=True)
class Sign:
    """A trace that a program leaves on each object that it manages. `value` is empty if any value counts."""

    program: str
    field: str
    key: str
    value: str = ""


# Not the label app.kubernetes.io/instance, by which Argo CD before 3.0 tracks objects: many charts set it as well.
SIGNS = (
    Sign("Argo CD", "annotation", "argocd.argoproj.io/tracking-id"),
    Sign("Argo CD", "label", "argocd.argoproj.io/instance"),
    Sign("Argo CD", "field manager", "argocd-controller"),
    Sign("Argo CD", "field manager", "argocd-application-controller"),
    Sign("Flux", "label", "kustomize.toolkit.fluxcd.io/name"),
    Sign("Flux", "label", "helm.toolkit.fluxcd.io/name"),
    Sign("Flux", "field manager", "kustomize-controller"),
    Sign("Flux", "field manager", "helm-controller"),
    Sign("Helm", "label", "app.kubernetes.io/managed-by", "Helm"),
    Sign("Helm", "annotation", "meta.helm.sh/release-name"),
    Sign("Helm", "field manager", "helm"),
)


def managed_by(vm: JsonObject) -> str:
    """Return the program that manages a VM, and the sign of it; empty if nothing does.

    A controller that owns the VM, such as a VirtualMachinePool, manages it as well.
    """
    return next(_signs(vm), "")


def _signs(vm: JsonObject) -> Iterator[str]:
    metadata = mapping(vm, "metadata")
    found = {
        "annotation": mapping(metadata, "annotations"),
        "label": mapping(metadata, "labels"),
        "field manager": {text(entry, "manager"): "" for entry in mappings(metadata, "managedFields")},
    }
    for sign in SIGNS:
        values = found[sign.field]
        if sign.key in values and sign.value in ("", values[sign.key]):
            yield f"{sign.program} ({sign.field} {sign.key})"
    for owner in mappings(metadata, "ownerReferences"):
        if owner.get("controller") is True:
            yield f"{text(owner, 'kind')} {text(owner, 'name')} (its owner)"
