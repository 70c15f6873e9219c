"""The keys that KubeVirt uses on pods and nodes, and what they say about a virt-launcher pod.

Source: KubeVirt, staging/src/kubevirt.io/api/core/v1/types.go.
"""

from webhook.placement.objects.fields import JsonObject, mapping, mappings, text

VMI, REPLICA_SET = "VirtualMachineInstance", "VirtualMachineInstanceReplicaSet"  # kinds

# Labels of the pods of VMs. The value of the first is one of the two kinds of pods.
APP_LABEL = "kubevirt.io"
VIRT_LAUNCHER = "virt-launcher"
HOTPLUG_POD = "hotplug-disk"
CREATED_BY_LABEL = "kubevirt.io/created-by"  # the VMI's UID
MIGRATION_LABEL = "kubevirt.io/migrationJobUID"  # only live-migration targets have it

# Annotations of virt-launcher pods.
VMI_NAME_ANNOTATION = "kubevirt.io/domain"
MIGRATION_NAME_ANNOTATION = "kubevirt.io/migrationJobName"
PROVISIONING_ANNOTATION = "kubevirt.io/ephemeral-provisioning"  # a dummy pod that only provisions a claim

# An annotation: a descheduler evicted the VM, so that KubeVirt migrates it away on purpose.
EVICTION_SOURCE = "kubevirt.io/eviction-source"

# A label of the claim that keeps a VM's vTPM or EFI state. The value is the VM's name.
STATE_CLAIM_LABEL = "persistent-state-for"

# Labels of nodes. Those with the first can run VMs; the second may differ from the node's name.
SCHEDULABLE_NODE = "kubevirt.io/schedulable"
HOSTNAME = "kubernetes.io/hostname"


# A flag of virt-controller, from KubeVirt 1.7 on: the keys of annotations that it copies from the template of a VM to
# the running VMI and its pod. From 1.9 on, a key may end in "*". virt-operator writes flags and values in lower case.
COPIED_ANNOTATIONS = "additional-launcher-annotations-sync"


def copied_annotations(kubevirt: JsonObject | None) -> str:
    """Return the flag that names the annotations that KubeVirt copies, empty without it. `kubevirt` is its object."""
    return text(kubevirt, "spec", "customizeComponents", "flags", "controller", COPIED_ANNOTATIONS)


def is_copied(annotation: str, kubevirt: JsonObject | None) -> bool:
    """Return whether KubeVirt copies an annotation of a VM's template to the running pod. `kubevirt` is its object."""
    for pattern in copied_annotations(kubevirt).lower().split(","):
        prefix = pattern.removesuffix("*")
        if annotation == pattern or (prefix and prefix != pattern and annotation.startswith(prefix)):
            return True
    return False


def run_strategy(vm: JsonObject) -> str:
    """Return a VM's run strategy. The older field `running` means Always or Halted."""
    return text(vm, "spec", "runStrategy") or ("Always" if mapping(vm, "spec").get("running") is True else "Halted")


def controller_of(item: JsonObject) -> JsonObject:
    """Return the owner reference of the object's controller, empty if it has none."""
    owners = mappings(item, "metadata", "ownerReferences")
    return next((owner for owner in owners if owner.get("controller") is True), {})
