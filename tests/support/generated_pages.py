"""Pages with a generated part between two markers."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Page:
    """A file, the markers around the generated part, and the function that generates it."""

    file: Path
    begin: str
    end: str
    generate: Callable[[], str]

    def render(self) -> str:
        """Return the page with a newly generated part."""
        head, _, rest = self.file.read_text().partition(self.begin)
        _, _, tail = rest.partition(self.end)
        return f"{head}{self.begin}\n{self.generate()}\n{self.end}{tail}"

    def write(self) -> None:
        """Write the page and print its name."""
        self.file.write_text(self.render())
        print(f"written: {self.file.relative_to(Path.cwd())}", file=sys.stderr)
