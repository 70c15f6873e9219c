"""Fixtures that several files of this room use."""

from collections.abc import Iterator

import pytest

from tests.support.fake_api_server import ApiServer


@pytest.fixture
def server() -> Iterator[ApiServer]:
    """An empty cluster."""
    with ApiServer() as server:
        yield server
