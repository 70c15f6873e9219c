"""The node selectors by which KubeVirt keeps a VM on nodes whose CPU can run it.

KubeVirt's source: pkg/virt-controller/services/nodeselectorrenderer.go for every pod of a VM, and `createTargetPod` in
pkg/virt-controller/watch/migration/migration.go for live-migration targets.
"""

from collections.abc import Mapping

from webhook.placement.objects.fields import JsonObject, mapping, mappings, text

_VENDOR = "cpu-vendor.node.kubevirt.io/"
CPU_FEATURE = "cpu-feature.node.kubevirt.io/"
_MODEL = "cpu-model-migration.node.kubevirt.io/"
# KubeVirt adds selectors with these prefixes to a migration target, so that it runs on a CPU like the source's.
MIGRATION_SELECTORS = (_VENDOR, CPU_FEATURE, _MODEL)
# The labels of a source node, and the selectors of a `host-model` VM that KubeVirt derives from them.
_FROM_SOURCE = {
    "host-model-cpu.node.kubevirt.io/": _MODEL,
    "host-model-required-features.node.kubevirt.io/": CPU_FEATURE,
}


def lasting_selectors(vmi: JsonObject) -> frozenset[str]:
    """Return the migration selectors that every pod of a VMI has, because the VMI's spec asks for them."""
    domain = mapping(vmi, "spec", "domain")
    # Without a CPU model, KubeVirt ignores the features.
    keys = {CPU_FEATURE + name for name in required_features(domain)} if text(domain, "cpu", "model") else set[str]()
    evmcs = mapping(domain, "features", "hyperv").get("evmcs")  # a feature of Hyper-V that only Intel's CPUs have
    if isinstance(evmcs, dict) and evmcs.get("enabled") is not False:
        keys.add(f"{_VENDOR}Intel")
    return frozenset(keys)


def required_features(domain: JsonObject) -> list[str]:
    """Return the CPU features that a VM requires. A new VMI always has a CPU model: the default is host-model."""
    features = mappings(domain, "cpu", "features")
    return [text(each, "name") for each in features if text(each, "policy") in ("", "require")]


def target_selectors(
    current: JsonObject, vmi: JsonObject, selector: JsonObject, source_labels: Mapping[str, str]
) -> JsonObject:
    """Return what KubeVirt adds to the node selector of a migration target.

    `current` is the pod that runs the VM, `selector` the target's node selector so far, and `source_labels` the labels
    of the source node.
    """
    added = _of_host_model(current, vmi, source_labels)
    return added | _of_vendor(selector | added, source_labels)


def _of_host_model(current: JsonObject, vmi: JsonObject, source_labels: Mapping[str, str]) -> JsonObject:
    if text(vmi, "spec", "domain", "cpu", "model") != "host-model":
        return {}
    selector = mapping(current, "spec", "nodeSelector")
    if kept := {key: value for key, value in selector.items() if key.startswith((CPU_FEATURE, _MODEL))}:
        return kept  # the VM has migrated before
    return {
        selected + key.removeprefix(prefix): value
        for key, value in source_labels.items()
        for prefix, selected in _FROM_SOURCE.items()
        if key.startswith(prefix)
    }


def _of_vendor(selector: JsonObject, source_labels: Mapping[str, str]) -> JsonObject:
    """Keep the VM on CPUs of one vendor. KubeVirt does this since version 1.8."""
    if any(key.startswith(_VENDOR) for key in selector):
        return {}
    return dict([(key, "true") for key in source_labels if key.startswith(_VENDOR)][:1])
