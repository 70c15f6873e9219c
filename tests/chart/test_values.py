"""What the chart says of its values: each with its trade-off, and the README's table is made of that."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.helm_chart import CHART, CI, README, defaults, documented, leaves
from webhook import __version__

SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def test_the_readme_s_table_is_what_tests_chart_py_makes() -> None:
    assert README.file.read_text() == README.made()


@pytest.mark.parametrize("path", [*leaves(defaults())], ids=".".join)
def test_each_value_is_commented_itself_or_as_a_part(path: tuple[str, ...]) -> None:
    assert any(path[:end] in documented() for end in range(1, len(path) + 1))


def schemas(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Each part of the schema that lists properties, by where it is."""
    if isinstance(node, dict):
        if isinstance(node.get("properties"), dict):
            yield path, node
        for key, inner in node.items():
            yield from schemas(inner, f"{path}/{key}")


def test_the_schema_is_closed_wherever_it_lists_properties() -> None:
    listing = dict(schemas(SCHEMA))
    assert {"", "/properties/settings", "/properties/scheduler/properties/loadAware"} <= set(listing)
    assert [path for path, schema in listing.items() if schema.get("additionalProperties") is not False] == []


def test_chart_and_program_have_one_version_and_one_license() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    assert chart["annotations"]["artifacthub.io/license"] == "Apache-2.0"


def test_no_file_of_the_chart_holds_a_ca_bundle_or_a_key() -> None:
    for file in (path for path in CHART.rglob("*") if path.is_file()):
        # As a field; comments and the README speak of it.
        assert not re.search(r"^[ -]*\"?caBundle\"?:", file.read_text(), re.MULTILINE), file
        assert "-----BEGIN" not in file.read_text(), file


@pytest.mark.parametrize("file", CI, ids=lambda file: file.stem)
def test_each_ci_file_says_what_it_is_for(file: Path) -> None:
    assert file.read_text().startswith("# ")
