"""Every value of the chart has an effect: another value renders other objects."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.helm_chart import CHART, NAME, Object, default_value, default_values, helm, leaf_paths

pytestmark = pytest.mark.controlplane  # Helm is built together with the control plane

# With these, most values have an effect.
EVERYTHING: Object = {
    "certificates": {"source": "cert-manager", "issuerRef": {"name": "ca"}},
    "networkPolicy": {"enabled": True, "apiServers": ["192.0.2.0/24"], "egress": {"enabled": True}},
    "serviceMonitor": {"enabled": True},
    "prometheusRule": {"enabled": True},
    "dashboard": {"enabled": True},
    "image": {"registry": "quay.example.com"},
    "extraVolumes": [{"name": "proxy-ca", "emptyDir": {}}],
}
NIGHTLY: Object = {"recolocate": {"schedule": "0 2 * * *"}}
# For these values, and those below them.
CONTEXTS: dict[str, Object] = {
    "certificates.source": {},
    "hostNetwork": {},
    "podDisruptionBudget.minAvailable": {"replicas": 3},
    "networkPolicy.enabled": {"networkPolicy": {"apiServers": ["192.0.2.0/28"]}},
    "serviceAccount.create": {"serviceAccount": {"name": "mine"}},
    "recolocate.args": NIGHTLY,
    "recolocate.deadlineSeconds": NIGHTLY,
    "recolocate.timeZone": NIGHTLY,
    "recolocate.resources": NIGHTLY,
    "test.resources": {"test": {"namespace": "kube-public"}},
}
# The schema, and values that differ from the defaults.
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
OTHERS = yaml.safe_load((CHART / "ci" / "everything-values.yaml").read_text())
PATHS = {".".join(path): path for path in leaf_paths(default_values())}
del PATHS["certificates.secretName"]  # belongs to the source `provided`: see test_rendered


def with_value(values: Object, path: tuple[str, ...], value: Any) -> Object:
    """Return a copy of the values with another value at a path."""
    key, *rest = path
    return values | {key: with_value(values.get(key) or {}, tuple(rest), value) if rest else value}


def inside(found: Any, keys: tuple[str, ...]) -> Any:
    """Return what is at a path of nested maps, None if nothing is."""
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def other_value(path: tuple[str, ...]) -> Any:
    """Return a value that differs from the default: from the examples, one that the schema lists, or a plain one."""
    default, example = default_value(path), inside(OTHERS, path)
    listed = inside(SCHEMA, tuple(each for key in path for each in ("properties", key))) or {}
    if example is not None and example != default:
        return example
    for other in listed.get("enum", ()):
        if other != default:
            return other
    if isinstance(default, bool):
        return not default
    return default + 1 if isinstance(default, int) else "another"


def render_all(folder: Path, all_values: dict[str, Object]) -> dict[str, list[str]]:
    """Render the chart with each of the values in one run of Helm: as the parts of one chart. Keep their keys."""
    aliases = [f"copy{number:04}" for number in range(len(all_values))]
    parts = [{"name": NAME, "version": "*", "alias": alias} for alias in aliases]
    chart = {"apiVersion": "v2", "name": "parent", "version": "1.0.0", "dependencies": parts}
    (folder / "Chart.yaml").write_text(json.dumps(chart))
    (folder / "values.yaml").write_text(json.dumps(dict(zip(aliases, all_values.values(), strict=True))))
    shutil.copytree(CHART, folder / "charts" / NAME)
    found: dict[str, list[str]] = {alias: [] for alias in aliases}
    for text in helm("template", NAME, folder).split("---\n# Source: parent/charts/")[1:]:
        alias = text.partition("/")[0]
        found[alias].append(text.replace(alias, NAME))
    return dict(zip(all_values, found.values(), strict=True))


def test_another_value_renders_other_objects(tmp_path: Path) -> None:
    pairs = []
    for name, path in PATHS.items():
        context = next((CONTEXTS[each] for each in CONTEXTS if f"{name}.".startswith(f"{each}.")), EVERYTHING)
        before = with_value(context, path, default_value(path)) if path[-1] == "enabled" else context
        pairs.append((json.dumps(before), json.dumps(with_value(context, path, other_value(path)))))
    distinct = {text: json.loads(text) for pair in pairs for text in pair}  # half of them are alike
    rendered = render_all(tmp_path, distinct)
    assert len(PATHS) > 90
    assert min(map(len, rendered.values())) > 5
    assert [
        name for name, (before, after) in zip(PATHS, pairs, strict=True) if rendered[before] == rendered[after]
    ] == []
