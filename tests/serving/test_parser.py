"""Parsing HTTP/1.1 requests from a byte stream, and serializing responses."""

from http import HTTPStatus
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.memory import traced_memory
from webhook.serving.worker.messages import Response, serialize
from webhook.serving.worker.parser import (
    BODY_BROKEN,
    BODY_LIMIT,
    HEAD_LIMIT,
    HEAD_TOO_LARGE,
    NO_EXPECTATIONS,
    NO_HOST,
    UNKNOWN_CODING,
    RequestParser,
)

thorough = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])

HEAD = "POST /mutate HTTP/1.1\r\nHost: x\r\n"
CHUNKED = f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode()
NOT_HTTP = (HTTPStatus.BAD_REQUEST, "malformed HTTP request")
BROKEN = (HTTPStatus.BAD_REQUEST, BODY_BROKEN)


def parse(*pieces):
    """The complete requests in these pieces, and the failure that ended parsing, or None."""
    parser, requests = RequestParser(), []
    for piece in pieces:
        parser.feed(piece.encode() if isinstance(piece, str) else piece, 0.0)
        if parser.complete:
            requests.append(parser.take())
        if parser.failure:
            break
    return requests, parser.failure


def parse_one(*pieces):
    """The only request in these pieces."""
    [request], failure = parse(*pieces)
    assert failure is None
    return request


def failure_for(*pieces):
    """The failure for these pieces, which contain no complete request."""
    requests, failure = parse(*pieces)
    assert requests == []
    return failure


# Splitting the stream


@st.composite
def requests(draw):
    """A request as bytes, and its method, target, body and keep-alive flag."""
    method = draw(st.sampled_from(["GET", "POST", "HEAD", "OPTIONS"]))
    target = draw(st.sampled_from(["/", "/mutate?timeout=10s", "/%41", "http://host/x?y"]))
    version = draw(st.sampled_from(["1.1", "1.0"]))
    fields = draw(st.lists(st.sampled_from(["a: b", "Long: " + "x" * 300, "empty:", "TE: trailers"]), max_size=4))
    chunks = draw(st.lists(st.binary(min_size=1, max_size=300), max_size=4))
    body = b"".join(chunks)
    if version == "1.1" and draw(st.booleans()):
        line_ends = draw(st.lists(st.sampled_from([b"\r\n", b";a=b\r\n", b';a="\x80"\r\n']), min_size=4, max_size=4))
        chunked = b"".join(
            b"%x%s%s\r\n" % (len(chunk), line_end, chunk) for chunk, line_end in zip(chunks, line_ends, strict=False)
        )
        fields, payload = (
            [*fields, "Transfer-Encoding: chunked"],
            chunked + draw(st.sampled_from([b"0\r\n\r\n", b"0\r\nTrailing: x\r\n\r\n"])),
        )
    else:
        fields, payload = [*fields, f"Content-Length: {len(body)}"], body
    leading_line = draw(st.sampled_from(["", "\r\n"]))
    fields += ["Host: x"] if version == "1.1" else ["Connection: keep-alive"]  # after the end, nothing is parsed
    head = leading_line + f"{method} {target} HTTP/{version}\r\n" + "".join(f"{field}\r\n" for field in fields) + "\r\n"
    return head.encode() + payload, (method, target, body, version == "1.1")


@thorough
@given(requests(), st.lists(st.integers(0, 3000), max_size=12), st.sampled_from([b"", b"\n\n", b"G", b"\0", CHUNKED]))
def test_splitting_a_request_anywhere_yields_the_same_and_bytes_after_it_end_the_connection(sent, cuts, tail):
    stream, (*expected, keep_alive) = sent
    edges = [0, *sorted({cut for cut in cuts if cut < len(stream)}), len(stream)]
    for pieces in [stream], [stream[begin:end] for begin, end in pairwise(edges)], [bytes([byte]) for byte in stream]:
        request = parse_one(*pieces)
        assert [request.head.method, request.head.target, request.body] == expected
        assert request.head.keep_alive is keep_alive
    [request], failure = parse(stream + tail)
    assert (failure is None) is (not tail.strip())
    assert request.head.keep_alive is (keep_alive and failure is None)


@thorough
@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=4))
def test_arbitrary_bytes_are_parsed_or_rejected_without_an_unexpected_error(stream, cuts):
    edges = [0, *sorted(cuts), 200]
    _, failure = parse(*(stream[begin:end] for begin, end in pairwise(edges)))
    assert failure in (None, NOT_HTTP, BROKEN)


# Invalid requests


