"""Figures that tests measure. The test run prints them at its end (tests/conftest.py)."""

from collections.abc import Callable

FIGURE = "figure"  # the name of the pytest user property that holds a figure
Measured = Callable[[str], None]
