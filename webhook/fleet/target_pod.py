"""The pod that KubeVirt would create as the target of a live migration to one node.

KubeVirt's source: `createTargetPod` in pkg/virt-controller/watch/migration/migration.go.
"""

from collections.abc import Mapping

from webhook.fleet.cpu_selectors import target_selectors
from webhook.fleet.next_pod import machine_type, with_machine_type
from webhook.placement.migration_nodes import HOSTNAME, source_anti_affinity
from webhook.placement.objects.fields import JsonObject, mapping, mappings, text
from webhook.placement.objects.kubevirt import MIGRATION_LABEL
from webhook.placement.objects.selectors import REQUIRED

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
    selector = {HOSTNAME: hostname} | mapping(spec, "nodeSelector")
    selector = with_machine_type(selector, text(vmi, "status", "machine", "type") or machine_type(mapping(vmi, "spec")))
    selector |= target_selectors(current, vmi, selector, source_labels)
    kept = {key: value for key, value in metadata.items() if key not in _OF_ONE_POD}
    labels = mapping(metadata, "labels") | {MIGRATION_LABEL: "future"}
    anti_affinity = mapping(spec, "affinity", "podAntiAffinity")
    terms = [*mappings(anti_affinity, REQUIRED), source_anti_affinity(template)]
    affinity = mapping(spec, "affinity") | {"podAntiAffinity": anti_affinity | {REQUIRED: terms}}
    return template | {
        "metadata": kept | {"labels": labels},
        "spec": spec | {"nodeSelector": selector, "affinity": affinity},
    }
