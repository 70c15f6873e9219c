"""Detect a program that manages a VM from its own manifests and would revert a change."""

from webhook.placement.objects.fields import JsonObject, mapping, mappings, text
from webhook.placement.objects.kubevirt import controller_of

# A trace that each of these programs leaves on each object that it manages: the program, the field, and the key.
# Not the label app.kubernetes.io/instance, by which Argo CD before 3.0 tracks objects: many charts set it as well.
SIGNS = (
    ("Argo CD", "annotation", "argocd.argoproj.io/tracking-id"),
    ("Argo CD", "label", "argocd.argoproj.io/instance"),
    ("Argo CD", "field manager", "argocd-controller"),
    ("Argo CD", "field manager", "argocd-application-controller"),
    ("Flux", "label", "kustomize.toolkit.fluxcd.io/name"),
    ("Flux", "label", "helm.toolkit.fluxcd.io/name"),
    ("Helm", "annotation", "meta.helm.sh/release-name"),
)


def managed_by(vm: JsonObject) -> str:
    """Return the program that manages a VM, and the sign of it; empty if nothing does.

    A controller that owns the VM, such as a VirtualMachinePool, manages it as well.
    """
    metadata = mapping(vm, "metadata")
    found = {
        "annotation": mapping(metadata, "annotations"),
        "label": mapping(metadata, "labels"),
        "field manager": {text(entry, "manager") for entry in mappings(metadata, "managedFields")},
    }
    for program, field, key in SIGNS:
        if key in found[field]:
            return f"{program} ({field} {key})"
    owner = controller_of(vm)
    return f"{text(owner, 'kind')} {text(owner, 'name')} (its owner)" if owner else ""
