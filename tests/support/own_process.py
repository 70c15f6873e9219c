"""A check in a process of its own: in ours other tests' threads take and give back file descriptors."""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any


def alone(check: Callable[..., None], *arguments: Any) -> None:
    """Run a function of a test's module, and raise what it raises."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        process.submit(check, *arguments).result(60)
