"""Extract the facts that a decision uses from Kubernetes objects, and drop the rest.

Dropped fields can't leak: the share-manager pod of an encrypted volume carries its passphrase.
"""

from msgspec.structs import replace

from webhook.fleet.instance_type import has_instance_type
from webhook.fleet.vm_pod_template import template_claims
from webhook.placement.affinity import DECISION
from webhook.placement.guard.pins import read_pin
from webhook.placement.objects import facts
from webhook.placement.objects.facts import Key, Pod
from webhook.placement.objects.fields import JsonObject, Malformed, mapping, mappings, text
from webhook.placement.objects.kubevirt import (
    PROVISIONING_ANNOTATION,
    STATE_CLAIM_LABEL,
    controller_of,
    is_migration_target,
    is_virt_launcher,
    run_strategy,
)
from webhook.placement.objects.pod import (
    MAX_DETAILS,
    MAX_NAME,
    NO_STRINGS,
    Manifest,
    is_terminating,
    labels_of,
    pod_facts,
    true_and_false_keys,
)
from webhook.placement.objects.resources import amounts
from webhook.placement.objects.selectors import TOPOLOGY_LABELS
from webhook.placement.settings import OPT_IN_KEY

LONGHORN_DRIVER = "driver.longhorn.io"

# Longhorn parses the parameters of a volume with Go's strconv.ParseBool.
TRUE_VALUES = frozenset({"1", "t", "T", "true", "TRUE", "True"})


def key_of(item: JsonObject) -> Key:
    """Return the namespace and name of a namespaced object."""
    return text(item, "metadata", "namespace") or "default", text(item, "metadata", "name")


def _limited_name(name: str) -> str:
    # Namespace users write it, and the API server admits any length: no object has such a name.
    return name if len(name) <= MAX_NAME else ""


def read_claim(item: JsonObject) -> facts.Claim:
    """Extract the facts of a PersistentVolumeClaim."""
    namespace, name = key_of(item)
    modes = mapping(item, "spec").get("accessModes")
    modes = modes if isinstance(modes, list) else []
    shared = "ReadWriteMany" in modes
    return facts.Claim(
        namespace,
        name,
        _limited_name(text(item, "spec", "volumeName")),
        shared,
        persistent_state=bool(mapping(item, "metadata", "labels").get(STATE_CLAIM_LABEL)),
        read_only_many="ReadOnlyMany" in modes and not shared,
        block=text(item, "spec", "volumeMode") == "Block",
        storage_class=text(item, "spec", "storageClassName"),
        uid=text(item, "metadata", "uid"),
        phase=text(item, "status", "phase"),
        size=_size(item),
    )


def _size(claim: JsonObject) -> int:
    try:
        return amounts({"storage": mapping(claim, "spec", "resources", "requests").get("storage", 0)})["storage"]
    except Malformed:  # only the tool's plans need it
        return 0


def read_volume(item: JsonObject) -> facts.Volume:
    """Extract the facts of a PersistentVolume."""
    csi, claim = mapping(item, "spec", "csi"), mapping(item, "spec", "claimRef")
    is_longhorn = csi.get("driver") == LONGHORN_DRIVER
    handle = text(csi, "volumeHandle") if is_longhorn else ""
    parameters = mapping(csi, "volumeAttributes") if is_longhorn else {}
    affinity = mapping(item, "spec", "nodeAffinity").get("required")
    return facts.Volume(
        text(item, "metadata", "name"),
        handle,
        (text(claim, "namespace") or "default", text(claim, "name")) if claim else None,
        affinity if isinstance(affinity, dict) else None,
        migratable=parameters.get("migratable") in TRUE_VALUES,
        share=parameters.get("share") in TRUE_VALUES,
        claim_uid=text(claim, "uid"),
        zones=_zones(mapping(item, "metadata", "labels")),
        driver="" if is_longhorn else text(csi, "driver"),
    )


def _zones(labels: JsonObject) -> dict[str, frozenset[str]]:
    """Read a PV's labels for a zone or a region. The scheduler ignores a label with an empty part, and so does this."""
    found = {key: frozenset(map(str.strip, text(labels, key).split("__"))) for key in TOPOLOGY_LABELS if key in labels}
    return {key: admitted for key, admitted in found.items() if "" not in admitted}


