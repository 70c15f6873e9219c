"""`read_settings` reads the environment and rejects an invalid value with a message of one line."""

from typing import Any

import pytest
from msgspec.structs import fields, replace

from webhook.placement.objects.fields import is_dns_subdomain
from webhook.placement.objects.selectors import Requirement
from webhook.placement.reasons import Mode
from webhook.placement.settings import (
    PREFIX,
    Action,
    LogLevel,
    MigrationTargets,
    OptIn,
    ReplicaLocality,
    Settings,
    SettingsError,
    read_settings,
)

DEFAULTS = Settings()
NAMES = {field.name.upper() for field in fields(Settings)}

ACCOUNT = "system:serviceaccount:vms:kubevirt-controller"
# Each row: a variable without its prefix, a valid value, and the setting.
VALID = [
    ("OPT_IN_ANNOTATIONS", "a", ("a",)),
    ("OPT_IN_ANNOTATIONS", "example.com/Co_schedule.x, b ,", ("example.com/Co_schedule.x", "b")),
    ("OPT_IN_ANNOTATIONS", "x/" + "a" * 63, ("x/" + "a" * 63,)),
    ("OPT_IN", "namespace", OptIn.NAMESPACE),
    ("AFFINITY_MODE", "preferred", Mode.PREFERRED),
    ("NODE_GUARD", "false", False),
    ("STEERING", "false", False),
    ("NAMESPACE_SELECTOR", "{}", ()),
    ("NAMESPACE_SELECTOR", '{"matchLabels": {"a": "b"}}', (Requirement("a", "In", ("b",)),)),
    ("LONGHORN_NAMESPACE", "storage-1", "storage-1"),
    ("LONGHORN_NAMESPACE", "a" * 63, "a" * 63),
    ("KUBEVIRT_ACCOUNTS", f" {ACCOUNT}, {ACCOUNT}.x", (ACCOUNT, f"{ACCOUNT}.x")),
    ("ACTION", "observe", Action.OBSERVE),
    ("SCHEDULER_NAMES", '{"a": "b", "c.d": "b"}', {"a": "b", "c.d": "b"}),
    ("SCHEDULER_NAMES", '{"a": "b", "b": "b"}', {"a": "b", "b": "b"}),
    ("MIGRATION_TARGETS", "prefer", MigrationTargets.PREFER),
    ("REPLICA_LOCALITY", "always", ReplicaLocality.ALWAYS),
    ("RELEASE", "false", False),
    ("RELEASE_AFTER", "5", 5),
    ("RELEASE_AFTER", "3600", 3600),
    *(("LOG_LEVEL", level, LogLevel(level)) for level in ("debug", "info", "warning", "error")),
]

BOOLEAN_HINT = "expected 'true' or 'false'"
MAP_HINT = 'expected a JSON object of names, such as {"kubevirt-scheduler": "default-scheduler"}'
NAME_HINT = "is not a scheduler name (lower-case letters, digits, '-' and '.')"
CHAIN_HINT = "'a' maps to 'b', which is mapped itself; map 'a' to the final name"
INVALID_KEYS = [",", " ", "a b", "a/", "/b", "a/b/c", "-a", "x y/b", "a" * 64, "Example.com/a"]
INVALID_ACCOUNTS = [",", "alice", ":vms:a", "system:serviceaccount:vms", f"{ACCOUNT}:x", f"{ACCOUNT}'", f"x{ACCOUNT}"]
# Each row: a variable without its prefix, the hint, and invalid values.
INVALID_VALUES = [
    ("OPT_IN_ANNOTATIONS", "expected ", INVALID_KEYS),
    ("OPT_IN", "expected 'annotation' or 'namespace'", ["storage-class"]),
    ("AFFINITY_MODE", "expected 'required' or 'preferred'", ["Required", "soft", " "]),
    ("NODE_GUARD", BOOLEAN_HINT, ["True", "yes", "1", "true "]),
    ("STEERING", BOOLEAN_HINT, ["off"]),
    ("NAMESPACE_SELECTOR", "expected a label selector in JSON", ["shop", "[]", "null"]),
    ("LONGHORN_NAMESPACE", "expected the name of one namespace", ["A", "a.b", "-a", "a-", "a,b", "a" * 64, "a\n"]),
    ("KUBEVIRT_ACCOUNTS", "system:serviceaccount:NAMESPACE:NAME", INVALID_ACCOUNTS),
    ("ACTION", "expected 'inject' or 'observe'", ["dry-run"]),
    ("SCHEDULER_NAMES", MAP_HINT, ["x", "[]", '{"a": 1}', '{"a": null}', "{'a': 'b'}", "\udcff"]),
    ("SCHEDULER_NAMES", NAME_HINT, ['{"A": "b"}', '{"a": "B"}', '{"": "b"}', '{"a": ""}']),
    ("SCHEDULER_NAMES", CHAIN_HINT, ['{"a": "b", "b": "c"}', '{"a": "b", "b": "a"}']),
    ("MIGRATION_TARGETS", "expected 'ignore' or 'prefer'", ["require"]),
    ("REPLICA_LOCALITY", "expected 'never' or 'bestEffort' or 'always'", ["best-effort"]),
    ("RELEASE", BOOLEAN_HINT, ["yes"]),
    ("RELEASE_AFTER", "expected an integer from 5 to 3600", ["0", "4", "3601", "-1", "1.5", "ten", "\u0661"]),
    ("LOG_LEVEL", "expected 'debug' or 'info' or 'warning' or 'error'", ["INFO"]),
]
INVALID = [(name, value, hint) for name, hint, values in INVALID_VALUES for value in values]


