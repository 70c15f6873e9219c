"""Figures that a test measures on its way; the run prints them at its end (tests/conftest.py)."""

from collections.abc import Callable

FIGURE = "figure"  # the name of pytest's user property that carries one
Measured = Callable[[str], None]
