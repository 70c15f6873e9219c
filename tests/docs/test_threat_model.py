"""The tests that the list of attacks names exist."""

import re
from collections.abc import Iterator

from tests.support.paths import DOCS, ROOT


def defenses() -> Iterator[tuple[str, list[str]]]:
    """Yield each file of tests that the page names, and the parts of test names behind it."""
    for table in re.split(r"\n(?=\| \S.* \| test \|\n)", (DOCS / "development/attacks.md").read_text())[1:]:
        for row in table.partition("\n\n")[0].splitlines()[2:]:
            for entry in row.strip("|").split(" | ")[-1].split(";"):
                file, *names = re.findall("`([^`]+)`", entry)
                yield file, names


def functions(file: str) -> list[str]:
    """Return the test functions of a file, as the page names it. A benchmark has none."""
    path = ROOT / file if file.startswith("benchmarks/") else ROOT / f"tests/{file}.py"
    return re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)


def test_each_named_test_exists() -> None:
    found = [(file, name, functions(file)) for file, names in defenses() for name in names]
    assert [(file, name) for file, name, tests in found if not any(name in test for test in tests)] == []
    assert all(functions(file) or file.startswith("benchmarks/") for file, _ in defenses())


def test_each_defense_has_a_test() -> None:
    assert len(list(defenses())) >= 40
