"""The pod that KubeVirt would create as the target of a live migration to one node.

KubeVirt's source: `createTargetPod` in pkg/virt-controller/watch/migration/migration.go.
"""

from collections.abc import Mapping

from webhook.placement.kubevirt import MIGRATION_LABEL
from webhook.placement.migration import HOSTNAME, source_anti_affinity
from webhook.placement.selectors import REQUIRED
from webhook.placement.shape import JsonObject, mapping, mappings, text

_VENDOR = "cpu-vendor.node.kubevirt.io/"
_FEATURE = "cpu-feature.node.kubevirt.io/"
_MODEL = "cpu-model-migration.node.kubevirt.io/"
# The labels of a source node, and the selectors of a `host-model` VM that KubeVirt derives from them.
_FROM_SOURCE = {"host-model-cpu.node.kubevirt.io/": _MODEL, "host-model-required-features.node.kubevirt.io/": _FEATURE}
_OF_ONE_POD = frozenset({"name", "uid", "creationTimestamp", "resourceVersion"})


def target_pod(
    template: JsonObject, current: JsonObject, vmi: JsonObject, hostname: str, source_labels: Mapping[str, str]
) -> JsonObject:
    """Return the target pod of a migration to the node with this hostname label.

    `template` is the pod of a restart, `current` the pod that runs the VM, and `source_labels` the labels of its node.
    The target pod has no name, so the guard counts the current pod as another pod: both run during the migration.
    """
    metadata, spec = mapping(template, "metadata"), mapping(template, "spec")
    # KubeVirt lets the selector of the VM win.
    selector = {HOSTNAME: hostname} | mapping(spec, "nodeSelector") | _cpu_model(current, vmi, source_labels)
    selector |= _vendor(selector, source_labels)
    kept = {key: value for key, value in metadata.items() if key not in _OF_ONE_POD}
    labels = mapping(metadata, "labels") | {MIGRATION_LABEL: "future"}
    anti_affinity = mapping(spec, "affinity", "podAntiAffinity")
    terms = [*mappings(anti_affinity, REQUIRED), source_anti_affinity(template)]
    affinity = mapping(spec, "affinity") | {"podAntiAffinity": anti_affinity | {REQUIRED: terms}}
    return template | {
        "metadata": kept | {"labels": labels},
        "spec": spec | {"nodeSelector": selector, "affinity": affinity},
    }


def _cpu_model(current: JsonObject, vmi: JsonObject, source_labels: Mapping[str, str]) -> JsonObject:
    if text(vmi, "spec", "domain", "cpu", "model") != "host-model":
        return {}
    selector = mapping(current, "spec", "nodeSelector")
    if kept := {key: value for key, value in selector.items() if key.startswith((_FEATURE, _MODEL))}:
        return kept  # the VM has migrated before
    return {
        selected + key.removeprefix(prefix): value
        for key, value in source_labels.items()
        for prefix, selected in _FROM_SOURCE.items()
        if key.startswith(prefix)
    }


def _vendor(selector: JsonObject, source_labels: Mapping[str, str]) -> JsonObject:
    """Keep the VM on CPUs of one vendor."""
    if any(key.startswith(_VENDOR) for key in selector):
        return {}
    return dict([(key, "true") for key in source_labels if key.startswith(_VENDOR)][:1])
