"""The chart as Helm renders it, and its table of values; run as a program, this writes the table into its README."""

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
from tests.support.paths import CHART

Object = dict[str, Any]
CI = sorted(CHART.glob("ci/*.yaml"))
NAME = NAMESPACE = "kubevirt-scheduler"
BEGIN, END = "<!-- values: generated from values.yaml by `make docs` -->\n", "<!-- end of values -->\n"


class HelmError(Exception):
    """What Helm complains of."""


def helm(*arguments: str | Path) -> str:
    """Run Helm without a cluster, and return what it prints. Raises HelmError."""
    with TemporaryDirectory() as home:
        environment = {f"HELM_{kind}_HOME": home for kind in ("CACHE", "CONFIG", "DATA")} | {"PATH": "", "HOME": home}
        command = [str(build.binaries()["helm"]), *map(str, arguments)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise HelmError(done.stderr)
    return done.stdout


def template(values: Mapping[str, Any] | Path | None = None, *arguments: str, release: str = NAME) -> str:
    """What Helm renders of these values: a map, or a file of them. Raises HelmError."""
    with TemporaryDirectory() as folder:
        file = values if isinstance(values, Path) else Path(folder, "values.json")
        if not isinstance(values, Path):
            file.write_text(json.dumps(values or {}))
        return helm("template", release, CHART, f"--namespace={NAMESPACE}", f"--values={file}", *arguments)


def render(values: Mapping[str, Any] | Path | None = None, *arguments: str, release: str = NAME) -> list[Object]:
    """The objects of the release, hooks included."""
    return [each for each in yaml.safe_load_all(template(values, *arguments, release=release)) if each]


def only(objects: list[Object], kind: str, name: str | None = None) -> Object:
    """The one object of a kind, and of a name where there are more."""
    (found,) = (each for each in objects if each["kind"] == kind and name in (None, each["metadata"]["name"]))
    return found


def container(deployment: Object) -> Object:
    """The one container of a Deployment."""
    (found,) = deployment["spec"]["template"]["spec"]["containers"]
    return found


def variables(container: Object) -> dict[str, str]:
    """The variables of a container that are values."""
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}


@cache
def defaults() -> Object:
    """What values.yaml says."""
    values: Object = yaml.safe_load((CHART / "values.yaml").read_text())
    return values


def leaves(values: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Each value that is no map, or an empty one, by its path."""
    if isinstance(values, dict) and values:
        for key, value in values.items():
            yield from leaves(value, (*path, key))
    else:
        yield path


def documented() -> dict[tuple[str, ...], str]:
    """Each key with a comment above it, by its path."""
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
        else:  # an empty line: what stood above it was a heading; or an item of a list
            comment = []
    return found


def value_at(path: tuple[str, ...]) -> Any:
    """The default of a key."""
    value: Any = defaults()
    for key in path:
        value = value[key]
    return value


def table() -> str:
    """A row for each value, with the comment above it, or above what it is part of."""
    comments, rows = documented(), ["| value | default | what it does, and what it costs |", "| --- | --- | --- |"]
    covered: set[tuple[str, ...]] = set()
    for path in leaves(defaults()):
        # The comment of a map is that of its leaves, where they have none themselves: `resources`, `serviceMonitor`.
        shown = next((path[:end] for end in range(len(path), 0, -1) if path[:end] in comments), path)
        if shown in covered:
            continue
        covered.add(shown)
        default = json.dumps(value_at(shown), ensure_ascii=False)
        rows.append(f"| `{'.'.join(shown)}` | `{default}` | {comments.get(shown, '')} |")
    return "\n".join(rows) + "\n"


README = Page(CHART / "README.md", BEGIN, END, table)

if __name__ == "__main__":
    README.write()
