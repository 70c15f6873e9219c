"""A fake API server, and a clock that a test advances."""

from collections.abc import Iterator

import pytest

from tests.support.fake_api_server import ApiServer
from tests.support.fake_clock import FakeClock


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        yield server


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()
