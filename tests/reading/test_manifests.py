"""Tests of the YAML reader and writer: scalars as in Kubernetes, aliases, limits, errors and round trips."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from webhook.reading.kubernetes_yaml import InvalidYaml, documents, to_yaml

CHARACTERS = st.characters(exclude_categories=["Cs"])  # a UTF-8 file can't contain a lone surrogate
AMBIGUOUS = "y n on ~ null true 1e3 12e4567 0o7 0777 0x1f 12:30 1_000 .5 .inf = << 2026-11-21 - | > # a:\n\tb a\n\n"
STRINGS = st.text(CHARACTERS) | st.sampled_from(AMBIGUOUS.split(" "))
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | STRINGS
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
OBJECTS = st.recursive(
    SCALARS | NUMBERS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(STRINGS, inner, max_size=3),
    max_leaves=10,
)


def read(text: str) -> Any:
    (content,) = documents(text)
    return content


def error_and_line(text: str) -> tuple[str, int | None]:
    with pytest.raises(InvalidYaml) as caught:
        list(documents(text))
    return str(caught.value), caught.value.line


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        ("2026-11-21T11:01:53Z", "2026-11-21T11:01:53Z"),
        ("2026-11-21", "2026-11-21"),
        ("12:30:45", "12:30:45"),
        ("=", "="),
        ("<<", "<<"),
        ("1.2.3", "1.2.3"),
        ("12e4567", "12e4567"),
        ("", None),
        ("~", None),
        ("Null", None),
        ("on", True),
        ("Y", True),
        ("off", False),
        ("0x1F", 31),
        ("0b101", 5),
        ("0o17", 15),
        ("017", 15),
        ("-017", -15),
        ("08", 8.0),
        ("1_000", 1000),
        ("+1", 1),
        ("-9223372036854775808", -(2**63)),
        ("18446744073709551615", 2**64 - 1),
        ("18446744073709551616", 2.0**64),
        ("9" * 5000, "9" * 5000),
        ("-.inf", "-.inf"),
        (".NaN", ".NaN"),
        ("0x" + "f" * 17, "0x" + "f" * 17),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("1_0.5", 10.5),
        ('"1"', "1"),
        ("'on'", "on"),
        ("! 1", "1"),
        ("!!str 1", "1"),
    ],
)
def test_a_scalar_has_the_value_and_type_that_kubernetes_reads(scalar: str, value: object) -> None:
    found = read(f"field: {scalar}")["field"]
    assert (found, type(found)) == (value, type(value))


def test_an_alias_is_a_copy_of_its_anchored_value() -> None:
    content = read("a: &it {b: [1, &key c]}\nd: *it\n*key : e\n")
    assert content == {"a": {"b": [1, "c"]}, "d": {"b": [1, "c"]}, "c": "e"}
    assert content["a"] is not content["d"]


def test_a_merge_key_adds_only_missing_keys() -> None:
    text = "a: &a {k: 1, l: 1}\nb: &b {l: 2, m: 2}\nc:\n  m: 3\n  <<: [*a, *b]\nd: {<<: *a}\ne: {'<<': 4}\n"
    content = read(text)
    assert content["c"] == {"k": 1, "l": 1, "m": 3}
    assert content["d"] == {"k": 1, "l": 1}
    assert content["e"] == {"<<": 4}


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("a: 1\nb: [\n", "invalid YAML: did not find expected node content", 3),
        ("a: \0", "invalid YAML: control characters are not allowed", None),
        ("a: b: c", "invalid YAML: mapping values are not allowed in this context", 1),
        ("a: 1\n1: b", "mapping key is not a string: put it in quotes", 2),
        ("{[a]: b}", "mapping key is not a string: put it in quotes", 1),
        ("a: 1\nb: 2\na: 3", "duplicate mapping key", 3),
        ("a: *b", "undefined alias", 1),
        ("a: &a [*a]", "undefined alias", 1),
        ("--- &a 1\n--- *a", "undefined alias", 2),
        ("a: !!binary aGk=", "unsupported YAML tag", 1),
        ("a: !!timestamp 2026-11-21", "unsupported YAML tag", 1),
        ("a: !!int ''", "unsupported YAML tag", 1),
        ("a: !mine {}", "unsupported YAML tag", 1),
        ("a: !!set []", "unsupported YAML tag", 1),
        ("<<: 1", "merge key <<: expected a mapping", 1),
        ("<<: [{}, 1]", "merge key <<: expected a mapping", 1),
    ],
)
def test_invalid_or_unsupported_yaml_raises_an_error_with_its_line(text: str, message: str, line: int | None) -> None:
    assert error_and_line(text) == (message, line)


def test_an_alias_bomb_raises_an_error() -> None:
    lines = ["a0: &a0 [lol]", *(f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 10)}]" for i in range(9))]
    assert error_and_line("\n".join(lines)) == ("anchors and aliases expand to over 4 MiB", 7)


def test_nested_anchors_are_limited_like_aliases() -> None:
    """900 of them in 1 MB took 900 MB: each contains the inner ones."""
    nested = "".join(f"&a{number} [" for number in range(900)) + "x" * 1_000_000 + "]" * 900
    assert error_and_line(nested)[0] == "anchors and aliases expand to over 4 MiB"
    assert read("&a [&b [x], *b]") == [["x"], ["x"]]


@given(OBJECTS)
def test_we_and_pyyaml_read_written_yaml_back_unchanged(content: Any) -> None:
    text = to_yaml(content)
    assert repr(read(text)) == repr(content)
    assert yaml.safe_load(text) == content


def test_written_yaml_keeps_key_order_quotes_ambiguous_strings_folds_no_lines_and_has_no_alias() -> None:
    content = {"z": "a word " * 50 + "more", "a": {"c": "1", "b": [{"x": "true", "e": ""}]}, "m": "two\nlines\n"}
    assert to_yaml(content) == (
        f'z: {content["z"]}\na:\n  c: "1"\n  b:\n  - x: "true"\n    e: ""\nm: |\n  two\n  lines\n'
    )
    label = {"app": "vm"}
    assert to_yaml([label, label]) == "- app: vm\n- app: vm\n"