@pytest.mark.parametrize(("name", "value", "setting"), VALID)
def test_a_valid_value_is_read(name: str, value: str, setting: Any) -> None:
    assert read_settings({PREFIX + name: value}) == replace(DEFAULTS, **{name.lower(): setting})


@pytest.mark.parametrize(("name", "value", "hint"), INVALID, ids=ascii)
def test_an_invalid_value_is_rejected_with_its_variable_and_a_hint(name: str, value: str, hint: str) -> None:
    with pytest.raises(SettingsError) as raised:
        read_settings({PREFIX + name: value})
    message = str(raised.value)
    assert message.startswith(f"{PREFIX}{name}={value!r}: ")
    assert hint in message
    assert "\n" not in message


def test_every_setting_has_valid_and_invalid_examples() -> None:
    assert {row[0] for row in VALID} == {row[0] for row in INVALID} == NAMES


@pytest.mark.parametrize("variable", ["CO_SCHEDULE_", "CO_SCHEDULE_NODEGUARD", "CO_SCHEDULE_node_guard"])
def test_an_unknown_variable_is_rejected_with_all_known_variables(variable: str) -> None:
    for value in "true", "":
        with pytest.raises(SettingsError, match="unknown setting") as raised:
            read_settings({variable: value})
        assert str(raised.value).startswith(f"{variable}={value!r}: ")
        assert all(PREFIX + name in str(raised.value) for name in NAMES)


def test_an_empty_variable_uses_the_default_and_variables_with_other_prefixes_are_ignored() -> None:
    """Kubernetes sets KUBEVIRT_SCHEDULER_PORT in every pod of a namespace that has a Service with our name."""
    others = {"PATH": "/bin", "KUBEVIRT_SCHEDULER_PORT": "tcp://10.0.0.1:443", "co_schedule_x": "y"}
    assert read_settings(dict.fromkeys((PREFIX + name for name in NAMES), "") | others) == DEFAULTS


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a-", "a..b", ".a", "a.", "n" * 254, "a\n", "ä", "a b"])
def test_a_name_that_the_api_server_refuses_is_not_a_subdomain(name: str) -> None:
    assert not is_dns_subdomain(name)


def test_a_webhook_that_observes_neither_releases_a_pin_nor_moves_a_cold_start() -> None:
    chosen = {f"{PREFIX}RELEASE": "true", f"{PREFIX}REPLICA_LOCALITY": "always"}
    read, replaced = read_settings(chosen | {f"{PREFIX}ACTION": "observe"}), replace(DEFAULTS, action=Action.OBSERVE)
    for settings in read, replaced:
        assert (settings.release, settings.replica_locality) == (False, ReplicaLocality.NEVER)
    assert read_settings(chosen).release
