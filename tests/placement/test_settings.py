"""The settings are read once from the environment, and a wrong one is said in one line."""

import dataclasses
from typing import Any

import pytest

from webhook.placement.decision import Mode
from webhook.placement.settings import (
    Action,
    LogFormat,
    LogLevel,
    Settings,
    SettingsError,
    is_subdomain,
    read_settings,
    variables,
)

DEFAULTS = Settings()


def test_without_any_variable_the_defaults_are_the_products() -> None:
    assert (
        read_settings({})
        == DEFAULTS
        == Settings(
            opt_in_annotations=("kubevirt-scheduler/co-schedule", "scheduler.kubevirt-scheduler.io/co-schedule"),
            affinity_mode=Mode.REQUIRED,
            node_guard=True,
            steering=True,
            longhorn_namespace="longhorn-system",
            action=Action.INJECT,
            scheduler_names={},
            log_format=LogFormat.JSON,
            log_level=LogLevel.INFO,
        )
    )


ALLOWED = [
    ("CO_SCHEDULE_OPT_IN_ANNOTATIONS", "a", ("a",)),
    ("CO_SCHEDULE_OPT_IN_ANNOTATIONS", "example.com/Co_schedule.x, b ,", ("example.com/Co_schedule.x", "b")),
    ("CO_SCHEDULE_OPT_IN_ANNOTATIONS", "x/" + "a" * 63, ("x/" + "a" * 63,)),
    ("CO_SCHEDULE_AFFINITY_MODE", "required", Mode.REQUIRED),
    ("CO_SCHEDULE_AFFINITY_MODE", "preferred", Mode.PREFERRED),
    ("CO_SCHEDULE_NODE_GUARD", "true", True),
    ("CO_SCHEDULE_NODE_GUARD", "false", False),
    ("CO_SCHEDULE_STEERING", "true", True),
    ("CO_SCHEDULE_STEERING", "false", False),
    ("CO_SCHEDULE_LONGHORN_NAMESPACE", "storage-1", "storage-1"),
    ("CO_SCHEDULE_LONGHORN_NAMESPACE", "a" * 63, "a" * 63),
    ("CO_SCHEDULE_ACTION", "inject", Action.INJECT),
    ("CO_SCHEDULE_ACTION", "observe", Action.OBSERVE),
    ("CO_SCHEDULE_SCHEDULER_NAMES", "{}", {}),
    ("CO_SCHEDULE_SCHEDULER_NAMES", '{"a": "b", "c.d": "b"}', {"a": "b", "c.d": "b"}),
    ("CO_SCHEDULE_SCHEDULER_NAMES", '{"a": "b", "b": "b"}', {"a": "b", "b": "b"}),
    ("CO_SCHEDULE_LOG_FORMAT", "json", LogFormat.JSON),
    ("CO_SCHEDULE_LOG_FORMAT", "text", LogFormat.TEXT),
    *(("CO_SCHEDULE_LOG_LEVEL", level, LogLevel(level)) for level in ("debug", "info", "warning", "error")),
]

TRUE_OR_FALSE = "allowed is 'true' or 'false'"
A_KEY = "allowed are "
A_NAMESPACE = "allowed is the name of one namespace"
A_MAP = 'allowed is a JSON map of names, such as {"kubevirt-scheduler": "default-scheduler"}'
NO_NAME = "is no scheduler's name (lower-case letters, digits, '-' and '.')"

