"""The result of one check: its level, the finding, and the advice."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How serious a finding is. A failure makes `doctor` fail, and so does a check without a result."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"
    UNKNOWN = "unknown"  # the user lacks the right for the check


@dataclass(frozen=True, slots=True)
class Result:
    """A finding of a check. `advice` is one line, empty if no action is needed."""

    level: Level
    finding: str
    advice: str = ""


def ok(finding: str) -> Result:
    """Return a result without a problem."""
    return Result(Level.OK, finding)


def warning(finding: str, advice: str) -> Result:
    """Return a problem that limits the webhook."""
    return Result(Level.WARNING, finding, advice)


def failure(finding: str, advice: str) -> Result:
    """Return a problem that stops the webhook."""
    return Result(Level.FAILURE, finding, advice)


def listed(names: list[str], limit: int = 5) -> str:
    """Return the first names, and how many more there are."""
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return f"{', '.join(names[:limit])}{rest}"
