"""The settings: a frozen value, loaded once from the environment and validated before startup."""

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import fields, force_setattr

from webhook.placement.objects.fields import DNS_LABEL, is_dns_subdomain, is_label_key
from webhook.placement.objects.selectors import Selector, label_selector
from webhook.placement.reasons import Mode

# Not KUBEVIRT_SCHEDULER_: in a namespace with a Service of that name, Kubernetes sets KUBEVIRT_SCHEDULER_PORT and
# similar variables in every pod (service links). A misspelled setting would look like one of those.
PREFIX = "CO_SCHEDULE_"

# The webhook's own annotation, and the Go scheduler's annotation, which its users still have in their VM templates.
OPT_IN_ANNOTATIONS = ("kubevirt-scheduler/co-schedule", "scheduler.kubevirt-scheduler.io/co-schedule")
# The label of namespaces and the annotation of StorageClasses that opt in VMs. The setting
# CO_SCHEDULE_OPT_IN_ANNOTATIONS renames only the annotation of VMs.
OPT_IN_KEY = OPT_IN_ANNOTATIONS[0]

KUBEVIRT_ACCOUNT = "kubevirt-controller"  # of virt-controller
KUBEVIRT_NAMESPACES = ("kubevirt", "openshift-cnv", "harvester-system", "kubevirt-hyperconverged")
_SERVICE_ACCOUNT = "system:serviceaccount"

_ACCOUNT = re.compile(rf"{_SERVICE_ACCOUNT}:{DNS_LABEL}:{DNS_LABEL}(\.{DNS_LABEL})*")


class Action(StrEnum):
    """Whether the webhook applies its decisions."""

    INJECT = "inject"
    OBSERVE = "observe"


class OptIn(StrEnum):
    """Whether only a VM's own annotation opts it in, or its namespace and its StorageClasses as well."""

    ANNOTATION = "annotation"
    NAMESPACE = "namespace"


class MigrationTargets(StrEnum):
    """Whether live-migration targets prefer the node of their share-manager."""

    IGNORE = "ignore"
    PREFER = "prefer"


class ReplicaLocality(StrEnum):
    """At a cold start, whether a VM prefers the nodes that have a replica of its disk."""

    NEVER = "never"
    BEST_EFFORT = "bestEffort"  # of volumes with that dataLocality, or with one replica
    ALWAYS = "always"