REFUSED = [
    *(
        ("CO_SCHEDULE_OPT_IN_ANNOTATIONS", value, A_KEY)
        for value in (",", " ", "a b", "a/", "/b", "a/b/c", "-a", "x y/b")
    ),
    ("CO_SCHEDULE_OPT_IN_ANNOTATIONS", "a" * 64, A_KEY),
    ("CO_SCHEDULE_OPT_IN_ANNOTATIONS", "Example.com/a", A_KEY),
    *(
        ("CO_SCHEDULE_AFFINITY_MODE", value, "allowed is 'required' or 'preferred'")
        for value in ("Required", "soft", " ")
    ),
    *(("CO_SCHEDULE_NODE_GUARD", value, TRUE_OR_FALSE) for value in ("True", "yes", "1", "true ")),
    ("CO_SCHEDULE_STEERING", "off", TRUE_OR_FALSE),
    *(
        ("CO_SCHEDULE_LONGHORN_NAMESPACE", value, A_NAMESPACE)
        for value in ("A", "a.b", "-a", "a-", "a,b", "a" * 64, "a\n")
    ),
    ("CO_SCHEDULE_ACTION", "dry-run", "allowed is 'inject' or 'observe'"),
    *(("CO_SCHEDULE_SCHEDULER_NAMES", value, A_MAP) for value in ("x", "[]", '{"a": 1}', '{"a": null}', "{'a': 'b'}")),
    *(
        ("CO_SCHEDULE_SCHEDULER_NAMES", value, NO_NAME)
        for value in ('{"A": "b"}', '{"a": "B"}', '{"": "b"}', '{"a": ""}')
    ),
    (
        "CO_SCHEDULE_SCHEDULER_NAMES",
        '{"a": "b", "b": "c"}',
        "'a' leads to 'b', which is mapped itself; map 'a' to where it ends",
    ),
    (
        "CO_SCHEDULE_SCHEDULER_NAMES",
        '{"a": "b", "b": "a"}',
        "'a' leads to 'b', which is mapped itself; map 'a' to where it ends",
    ),
    ("CO_SCHEDULE_LOG_FORMAT", "yaml", "allowed is 'json' or 'text'"),
    ("CO_SCHEDULE_LOG_LEVEL", "INFO", "allowed is 'debug' or 'info' or 'warning' or 'error'"),
]


@pytest.mark.parametrize(("variable", "value", "setting"), ALLOWED)
def test_a_value_that_is_allowed_is_read(variable: str, value: str, setting: Any) -> None:
    changed = dataclasses.replace(DEFAULTS, **{variables()[variable]: setting})
    assert read_settings({variable: value}) == changed


@pytest.mark.parametrize(("variable", "value", "allowed"), REFUSED, ids=ascii)
def test_a_value_that_is_not_allowed_is_refused_by_name_and_value_and_with_what_is(
    variable: str, value: str, allowed: str
) -> None:
    with pytest.raises(SettingsError) as raised:
        read_settings({variable: value})
    said = str(raised.value)
    assert said.startswith(f"{variable}={value!r}: ")
    assert allowed in said
    assert "\n" not in said


def test_bytes_that_are_no_text_are_refused_with_what_is_allowed() -> None:
    with pytest.raises(SettingsError, match="allowed is a JSON map"):
        read_settings({"CO_SCHEDULE_SCHEDULER_NAMES": "\udcff"})


def test_every_setting_has_values_that_are_allowed_and_values_that_are_not() -> None:
    names = [field.name for field in dataclasses.fields(Settings)]
    assert list(variables().values()) == names
    assert {row[0] for row in ALLOWED} == {row[0] for row in REFUSED} == set(variables())


@pytest.mark.parametrize("variable", list(variables()))
def test_an_empty_variable_means_the_default(variable: str) -> None:
    assert read_settings({variable: ""}) == DEFAULTS


@pytest.mark.parametrize("variable", ["CO_SCHEDULE_", "CO_SCHEDULE_NODEGUARD", "CO_SCHEDULE_node_guard"])
@pytest.mark.parametrize("value", ["true", ""])
def test_a_setting_that_does_not_exist_is_refused_with_all_that_do(variable: str, value: str) -> None:
    with pytest.raises(SettingsError, match="there is no such setting") as raised:
        read_settings({variable: value})
    assert str(raised.value).startswith(f"{variable}={value!r}: ")
    assert all(known in str(raised.value) for known in variables())


def test_other_variables_are_not_ours() -> None:
    """Kubernetes sets the second in every pod of a namespace with a Service of our name."""
    assert (
        read_settings({"PATH": "/bin", "KUBEVIRT_SCHEDULER_PORT": "tcp://10.0.0.1:443", "co_schedule_x": "y"})
        == DEFAULTS
    )


def test_all_settings_are_read_together() -> None:
    found = read_settings(
        {"CO_SCHEDULE_NODE_GUARD": "false", "CO_SCHEDULE_ACTION": "observe", "CO_SCHEDULE_STEERING": ""}
    )
    assert found == dataclasses.replace(DEFAULTS, node_guard=False, action=Action.OBSERVE)


def test_settings_do_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        DEFAULTS.node_guard = False  # type: ignore[misc]


@pytest.mark.parametrize("name", ["a", "a-b", "a.b", "0", "n" * 253, "ip-10-0-0-1.ec2.internal"])
def test_a_name_is_one_that_the_api_server_takes(name: str) -> None:
    assert is_subdomain(name)


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a-", "a..b", ".a", "a.", "n" * 254, "a\n", "ä", "a b"])
def test_a_name_is_none_that_the_api_server_refuses(name: str) -> None:
    assert not is_subdomain(name)
