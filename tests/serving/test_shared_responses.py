"""Requests of the plain port that wait for the same page share a response that is as fresh as their own would be."""

from http import HTTPStatus

import pytest

from tests.support.fake_clock import FakeClock
from webhook.serving.exchange import Head, Request, Response
from webhook.serving.shared_responses import SharedResponses

START = 1000.0


class Page:
    """A shared page that counts how often it is computed; that takes a second."""

    def __init__(self):
        self.clock, self.computed = FakeClock(START), []
        self.responses = SharedResponses(self._respond, self.clock)

    def _respond(self, request, _peer):
        self.computed.append(request.head.target)
        self.clock.now += 1
        return Response(HTTPStatus.OK, str(len(self.computed)).encode())

    def get(self, target="/metrics", received=START, method="GET"):
        return self.responses(Request(Head(method, target, (1, 1), (), keep_alive=True), b"", received), "").body


def test_requests_that_arrived_before_a_response_was_computed_share_it():
    page = Page()
    assert [page.get(received=START - early) for early in (0, 1, 0.5)] == [b"1"] * 3


def test_a_request_that_arrived_while_a_response_was_computed_gets_a_newer_one():
    page = Page()
    assert [page.get(), page.get(received=START + 0.5)] == [b"1", b"2"]


def test_unknown_parameters_neither_prevent_sharing_nor_fill_the_memory():
    page = Page()
    assert {page.get(f"/metrics?a={number}") for number in range(100)} == {b"1"}
    assert len(page.responses._last) == 1


def test_verbose_readiness_is_a_page_of_its_own():
    page = Page()
    assert [page.get(f"/readyz{query}") for query in ("", "?verbose", "?verbose=1", "?a")] == [b"1", b"2", b"2", b"1"]
    assert page.computed == ["/readyz", "/readyz?verbose"]


@pytest.mark.parametrize("method", ["HEAD", "POST"])
def test_only_responses_to_get_are_shared(method):
    page = Page()
    assert [page.get(method=method) for _ in range(2)] == [b"1", b"2"]