@pytest.mark.parametrize(
    "fields",
    [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: 5\r\nContent-Length: 5",
        "Content-Length: 5, 5",
        "Content-Length: +5",
        "Content-Length:",
        "Content-Length: " + "9" * 5000,
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\x0b",
        "Transfer-Encoding:",
        "Transfer-Encoding : chunked",
        "Content-Length : 5",
        " Content-Length: 5",
        "X: 1\r\n Content-Length: 5",
        "X: 1\r\n\tTransfer-Encoding: chunked",
        "Content-Length: 5\nX: 1",
        "X: 1\nContent-Length: 5",
        "X: 1\rContent-Length: 5",
        "X: a\0b",
        "X: \x7f",
        "X",
        "Host: x",
        "Content-Type: a\r\nContent-Type: b",
    ],
    ids=lambda fields: repr(fields[:60]),
)
def test_an_ambiguous_or_malformed_head_is_rejected(fields):
    head = f"{HEAD}{fields}\r\n\r\n".encode("latin-1")
    assert failure_for(head + b"hello") == NOT_HTTP
    assert failure_for(*(bytes([byte]) for byte in head)) == NOT_HTTP


@pytest.mark.parametrize("codings", ["gzip", "identity", "xchunked", '"chunked"', "gzip, chunked"])
def test_a_transfer_coding_other_than_chunked_is_not_implemented(codings):
    head = f"{HEAD}Transfer-Encoding: {codings}\r\n\r\n".encode()
    assert failure_for(head + b"hello") == (HTTPStatus.NOT_IMPLEMENTED, UNKNOWN_CODING)


def test_http_1_1_without_a_host_is_rejected_and_http_1_0_is_not():
    assert failure_for("GET / HTTP/1.1\r\nA: b\r\n\r\n") == (HTTPStatus.BAD_REQUEST, NO_HOST)
    assert parse_one("GET / HTTP/1.0\r\nA: b\r\n\r\n").head.path == "/"


@pytest.mark.parametrize("pieces", [["\r\n"], ["\r", "\n"]])
def test_an_empty_line_starts_no_request(pieces):
    parser = RequestParser()
    for piece in pieces:
        parser.feed(piece.encode(), 1.0)
    assert (parser.started, parser.buffered, parser.failure) == (False, 0, None)
    parser.feed(b"GET / HTTP/1.0\r\n\r\n", 2.0)
    assert parser.take().received == 2.0


@pytest.mark.parametrize(
    "line",
    [
        "GET / HTTP/1.1\n",
        "GET / HTTP/1.1 \r\n",
        "GET / HTTP/1.2\r\n",
        "GET / HTTP/2.0\r\n",
        "GET / http/1.1\r\n",
        "GET /\r\n",
        "GET x HTTP/1.1\r\n",
        "GET * HTTP/1.1\r\n",
        "GET /\0 HTTP/1.1\r\n",
        "PRI * HTTP/2.0\r\n",
    ],
    ids=lambda line: repr(line[:40]),
)
def test_an_invalid_request_line_is_rejected(line):
    assert failure_for(f"{line}Host: x\r\n\r\n".encode("latin-1")) == NOT_HTTP


def test_a_chunked_body_in_http_1_0_is_rejected():
    assert failure_for(CHUNKED.replace(b"1.1", b"1.0")) == NOT_HTTP


@pytest.mark.parametrize(
    "body",
    [
        b"\r\n",
        b"+1\r\n",
        b"1 \r\n",
        b"1\na\r\n",
        b"1\r\nab\r\n",
        b"1\r\na\n\n",
        b"1;\ra=b\r\n",
        b"0\r\nContent-Length: 5\r\n\r\n",
        b"0\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"0\r\nHost: y\r\n\r\n",
    ],
    ids=repr,
)
def test_invalid_chunks_are_rejected(body):
    assert failure_for(CHUNKED + body) == BROKEN
    assert failure_for(CHUNKED, *(bytes([byte]) for byte in body)) == BROKEN


# Valid requests


@pytest.mark.parametrize(
    ("line", "field", "keep_alive"),
    [
        ("GET / HTTP/1.1", "A: b", True),
        ("GET / HTTP/1.1", "Connection: close", False),
        ("GET / HTTP/1.1", "Connection: Close, TE", False),
        ("GET / HTTP/1.1", "Connection: close\r\nConnection: keep-alive", False),
        ("GET / HTTP/1.1", "Connection: keep-alive, close", False),
        ("GET / HTTP/1.0", "Connection: keep-alive", False),
        ("CONNECT host:443 HTTP/1.1", "A: b", False),
    ],
)
def test_keep_alive_follows_the_method_the_http_version_and_the_connection_header(line, field, keep_alive):
    assert parse_one(f"{line}\r\nHost: x\r\n{field}\r\n\r\n").head.keep_alive is keep_alive


def test_received_is_the_time_of_the_first_byte_and_buffered_counts_the_bytes_until_the_request_is_taken():
    parser, pieces = RequestParser(), (HEAD, "Content-Length: 2\r\n", "\r\no", "k")
    for begin in 100.0, 200.0:
        for now, piece in enumerate(pieces):
            parser.feed(piece.encode(), begin + now)
        assert parser.buffered == len("".join(pieces))
        request = parser.take()
        assert (request.received, request.body) == (begin, b"ok")
        assert (parser.buffered, parser.started) == (0, False)


