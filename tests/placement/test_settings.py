"""`read_settings` reads the environment and rejects an invalid value with a message of one line."""

import dataclasses
from typing import Any

import pytest

from webhook.placement.objects.fields import is_dns_subdomain
from webhook.placement.objects.selectors import Requirement
from webhook.placement.reasons import Mode
from webhook.placement.settings import (
    PREFIX,
    Action,
    LogLevel,
    MigrationTargets,
    OptIn,
    Settings,
    SettingsError,
    read_settings,
)

DEFAULTS = Settings()
VARIABLES = {PREFIX + field.name.upper(): field.name for field in dataclasses.fields(Settings)}

ACCOUNT = "system:serviceaccount:vms:kubevirt-controller"
VALID = [
    ("CO_SCHEDULE_OPT_IN_ANNOTATIONS", "a", ("a",)),
    ("CO_SCHEDULE_OPT_IN_ANNOTATIONS", "example.com/Co_schedule.x, b ,", ("example.com/Co_schedule.x", "b")),
    ("CO_SCHEDULE_OPT_IN_ANNOTATIONS", "x/" + "a" * 63, ("x/" + "a" * 63,)),
    ("CO_SCHEDULE_OPT_IN", "namespace", OptIn.NAMESPACE),
    ("CO_SCHEDULE_AFFINITY_MODE", "preferred", Mode.PREFERRED),
    ("CO_SCHEDULE_NODE_GUARD", "false", False),
    ("CO_SCHEDULE_STEERING", "false", False),
    ("CO_SCHEDULE_NAMESPACE_SELECTOR", "{}", ()),
    ("CO_SCHEDULE_NAMESPACE_SELECTOR", '{"matchLabels": {"a": "b"}}', (Requirement("a", "In", ("b",)),)),
    ("CO_SCHEDULE_LONGHORN_NAMESPACE", "storage-1", "storage-1"),
    ("CO_SCHEDULE_LONGHORN_NAMESPACE", "a" * 63, "a" * 63),
    ("CO_SCHEDULE_KUBEVIRT_ACCOUNTS", f" {ACCOUNT}, {ACCOUNT}.x", (ACCOUNT, f"{ACCOUNT}.x")),
    ("CO_SCHEDULE_ACTION", "observe", Action.OBSERVE),
    ("CO_SCHEDULE_SCHEDULER_NAMES", '{"a": "b", "c.d": "b"}', {"a": "b", "c.d": "b"}),
    ("CO_SCHEDULE_SCHEDULER_NAMES", '{"a": "b", "b": "b"}', {"a": "b", "b": "b"}),
    ("CO_SCHEDULE_MIGRATION_TARGETS", "prefer", MigrationTargets.PREFER),
    ("CO_SCHEDULE_RELEASE", "false", False),
    ("CO_SCHEDULE_RELEASE_AFTER", "5", 5),
    ("CO_SCHEDULE_RELEASE_AFTER", "3600", 3600),
    *(("CO_SCHEDULE_LOG_LEVEL", level, LogLevel(level)) for level in ("debug", "info", "warning", "error")),
]

BOOLEAN_HINT = "expected 'true' or 'false'"
KEY_HINT = "expected "
NAMESPACE_HINT = "expected the name of one namespace"
MAP_HINT = 'expected a JSON object of names, such as {"kubevirt-scheduler": "default-scheduler"}'
NAME_HINT = "is not a scheduler name (lower-case letters, digits, '-' and '.')"

