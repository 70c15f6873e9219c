"""Runs a check in a child process, isolated from other tests' threads, which open and close file descriptors."""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any


def run_in_child_process(check: Callable[..., None], *arguments: Any) -> None:
    """Run a module-level function of a test in a child process, and reraise its exception."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        process.submit(check, *arguments).result(60)
