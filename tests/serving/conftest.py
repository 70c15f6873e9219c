"""Fixtures that several files of this room use."""

import resource
from collections.abc import Iterator

import pytest

from webhook.serving.worker.loop import MAX_CONNECTIONS


@pytest.fixture
def raised_file_limit() -> Iterator[None]:
    """Let this process open more connections than the server accepts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 3 * MAX_CONNECTIONS)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
