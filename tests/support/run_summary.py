"""The last lines of a test run: the figures that tests measured, the time of each folder, and what was skipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.support.measured import FIGURE

Write = Callable[[str], object]


def write_summary(reports: Iterable[Any], write: Write, title: Write) -> None:
    """Write the summary of the reports of all tests. `title` begins a section."""
    reports = [report for report in reports if hasattr(report, "duration")]  # not of a failed import
    for heading, lines in (("measured", _figures), ("time by folder", _times), ("skipped", _skipped)):
        if found := lines(reports):
            title(heading)
            for line in found:
                write(line)


def _figures(reports: list[Any]) -> list[str]:
    return [
        f"{report.nodeid.partition('::')[0]}: {value}"
        for report in reports
        if report.when == "call"
        for name, value in report.user_properties
        if name == FIGURE
    ]


def _times(reports: list[Any]) -> list[str]:
    """Return the minutes that the workers spent on each folder, largest first."""
    seconds: Counter[str] = Counter()
    tests: dict[str, set[str]] = {}
    for report in reports:
        folder = str(Path(report.nodeid.partition("::")[0]).parent)
        seconds[folder] += report.duration
        tests.setdefault(folder, set()).add(report.nodeid)
    rows = [*((folder, spent, len(tests[folder])) for folder, spent in seconds.most_common())]
    rows.append(("all workers together", seconds.total(), sum(map(len, tests.values()))))
    return [f"{spent / 60:6.1f} min {count:5} tests  {folder}" for folder, spent, count in rows]


def _skipped(reports: list[Any]) -> list[str]:
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports if report.outcome == "skipped")
    return [f"{count} skipped: {reason}" for reason, count in reasons.most_common()]