class LogLevel(StrEnum):
    """The lowest level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class SettingsError(ValueError):
    """An invalid environment variable. The text names the variable, the value, and the allowed values."""


def _parse_word(value: str, default: Any) -> Any:
    words = (
        {"true": True, "false": False} if isinstance(default, bool) else {each.value: each for each in type(default)}
    )
    if value not in words:
        raise ValueError(f"expected {' or '.join(map(repr, words))}")
    return words[value]


def _parse_seconds(value: str) -> int:
    if not (value.isascii() and value.isdigit() and 5 <= int(value) <= 3600):
        raise ValueError("expected an integer from 5 to 3600")
    return int(value)


def _parse_namespace(value: str) -> str:
    if len(value) > 63 or not re.fullmatch(DNS_LABEL, value):
        raise ValueError("expected the name of one namespace")
    return value


def service_account(namespace: str, name: str) -> str:
    """Return the username of a ServiceAccount."""
    return f"{_SERVICE_ACCOUNT}:{namespace}:{name}"


def _list_parser(is_valid: Callable[[str], object], expected: str) -> Callable[[str], tuple[str, ...]]:
    def parse(value: str) -> tuple[str, ...]:
        items = tuple(item.strip() for item in value.split(",") if item.strip())
        if not items or not all(map(is_valid, items)):
            raise ValueError(f"expected {expected}, separated by commas")
        return items

    return parse


def _decode_json(value: str) -> Any:
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeError):
        return None


def _parse_selector(value: str) -> Selector:
    selector = label_selector(_decode_json(value))
    if selector is None:
        raise ValueError('expected a label selector in JSON, such as {"matchLabels": {"team": "shop"}}')
    return selector


def _parse_scheduler_names(value: str) -> Mapping[str, str]:
    names = _decode_json(value)
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise ValueError('expected a JSON object of names, such as {"kubevirt-scheduler": "default-scheduler"}')
    for name in (*names.keys(), *names.values()):
        if not is_dns_subdomain(name):
            raise ValueError(f"{name!r} is not a scheduler name (lower-case letters, digits, '-' and '.')")
    # The API server may call the webhook twice for one pod; the second call must not change the pod.
    for name, target in names.items():
        if names.get(target, target) != target:
            raise ValueError(f"{name!r} maps to {target!r}, which is mapped itself; map {name!r} to the final name")
    return names


class Settings(Struct, frozen=True):
    """The settings, with their defaults."""

    opt_in_annotations: tuple[str, ...] = OPT_IN_ANNOTATIONS
    opt_in: OptIn = OptIn.ANNOTATION  # whether only a VM's own annotation opts it in
    namespace_selector: Selector = ()  # elsewhere nothing opts in
    affinity_mode: Mode = Mode.REQUIRED  # of a VM whose annotation names none
    node_guard: bool = True  # pin a pod only to a node that can run it
    steering: bool = True  # have share-manager pods prefer the node of their VMs
    longhorn_namespace: str = "longhorn-system"
    kubevirt_accounts: tuple[str, ...] = tuple(service_account(name, KUBEVIRT_ACCOUNT) for name in KUBEVIRT_NAMESPACES)
    action: Action = Action.INJECT  # whether to apply the decisions
    # whether live-migration targets prefer the node of their share-manager
    migration_targets: MigrationTargets = MigrationTargets.IGNORE
    replica_locality: ReplicaLocality = ReplicaLocality.BEST_EFFORT  # at a cold start
    release: bool = True  # delete pinned pods that can't be scheduled
    release_after: int = 30  # seconds until then
    scheduler_names: Mapping[str, str] = field(default_factory=dict)  # the new name of each scheduler to replace
    log_level: LogLevel = LogLevel.INFO

    def __post_init__(self) -> None:
        """Turn off what has no effect without patches: a webhook that observes has no pins, and moves no cold start."""
        if self.action is Action.OBSERVE:
            force_setattr(self, "release", False)
            force_setattr(self, "replica_locality", ReplicaLocality.NEVER)


# Of the settings that are not one of a few words.
_PARSERS: Mapping[str, Callable[[str], Any]] = {
    "opt_in_annotations": _list_parser(is_label_key, f"annotation keys such as {OPT_IN_KEY!r}"),
    "namespace_selector": _parse_selector,
    "longhorn_namespace": _parse_namespace,
    "kubevirt_accounts": _list_parser(_ACCOUNT.fullmatch, f"ServiceAccounts ({_SERVICE_ACCOUNT}:NAMESPACE:NAME)"),
    "release_after": _parse_seconds,
    "scheduler_names": _parse_scheduler_names,
}


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Load the settings from the environment. An empty variable means the default.

    Raises SettingsError for an invalid value, and for an unknown variable with the prefix: a misspelled setting must
    not be ignored silently.
    """
    known = {PREFIX + item.name.upper(): item for item in fields(Settings)}
    values: dict[str, Any] = {}
    for variable, value in sorted(environment.items()):
        if not variable.startswith(PREFIX):
            continue
        if (setting := known.get(variable)) is None:
            raise SettingsError(f"{variable}={value!r}: unknown setting; the settings are {', '.join(known)}")
        parse: Callable[[str], Any] = _PARSERS.get(setting.name, partial(_parse_word, default=setting.default))
        try:
            if value:
                values[setting.name] = parse(value)
        except ValueError as error:
            raise SettingsError(f"{variable}={value!r}: {error}") from None
    return Settings(**values)
