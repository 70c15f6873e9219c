"""Whether the webhook handles a pod, and the reason if it does not."""

from collections.abc import Callable, Mapping

from msgspec import Struct

from webhook.placement.affinity import CO_SCHEDULED_NODE, DECISION, has_preferred_term, pinned_node, recorded_reason
from webhook.placement.objects.fields import JsonObject, text
from webhook.placement.objects.kubevirt import PROVISIONING_ANNOTATION
from webhook.placement.objects.longhorn import LONGHORN_ACCOUNT, VOLUME_LABEL, is_share_manager
from webhook.placement.objects.pod import Manifest
from webhook.placement.opt_in import is_handled
from webhook.placement.reasons import Mode, OptedInBy, Reason
from webhook.placement.settings import MigrationTargets, Settings, service_account

MODE_ANNOTATION = "kubevirt-scheduler/co-schedule-mode"
_MODES = {mode.value: mode for mode in Mode}


def is_share_manager_pod(namespace: str, labels: Mapping[str, str], settings: Settings) -> bool:
    """Return whether a pod with these labels is a share-manager: Longhorn's NFS server for a volume."""
    return namespace == settings.longhorn_namespace and is_share_manager(labels) and bool(labels.get(VOLUME_LABEL))


def longhorn_account(settings: Settings) -> str:
    """Return the account of Longhorn's manager, which creates the share-manager pods."""
    return service_account(settings.longhorn_namespace, LONGHORN_ACCOUNT)


def is_injected(manifest: Manifest, settings: Settings) -> bool:
    """Return whether the pod already carries the webhook's annotation and its terms for the annotated node."""
    annotations = manifest.annotations
    if CO_SCHEDULED_NODE not in annotations:
        return False
    node = text(annotations, CO_SCHEDULED_NODE)
    if not node or not has_preferred_term(manifest.affinity, node):
        return False
    if not manifest.is_virt_launcher or manifest.is_migration_target:  # the webhook never pins such a pod
        return True
    # If the webhook pinned this pod, another webhook may have removed the pin or added a term without it. So pin again.
    # Otherwise, a pin is the user's own.
    pinned = recorded_reason(annotations) is Reason.CO_SCHEDULED or DECISION not in annotations
    is_preferred = mode_of(annotations, settings)[0] is Mode.PREFERRED
    return not pinned or is_preferred or bool(pinned_node(annotations, manifest.node_terms))


def mode_of(annotations: JsonObject, settings: Settings) -> tuple[Mode, str | None]:
    """Return the mode that applies to a pod, and the value of its mode annotation if that is not a known mode."""
    value = annotations.get(MODE_ANNOTATION)
    if isinstance(value, str) and (mode := _MODES.get(value)):
        return mode, None
    return settings.affinity_mode, None if value is None else str(value)


class Rule(Struct, frozen=True):
    """A condition for handling a pod."""

    reason: Reason  # ends the decision if the rule does not hold
    question: str
    # reads the pod's manifest, what opts the VM in (not for share-manager pods), and the settings
    holds: Callable[[Manifest, OptedInBy, Settings], bool]


_BOUND = Rule(Reason.ALREADY_BOUND, "not bound to a node yet", lambda manifest, *_: not manifest.spec.node_name)
_INJECTED = Rule(
    Reason.ALREADY_INJECTED,
    "without the webhook's terms",
    lambda manifest, _by, settings: not is_injected(manifest, settings),
)

RULES = (
    Rule(Reason.NOT_VIRT_LAUNCHER, "virt-launcher pod", lambda manifest, *_: manifest.is_virt_launcher),
    Rule(
        Reason.NOT_FROM_KUBEVIRT,
        "created by KubeVirt's controller",
        lambda manifest, _by, settings: manifest.user is None or manifest.user in settings.kubevirt_accounts,
    ),
    Rule(Reason.NOT_OPTED_IN, "opted in", lambda _made, by, settings: is_handled(by, settings)),
    Rule(
        Reason.MIGRATION_TARGET,
        "not a live-migration target",
        lambda manifest, _by, settings: (
            not manifest.is_migration_target or settings.migration_targets is MigrationTargets.PREFER
        ),
    ),
    Rule(
        Reason.EPHEMERAL_PROVISIONING,
        "not a dummy pod that only provisions a claim",
        lambda manifest, *_: PROVISIONING_ANNOTATION not in manifest.annotations,
    ),
    _BOUND,
    Rule(Reason.NO_CLAIMS, "mounts a claim", lambda manifest, *_: bool(manifest.claims)),
    _INJECTED,
)

STEERING_RULES = (
    Rule(
        Reason.NOT_FROM_LONGHORN,
        "created by Longhorn's manager",
        lambda manifest, _by, settings: manifest.user in (None, longhorn_account(settings)),
    ),
    Rule(
        Reason.STEERING_OFF,
        "steering of share-manager pods enabled",
        lambda _made, _by, settings: settings.steering,
    ),
    _BOUND,
    _INJECTED,
)


def ineligible_reason(
    manifest: Manifest, by: OptedInBy, settings: Settings, rules: tuple[Rule, ...] = RULES
) -> Reason | None:
    """Return the reason of the first rule that does not hold, or None if the webhook handles the pod."""
    for rule in rules:  # faster than `next` with a generator
        if not rule.holds(manifest, by, settings):
            return rule.reason
    return None