@pytest.mark.parametrize("sent", ["", "G", HEAD, f"{HEAD}Content-Length: 5\r\n\r\nhell"])
def test_end_of_stream_is_a_failure_only_inside_a_request(sent):
    parser = RequestParser()
    if sent:
        parser.feed(sent.encode(), 0.0)
    parser.end_of_stream()
    assert parser.failure == (BROKEN if sent else None)


def test_an_expectation_is_rejected_only_in_http_1_1():
    head = b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nhi"
    assert failure_for(head) == (HTTPStatus.EXPECTATION_FAILED, NO_EXPECTATIONS)
    assert parse_one(head.replace(b"1.1", b"1.0")).body == b"hi"


# Limits


@pytest.mark.parametrize(("size", "status"), [(BODY_LIMIT, None), (BODY_LIMIT + 1, 413), (10**18, 413), (10**30, 400)])
def test_a_content_length_over_4_mib_is_rejected_before_the_body_arrives(size, status):
    failure = failure_for(f"{HEAD}Content-Length: {size}\r\n\r\n")
    assert (failure[0] if failure else None) == status


@pytest.mark.parametrize(("excess", "status"), [(0, None), (1, 413)])
def test_a_chunked_body_is_rejected_at_the_first_byte_over_4_mib(excess, status):
    megabyte = b"100000\r\n" + b"x" * 2**20 + b"\r\n"
    failure = failure_for(CHUNKED, *[megabyte] * 4, b"%x\r\nx" % 2**20 if excess else b"")
    assert (failure[0] if failure else None) == status


@pytest.mark.parametrize("piece", [1, 1000, 100_000], ids="in pieces of {}".format)
@pytest.mark.parametrize(
    "head",
    [
        HEAD + "A: b\r\n" * (HEAD_LIMIT // 6) + "\r\n",
        HEAD + f"A: {'x' * HEAD_LIMIT}\r\n\r\n",
        f"GET /{'x' * HEAD_LIMIT} HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
    ids=["fields", "one field", "target"],
)
def test_a_head_over_8_kib_is_rejected(head, piece):
    failure = failure_for(*(head[begin : begin + piece] for begin in range(0, len(head), piece)))
    assert failure == (HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, HEAD_TOO_LARGE)


def test_trailers_count_as_part_of_the_head():
    failure = failure_for(CHUNKED + b"0\r\n" + b"A: b\r\n" * (HEAD_LIMIT // 6) + b"\r\n")
    assert failure == (HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, HEAD_TOO_LARGE)


def test_a_body_in_tiny_chunks_uses_memory_proportional_to_its_size():
    wire, size = b"2\r\nab\r\n" * 4096, 2 * 4096
    with traced_memory(__file__) as allocated:
        parser = RequestParser()
        parser.feed(CHUNKED, 0.0)
        before = allocated()
        for begin in range(0, len(wire), 1024):
            parser.feed(wire[begin : begin + 1024], 0.0)
        held = allocated() - before
    assert held < 4 * size + 4096


@pytest.mark.parametrize(
    "chunk",
    [b"2\r\nab\r\n", b"6\r\nabcdef\r\n", b"1;" + b"x" * 4000 + b"\r\na\r\n"],
    ids=["2-byte chunks", "6-byte chunks", "long extension"],
)
def test_a_chunked_body_with_too_much_framing_is_rejected(chunk):
    assert failure_for(CHUNKED, *[chunk * (16384 // len(chunk))] * 20) == BROKEN


# The target


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/mutate?timeout=1s", "/mutate", "timeout=1s"),
        ("/mutate?a?b", "/mutate", "a?b"),
        ("/%6dutate", "/%6dutate", ""),
        ("http://host/mutate?a=b", "/mutate", "a=b"),
        ("http://host", "/", ""),
        ("//host/mutate", "//host/mutate", ""),
        ("//[", "//[", ""),
        ("http://[/mutate", "/mutate", ""),
        ("/a;b", "/a;b", ""),
    ],
)
def test_path_and_query_come_from_the_target(target, path, query):
    head = parse_one(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n").head
    assert (head.path, head.query) == (path, query)


# Responses


def test_serialize_returns_head_and_body_as_one_piece():
    head, _, body = serialize(Response(HTTPStatus.OK, b"{}"), keep_alive=True).decode().partition("\r\n\r\n")
    status, date, *fields = head.split("\r\n")
    assert (status, body) == ("HTTP/1.1 200 OK", "{}")
    assert date.startswith("Date: ")
    assert fields == ["Connection: keep-alive", "Content-Length: 2", "Content-Type: application/json"]
