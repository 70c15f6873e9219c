"""The tests that the threat model names exist."""

import re
from collections.abc import Iterator

import pytest

from tests.support.paths import DOCS, ROOT


def defenses() -> Iterator[tuple[str, list[str]]]:
    """Yield each file of tests that the page names, and the parts of test names behind it."""
    for table in re.split(r"\n(?=\| \S.* \| test \|\n)", (DOCS / "explanation/threat-model.md").read_text())[1:]:
        for row in table.partition("\n\n")[0].splitlines()[2:]:
            for entry in row.strip("|").split(" | ")[-1].split(";"):
                file, *names = re.findall("`([^`]+)`", entry)
                yield file, names


@pytest.mark.parametrize(("file", "names"), list(defenses()))
def test_each_named_test_exists(file: str, names: list[str]) -> None:
    path = ROOT / file if file.startswith("benchmarks/") else ROOT / f"tests/{file}.py"
    functions = re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    assert [name for name in names if not any(name in function for function in functions)] == []


def test_each_defense_has_a_test() -> None:
    assert len(list(defenses())) >= 40
