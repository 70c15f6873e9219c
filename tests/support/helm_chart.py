"""Renders the chart with Helm. Run as a program, it writes the table of values into the chart's README."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from tests.support.controlplane import build
from tests.support.generated_pages import Page
from tests.support.paths import CHART, SECONDARY_CHART

Object = dict[str, Any]
CI_VALUES = sorted(CHART.glob("ci/*.yaml"))
NAME = NAMESPACE = "kubevirt-scheduler"
SECONDARY = "secondary-scheduler"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader takes a seventh of the time
BEGIN, END = "<!-- values: generated from values.yaml by `make docs` -->\n", "<!-- end of values -->\n"


class HelmError(Exception):
    """Helm's error output."""


def helm(*arguments: str | Path) -> str:
    """Run Helm without a cluster and return its output. Raises HelmError."""
    with TemporaryDirectory() as home:
        environment = {f"HELM_{kind}_HOME": home for kind in ("CACHE", "CONFIG", "DATA")} | {"PATH": "", "HOME": home}
        environment["GOGC"] = "off"  # a short-lived process: saves a quarter of its CPU time
        command = [str(build.binaries()["helm"]), *map(str, arguments)]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        raise HelmError(result.stderr)
    return result.stdout


def template(
    values: Mapping[str, Any] | Path | None = None, *arguments: str, release: str = NAME, chart: Path = CHART
) -> str:
    """Render the chart as YAML. `values` is a mapping or a values file. Raises HelmError."""
    text = values.read_text() if isinstance(values, Path) else json.dumps(values or {})
    return _rendered(text, release, arguments, chart)


@cache
def _rendered(values: str, release: str, arguments: tuple[str, ...], chart: Path) -> str:
    """Render the chart. Hundreds of tests render the same few values."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "values.yaml")
        file.write_text(values)
        return helm("template", release, chart, f"--namespace={NAMESPACE}", f"--values={file}", *arguments)


def render(values: Mapping[str, Any] | Path | None = None, *arguments: str, release: str = NAME) -> list[Object]:
    """Render the objects of the release, including hooks. Raises HelmError."""
    return [each for each in yaml.load_all(template(values, *arguments, release=release), LOADER) if each]


def render_secondary(values: Mapping[str, Any] | Path | None = None, *arguments: str) -> list[Object]:
    """Render the objects of charts/secondary-scheduler. Raises HelmError."""
    text = template(values, *arguments, release=SECONDARY, chart=SECONDARY_CHART)
    return [each for each in yaml.load_all(text, LOADER) if each]


def find_one(objects: list[Object], kind: str, name: str | None = None) -> Object:
    """Return the only object of a kind, or of a kind and a name. Raises ValueError if there is not exactly one."""
    (found,) = (each for each in objects if each["kind"] == kind and name in (None, each["metadata"]["name"]))
    return found


def container(deployment: Object) -> Object:
    """Return the only container of a Deployment."""
    (found,) = deployment["spec"]["template"]["spec"]["containers"]
    return found


def alert_rules(objects: list[Object]) -> list[Object]:
    """Return the alerts of the rendered PrometheusRule, of all its groups."""
    return [rule for group in find_one(objects, "PrometheusRule")["spec"]["groups"] for rule in group["rules"]]


def env_values(container: Object) -> dict[str, str]:
    """Return the environment variables of a container that have a literal value."""
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}


@cache
def default_values() -> Object:
    """Return the parsed values.yaml."""
    values: Object = yaml.safe_load((CHART / "values.yaml").read_text())
    return values


def leaf_paths(values: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of each value that is not a map, or is an empty map."""
    if isinstance(values, dict) and values:
        for key, value in values.items():
            yield from leaf_paths(value, (*path, key))
    else:
        yield path


def value_comments() -> dict[tuple[str, ...], str]:
    """Return the comment above each key of values.yaml, by the key's path."""
    found: dict[tuple[str, ...], str] = {}
    path: list[str] = []
    comment: list[str] = []
    for line in (CHART / "values.yaml").read_text().splitlines():
        if match := re.match(r"\s*# ?(.*)", line):
            comment.append(match[1])
        elif match := re.match(r"( *)([A-Za-z]+):", line):
            path[len(match[1]) // 2 :] = [match[2]]
            if comment:
                found[tuple(path)] = " ".join(comment)
            comment = []
        else:  # an empty line, so the comment was a heading; or a list item
            comment = []
    return found


def default_value(path: tuple[str, ...]) -> Any:
    """Return the default value of a key."""
    value: Any = default_values()
    for key in path:
        value = value[key]
    return value


def value_table() -> str:
    """Return a Markdown table: each value, its default, and the first sentence of its comment in values.yaml."""
    comments, leaves = value_comments(), leaf_paths(default_values())
    # A parent that has a comment is one row, with all that is below it as the default.
    commented = (next(leaf[:end] for end in range(1, len(leaf) + 1) if leaf[:end] in comments) for leaf in leaves)
    rows = []
    for path in dict.fromkeys(commented):
        meaning = re.sub(r"(?<=[.]) (?=[A-Z`]).*", "", comments[path])  # the rest is the trade-off
        default = json.dumps(default_value(path), ensure_ascii=False)
        rows.append(f"| `{'.'.join(path)}` | `{default}` | {meaning} |\n")
    return "".join(["| value | default | meaning |\n| --- | --- | --- |\n", *rows])


README_PAGE = Page(CHART / "README.md", BEGIN, END, value_table)

if __name__ == "__main__":
    README_PAGE.write()
