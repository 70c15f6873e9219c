"""A progress bar on standard error, if that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Called with a description and with (done, total); a total of None means that it is unknown.
Progress = Callable[[str, int, int | None], None]


def no_progress(_description: str, _done: int, _total: int | None) -> None:
    """Show nothing."""


@contextmanager
def progress_bar(*, shown: bool = True, redirected: bool = True) -> Iterator[Progress]:
    """Show a progress bar while the block runs. Without a terminal, nothing is shown.

    If `redirected`, lines that the block prints to standard output appear above the bar, on standard error.
    """
    if not (shown and sys.stderr.isatty()):
        yield no_progress
        return
    from rich.console import Console  # noqa: PLC0415 (only a terminal needs rich)
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn  # noqa: PLC0415
    from rich.progress import Progress as Bar  # noqa: PLC0415

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Bar(*columns, console=Console(stderr=True), transient=True, redirect_stdout=redirected) as bar:
        task = bar.add_task("reading", total=None)  # files are read before the number of their objects is known
        yield lambda description, done, total: bar.update(task, description=description, completed=done, total=total)
