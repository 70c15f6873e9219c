"""The settings: one frozen value, read once from the environment and checked before anything starts."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

import msgspec

from webhook.placement.decision import Mode

# Not KUBEVIRT_SCHEDULER_: Kubernetes itself sets KUBEVIRT_SCHEDULER_PORT and its like in every pod of a namespace that
# has a Service of our name (service links), and a wrong variable of ours could not be told from those.
PREFIX = "CO_SCHEDULE_"

# The key of our own annotations, and the one that the Go scheduler's users still have in their VM templates.
OPT_IN_ANNOTATIONS = ("kubevirt-scheduler/co-schedule", "scheduler.kubevirt-scheduler.io/co-schedule")

_NAME = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_NAME}(\.{_NAME})*")
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


class Action(StrEnum):
    """Whether decisions are carried out."""

    INJECT = "inject"
    OBSERVE = "observe"


class LogFormat(StrEnum):
    """How a log line is written."""

    JSON = "json"
    TEXT = "text"


class LogLevel(StrEnum):
    """The least important line that is still written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class SettingsError(ValueError):
    """A variable that can't be used. Its text names the variable, the value, and what is allowed."""


def is_subdomain(name: str) -> bool:
    """Say whether the API server takes `name` for a node or a scheduler (a DNS-1123 subdomain)."""
    return len(name) <= 253 and _SUBDOMAIN.fullmatch(name) is not None


def _choice(kind: type[StrEnum]) -> Callable[[str], StrEnum]:
    allowed = " or ".join(repr(item.value) for item in kind)

    def read(value: str) -> StrEnum:
        try:
            return kind(value)
        except ValueError:
            raise ValueError(f"allowed is {allowed}") from None

    return read


def _switch(value: str) -> bool:
    if value not in ("true", "false"):
        raise ValueError("allowed is 'true' or 'false'")
    return value == "true"


def _namespace(value: str) -> str:
    if len(value) > 63 or not re.fullmatch(_NAME, value):
        raise ValueError("allowed is the name of one namespace")
    return value


def _annotations(value: str) -> tuple[str, ...]:
    keys = tuple(key.strip() for key in value.split(",") if key.strip())
    for key in keys:
        prefix, slash, name = key.rpartition("/")
        if not _QUALIFIED.fullmatch(name) or (slash and not is_subdomain(prefix)):
            raise ValueError(f"{key!r} is no annotation key; allowed are keys such as {OPT_IN_ANNOTATIONS[0]!r}")
    if not keys:
        raise ValueError(f"allowed are annotation keys, separated by commas, such as {OPT_IN_ANNOTATIONS[0]!r}")
    return keys


def _scheduler_names(value: str) -> Mapping[str, str]:
    try:
        names = msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeError):
        names = None
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise ValueError('allowed is a JSON map of names, such as {"kubevirt-scheduler": "default-scheduler"}')
    for name in (*names.keys(), *names.values()):
        if not is_subdomain(name):
            raise ValueError(f"{name!r} is no scheduler's name (lower-case letters, digits, '-' and '.')")
    # The API server may call us twice for one pod; the second call must find nothing left to do.
    for name, target in names.items():
        if names.get(target, target) != target:
            raise ValueError(f"{name!r} leads to {target!r}, which is mapped itself; map {name!r} to where it ends")
    return names


@dataclass(frozen=True, slots=True)
class Settings:
    """How to decide and how to speak. The defaults are the product's; `metadata` says how a variable is read."""

    opt_in_annotations: tuple[str, ...] = field(default=OPT_IN_ANNOTATIONS, metadata={"read": _annotations})
    affinity_mode: Mode = field(default=Mode.REQUIRED, metadata={"read": _choice(Mode)})
    node_guard: bool = field(default=True, metadata={"read": _switch})
    steering: bool = field(default=True, metadata={"read": _switch})
    longhorn_namespace: str = field(default="longhorn-system", metadata={"read": _namespace})
    action: Action = field(default=Action.INJECT, metadata={"read": _choice(Action)})
    scheduler_names: Mapping[str, str] = field(default_factory=dict, metadata={"read": _scheduler_names})
    log_format: LogFormat = field(default=LogFormat.JSON, metadata={"read": _choice(LogFormat)})
    log_level: LogLevel = field(default=LogLevel.INFO, metadata={"read": _choice(LogLevel)})


def variables() -> dict[str, str]:
    """Return each variable's name with the name of its setting."""
    return {PREFIX + item.name.upper(): item.name for item in fields(Settings)}


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Read the settings; an empty variable means its default.

    Raises SettingsError for a value that is not allowed, and for a variable with our prefix that we do not know: a
    misspelt setting must not pass for one that was made.
    """
    known = variables()
    readers = {item.name: item.metadata["read"] for item in fields(Settings)}
    values: dict[str, Any] = {}
    for variable, value in sorted(environment.items()):
        if not variable.startswith(PREFIX):
            continue
        if variable not in known:
            raise SettingsError(f"{variable}={value!r}: there is no such setting; allowed are {', '.join(known)}")
        if not value:
            continue
        try:
            values[known[variable]] = readers[known[variable]](value)
        except ValueError as error:
            raise SettingsError(f"{variable}={value!r}: {error}") from None
    return Settings(**values)