def read_share_manager(item: JsonObject) -> facts.ShareManager:
    """Extract the facts of a ShareManager."""
    status = mapping(item, "status")
    return facts.ShareManager(*key_of(item), text(status, "state"), text(status, "ownerID"), is_terminating(item))


def read_csi_node(item: JsonObject) -> facts.CSINode:
    """Extract the facts of a CSINode."""
    drivers = mappings(item, "spec", "drivers")
    unlimited = (text(each, "name") for each in drivers if mapping(each, "allocatable").get("count") is None)
    return facts.CSINode(text(item, "metadata", "name"), frozenset(unlimited))


def read_node(item: JsonObject) -> facts.Node:
    """Extract the facts of a node. Raises Malformed for an invalid quantity."""
    conditions = {text(each, "type"): text(each, "status") for each in mappings(item, "status", "conditions")}
    allocatable = mapping(item, "status").get("allocatable")
    return facts.Node(
        text(item, "metadata", "name"),
        labels_of(item),
        conditions["Ready"] == "True" if "Ready" in conditions else None,
        mapping(item, "spec").get("unschedulable") is True,
        tuple(mappings(item, "spec", "taints")),
        amounts(allocatable) if isinstance(allocatable, dict) else None,
    )


def read_pod(item: JsonObject) -> Pod | None:
    """Extract the facts of a pod; return None for a finished pod. Raises Malformed for an invalid quantity."""
    if text(item, "status", "phase") in ("Succeeded", "Failed"):
        return None
    # The scheduler has preempted pods on the nominated node for this pod, and counts the pod there.
    node = text(item, "spec", "nodeName") or text(item, "status", "nominatedNodeName")
    namespace, name = key_of(item)
    found, pin = pod_facts(Manifest(item, namespace), name, node), read_pin(item)
    starts_vm = is_virt_launcher(item) and not is_migration_target(item)
    undecided = starts_vm and not {PROVISIONING_ANNOTATION, DECISION} & mapping(item, "metadata", "annotations").keys()
    marked = pin or undecided
    return replace(found, pin=pin, prefers=bool(pin and pin.prefers), undecided=undecided) if marked else found


def read_virtual_machine(item: JsonObject) -> facts.VirtualMachine:
    """Extract the facts of a VirtualMachine."""
    spec = mapping(item, "spec")
    failures = mapping(item, "status", "startFailure").get("consecutiveFailCount")
    true, false = true_and_false_keys(mapping(spec, "template", "metadata", "annotations"))
    claims = tuple(template_claims(mapping(spec, "template", "spec")))
    if len("".join((*true, *false, *claims))) > MAX_DETAILS:
        true, false, claims = NO_STRINGS, NO_STRINGS, ()
    return facts.VirtualMachine(
        *key_of(item),
        strategy=_limited_name(run_strategy(item)),
        start_failures=failures if isinstance(failures, int) else 0,
        true_annotations=true,
        false_annotations=false,
        claims=claims,
        inherits=has_instance_type(item),
        uid=text(item, "metadata", "uid"),
    )


def read_vmi(item: JsonObject) -> facts.VirtualMachineInstance:
    """Extract the facts of a VirtualMachineInstance."""
    owner, uid = controller_of(item), text(item, "metadata", "uid")
    return facts.VirtualMachineInstance(
        *key_of(item), uid, *(_limited_name(text(owner, field)) for field in ("kind", "name", "uid"))
    )


def read_namespace(item: JsonObject) -> facts.Namespace:
    """Extract the facts of a namespace."""
    label = mapping(item, "metadata", "labels").get(OPT_IN_KEY)
    return facts.Namespace(
        text(item, "metadata", "name"), {"true": True, "false": False}.get(str(label)), labels_of(item)
    )


def read_storage_class(item: JsonObject) -> facts.StorageClass:
    """Extract the facts of a StorageClass."""
    annotation = mapping(item, "metadata", "annotations").get(OPT_IN_KEY)
    return facts.StorageClass(text(item, "metadata", "name"), annotation == "true")
