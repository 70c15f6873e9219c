"""Pages of which a part, between two marks, is made by a program."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Page:
    """A file, the marks around the part, and what makes it."""

    file: Path
    begin: str
    end: str
    part: Callable[[], str]

    def made(self) -> str:
        """The page with the part in its place."""
        head, _, rest = self.file.read_text().partition(self.begin)
        _, _, tail = rest.partition(self.end)
        return f"{head}{self.begin}\n{self.part()}\n{self.end}{tail}"

    def write(self) -> None:
        """Write it, and say so."""
        self.file.write_text(self.made())
        print(f"written: {self.file.relative_to(Path.cwd())}", file=sys.stderr)
