"""The page about rights lists each right that the chart grants, and no other."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import pytest

from tests.support.helm_chart import NAME, Object, render
from tests.support.paths import DOCS

PAGE = DOCS / "reference/rights.md"
Role = tuple[str, str]  # its kind and its name
Right = tuple[str, str, str]  # a resource, a verb, and the name of the only object or "all"
EVERYTHING: Object = {
    "settings": {"optIn": "namespace"},
    "rbac": {"report": {"create": True}, "recolocate": {"create": True}},
}
# The roles of people. The page sums up what they read, and names what they change.
CHANGES: dict[str, set[str]] = {"-report": set(), "-recolocate": {"create", "delete"}}


def quoted(cell: str) -> list[str]:
    return [word.replace("<name>", NAME) for word in re.findall("`([^`]+)`", cell)]


def documented() -> dict[Role, set[Right]]:
    """The rights in the page's tables, by the role in the heading."""
    found: dict[Role, set[Right]] = {}
    for section in re.split("^##+ ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        for row in re.findall(r"^\| `.*\|$", body, re.MULTILINE) if "| resource |" in body else ():
            resources, verbs, objects, *_ = (cell.strip() for cell in row.strip("|").split(" | "))
            names = quoted(objects) or [objects]
            rights = set(product(quoted(resources), verbs.split(", "), names))
            found.setdefault((heading.split()[0], quoted(heading)[0]), set()).update(rights)
    return found


def granted(objects: list[Object]) -> dict[Role, set[Right]]:
    """The rights of the rendered roles."""
    return {
        (each["kind"], each["metadata"]["name"]): {right for rule in each["rules"] for right in rights_of(rule)}
        for each in objects
        if each["kind"] in {"Role", "ClusterRole"}
    }


def of_the_webhook(roles: dict[Role, set[Right]]) -> dict[Role, set[Right]]:
    """The roles that are not for people."""
    return {role: rights for role, rights in roles.items() if not role[1].endswith(tuple(CHANGES))}


def rights_of(rule: dict[str, Any]) -> set[Right]:
    (group,) = rule["apiGroups"]
    resources = [f"{resource}.{group}".rstrip(".") for resource in rule["resources"]]
    names = rule.get("resourceNames", ["all"])
    return {(resource, verb, name) for resource in resources for verb in rule["verbs"] for name in names}


@pytest.mark.controlplane  # Helm is built together with the control plane
def test_the_page_lists_the_rights_that_the_chart_grants_the_webhook_and_its_policies() -> None:
    assert documented() == of_the_webhook(granted(render(EVERYTHING)))
    names = {each["metadata"]["name"] for each in render() if each["kind"] == "ValidatingAdmissionPolicy"}
    _, _, policies = PAGE.read_text().partition("\n### Policies\n")
    assert {
        quoted(row)[0] for row in re.findall("^- `<name>-.*", policies.partition("\n## ")[0], re.MULTILINE)
    } == names


@pytest.mark.controlplane  # Helm is built together with the control plane
@pytest.mark.parametrize("name", CHANGES)
def test_a_role_of_people_changes_only_migrations(name: str) -> None:
    rights = granted(render(EVERYTHING))["ClusterRole", f"{NAME}{name}"]
    changing = {right for right in rights if right[1] not in {"get", "list"}}
    assert changing == {("virtualmachineinstancemigrations.kubevirt.io", verb, "all") for verb in CHANGES[name]}
    assert f"{NAME}{name}" in quoted(PAGE.read_text())


def test_each_right_has_a_reason_and_those_of_the_webhook_an_effect_of_their_absence() -> None:
    tables = re.findall(r"^\| resource \|.*\n(?:\|.*\n)+", PAGE.read_text(), re.MULTILINE)
    assert ["without it" in table for table in tables] == [True, True, False]  # the last one is of `helm test`
    for heading, _, *rows in map(str.splitlines, tables):
        assert rows
        for row in rows:
            cells = row.strip("|").split(" | ")
            assert all(map(str.strip, cells)), row
            assert len(cells) == len(heading.strip("|").split(" | ")), row
