"""The documentation is accurate: commands and their output, links, and settings."""

import re
from pathlib import Path

import pytest
from msgspec.structs import fields

from tests.docs.transcripts import blocks, missing_part, strip_lines, transcripts
from tests.support.command_line import run_line
from tests.support.helm_chart import default_values, leaf_paths
from tests.support.paths import CHART, DOCS, ROOT
from webhook.placement.settings import PREFIX, Settings, read_settings

README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]


def rows(page: Path, heading: str) -> list[list[str]]:
    """The cells of each row of the table whose first column has this heading."""
    _, _, rest = page.read_text().partition(f"\n| {heading} |")
    table = rest.partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in table]


def examples() -> list[tuple[str, str]]:
    """Each README command that is shown with output, and that output."""
    shown = [(each.command.replace("\\\n", ""), each.output) for each in transcripts(README)]
    return [(command.partition("  #")[0].strip(), output) for command, output in shown if output.strip()]


@pytest.mark.parametrize(("command", "shown"), examples(), ids=[command for command, _ in examples()])
def test_the_readme_shows_the_real_output_of_each_command(command: str, shown: str) -> None:
    printed = run_line(command, {"COLUMNS": "100"}, ROOT)
    assert (printed.exit_code, missing_part(strip_lines(printed.stdout), strip_lines(shown))) == (0, "")


def test_each_make_command_of_a_page_or_a_workflow_is_a_makefile_target() -> None:
    targets = set(re.findall(r"^([a-z-]+):", ROOT.joinpath("Makefile").read_text(), re.MULTILINE))
    shown = [
        (str(page.relative_to(ROOT)), target)
        for page in [*PAGES, *ROOT.glob(".github/workflows/*.yaml")]
        for target in re.findall(r"(?:`|^|\$ |run: )make ([a-z-]+)", page.read_text(), re.MULTILINE)
    ]
    assert shown
    assert [each for each in shown if each[1] not in targets] == []


def test_the_readme_install_commands_are_those_of_the_install_page() -> None:
    """tests/docs/test_install.py runs the commands of the install page."""
    install_page = blocks(ROOT / "docs/guides/install.md", "console")
    (install_block,) = [block for block in blocks(README, "console") if "helm install" in block]
    commands = re.split(r"^(?=\$ )", install_block, flags=re.MULTILINE)[1:]
    assert len(commands) == 4
    assert [command for command in commands if not any(command in block for block in install_page)] == []


def test_each_setting_is_documented_with_its_default() -> None:
    defaults = {
        cells[0].strip("`"): cells[1].strip("`") for cells in rows(ROOT / "docs/reference/settings.md", "variable")
    }
    assert set(defaults) == {PREFIX + field.name.upper() for field in fields(Settings)}
    values = {cells[2].split("`")[1] for cells in rows(ROOT / "docs/reference/settings.md", "variable")}
    assert values <= {".".join(path) for path in leaf_paths(default_values())}
    for variable, default in defaults.items():
        assert read_settings({variable: default}) == Settings(), variable


def test_the_map_of_the_code_names_files_that_exist_and_each_place_of_a_setting() -> None:
    to_edit = dict(rows(DOCS / "development/contributing.md", "to add"))
    named = {name for cell in to_edit.values() for name in re.findall(r"`([\w/*.-]*(?:/|\.\w+))`", cell)}
    folders = (ROOT, ROOT / "webhook", CHART)
    assert [name for name in sorted(named) if not any(list(folder.glob(name)) for folder in folders)] == []
    variable = PREFIX + fields(Settings)[0].name.upper()
    templates = [file for file in CHART.glob("templates/*") if file.is_file() and variable in file.read_text()]
    assert [file.name for file in templates if f"`templates/{file.name}`" not in to_edit["a setting"]] == []


# How the pages for users state a measured figure. All but one of them link to it.
FIGURES = {"CPU time": r"ms of CPU|CPU time (?:of a|per) review", "start": r"start with 10,000 claims"}


@pytest.mark.parametrize("figure", FIGURES)
def test_a_measured_figure_stands_on_one_page(figure: str) -> None:
    pages = [page for page in [README, *DOCS.glob("**/*.md")] if page.parent.name not in {"development", "decisions"}]
    assert [page.name for page in pages if re.search(FIGURES[figure], page.read_text())] == ["figures.md"]


def test_the_table_of_operations_left_is_calculated_correctly() -> None:
    _, _, rest = (DOCS / "explanation/network-hop.md").read_text().partition("\n| latency on the same node |")
    table = [
        [cell.split()[0] for cell in row.strip("|").split("|")] for row in rest.partition("\n\n")[0].splitlines()[2:]
    ]
    headings = re.findall(r"([\d.]+) ms", rest.splitlines()[0])
    assert [float(each) for each in headings] == [0.1, 0.25, 0.5, 1]
    for latency, *shares in table:
        expected = [f"{float(latency) / (float(latency) + float(each)):.0%}" for each in headings]
        assert [f"{share}%" for share in shares] == expected