INVALID = [
    *(
        ("CO_SCHEDULE_OPT_IN_ANNOTATIONS", value, KEY_HINT)
        for value in (",", " ", "a b", "a/", "/b", "a/b/c", "-a", "x y/b")
    ),
    ("CO_SCHEDULE_OPT_IN_ANNOTATIONS", "a" * 64, KEY_HINT),
    ("CO_SCHEDULE_OPT_IN_ANNOTATIONS", "Example.com/a", KEY_HINT),
    ("CO_SCHEDULE_OPT_IN", "storage-class", "expected 'annotation' or 'namespace'"),
    *(
        ("CO_SCHEDULE_AFFINITY_MODE", value, "expected 'required' or 'preferred'")
        for value in ("Required", "soft", " ")
    ),
    *(("CO_SCHEDULE_NODE_GUARD", value, BOOLEAN_HINT) for value in ("True", "yes", "1", "true ")),
    ("CO_SCHEDULE_STEERING", "off", BOOLEAN_HINT),
    *(
        ("CO_SCHEDULE_LONGHORN_NAMESPACE", value, NAMESPACE_HINT)
        for value in ("A", "a.b", "-a", "a-", "a,b", "a" * 64, "a\n")
    ),
    *(
        ("CO_SCHEDULE_KUBEVIRT_ACCOUNTS", value, "system:serviceaccount:NAMESPACE:NAME")
        for value in (",", "alice", ":vms:a", "system:serviceaccount:vms", f"{ACCOUNT}:x", f"{ACCOUNT}'", f"x{ACCOUNT}")
    ),
    *(
        ("CO_SCHEDULE_NAMESPACE_SELECTOR", value, "expected a label selector in JSON")
        for value in ("shop", "[]", "null")
    ),
    ("CO_SCHEDULE_ACTION", "dry-run", "expected 'inject' or 'observe'"),
    *(
        ("CO_SCHEDULE_SCHEDULER_NAMES", value, MAP_HINT)
        for value in ("x", "[]", '{"a": 1}', '{"a": null}', "{'a': 'b'}")
    ),
    *(
        ("CO_SCHEDULE_SCHEDULER_NAMES", value, NAME_HINT)
        for value in ('{"A": "b"}', '{"a": "B"}', '{"": "b"}', '{"a": ""}')
    ),
    (
        "CO_SCHEDULE_SCHEDULER_NAMES",
        '{"a": "b", "b": "c"}',
        "'a' maps to 'b', which is mapped itself; map 'a' to the final name",
    ),
    (
        "CO_SCHEDULE_SCHEDULER_NAMES",
        '{"a": "b", "b": "a"}',
        "'a' maps to 'b', which is mapped itself; map 'a' to the final name",
    ),
    ("CO_SCHEDULE_MIGRATION_TARGETS", "require", "expected 'ignore' or 'prefer'"),
    *(
        ("CO_SCHEDULE_RELEASE_AFTER", value, "expected an integer from 5 to 3600")
        for value in ("0", "3601", "-1", "1.5", "ten", "\u0661")
    ),
    ("CO_SCHEDULE_RELEASE", "yes", "expected 'true' or 'false'"),
    ("CO_SCHEDULE_RELEASE_AFTER", "4", "expected an integer from 5 to 3600"),
    ("CO_SCHEDULE_LOG_LEVEL", "INFO", "expected 'debug' or 'info' or 'warning' or 'error'"),
]


@pytest.mark.parametrize(("variable", "value", "setting"), VALID)
def test_a_valid_value_is_read(variable: str, value: str, setting: Any) -> None:
    changed = dataclasses.replace(DEFAULTS, **{VARIABLES[variable]: setting})
    assert read_settings({variable: value}) == changed


@pytest.mark.parametrize(("variable", "value", "hint"), INVALID, ids=ascii)
def test_an_invalid_value_is_rejected_with_its_variable_and_a_hint(variable: str, value: str, hint: str) -> None:
    with pytest.raises(SettingsError) as raised:
        read_settings({variable: value})
    message = str(raised.value)
    assert message.startswith(f"{variable}={value!r}: ")
    assert hint in message
    assert "\n" not in message


def test_a_value_that_is_not_utf8_is_rejected_with_a_hint() -> None:
    with pytest.raises(SettingsError, match="expected a JSON object"):
        read_settings({"CO_SCHEDULE_SCHEDULER_NAMES": "\udcff"})


def test_every_setting_has_valid_and_invalid_examples() -> None:
    assert {row[0] for row in VALID} == {row[0] for row in INVALID} == set(VARIABLES)


def test_an_empty_variable_uses_the_default() -> None:
    assert read_settings(dict.fromkeys(VARIABLES, "")) == DEFAULTS


@pytest.mark.parametrize("variable", ["CO_SCHEDULE_", "CO_SCHEDULE_NODEGUARD", "CO_SCHEDULE_node_guard"])
@pytest.mark.parametrize("value", ["true", ""])
def test_an_unknown_variable_is_rejected_with_all_known_variables(variable: str, value: str) -> None:
    with pytest.raises(SettingsError, match="unknown setting") as raised:
        read_settings({variable: value})
    assert str(raised.value).startswith(f"{variable}={value!r}: ")
    assert all(known in str(raised.value) for known in VARIABLES)


def test_variables_with_other_prefixes_are_ignored() -> None:
    """Kubernetes sets KUBEVIRT_SCHEDULER_PORT in every pod of a namespace that has a Service with our name."""
    assert (
        read_settings({"PATH": "/bin", "KUBEVIRT_SCHEDULER_PORT": "tcp://10.0.0.1:443", "co_schedule_x": "y"})
        == DEFAULTS
    )


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a-", "a..b", ".a", "a.", "n" * 254, "a\n", "ä", "a b"])
def test_a_name_that_the_api_server_refuses_is_not_a_subdomain(name: str) -> None:
    assert not is_dns_subdomain(name)
