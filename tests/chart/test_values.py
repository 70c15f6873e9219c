"""The documentation of the chart's values: the comments in values.yaml, the README's tables, and the schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from tests.support.helm_chart import CHART, README_PAGE, default_values, leaf_paths, value_comments
from webhook import __version__

SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def test_the_readme_has_a_row_for_each_value_with_its_default() -> None:
    page = README_PAGE.file.read_text()
    assert page == README_PAGE.render()
    rows = set(re.findall(r"^\| `([\w.]+)` \| `.+` \|", page, re.MULTILINE))
    paths = list(leaf_paths(default_values()))
    # A map of labels is one value.
    assert [path for path in paths if not rows & {".".join(path[:end]) for end in range(1, len(path) + 1)}] == []


def test_each_value_or_one_of_its_parents_has_a_comment() -> None:
    comments, paths = value_comments(), list(leaf_paths(default_values()))
    assert len(paths) > 90
    without = [path for path in paths if not any(path[:end] in comments for end in range(1, len(path) + 1))]
    assert [".".join(path) for path in without] == []


def schemas(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Each part of the schema that lists properties, with its path."""
    if isinstance(node, dict):
        if isinstance(node.get("properties"), dict):
            yield path, node
        for key, inner in node.items():
            yield from schemas(inner, f"{path}/{key}")


def test_the_schema_forbids_additional_properties_everywhere() -> None:
    listing = dict(schemas(SCHEMA))
    assert {"", "/properties/settings", "/properties/networkPolicy/properties/egress"} <= set(listing)
    is_open = [path for path, schema in listing.items() if schema.get("additionalProperties") is not False]
    # A parent chart may have other global values. Kubernetes checks the rest of a volume and of its mount.
    assert is_open == [f"/properties/{name}" for name in ("global", "extraVolumes/items", "extraVolumeMounts/items")]


def test_the_chart_and_the_program_have_the_same_version_and_license() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    assert chart["annotations"]["artifacthub.io/license"] == "Apache-2.0"
