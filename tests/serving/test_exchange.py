"""HTTP on a stream of bytes: the same requests come out wherever it is cut, and what is none is refused."""

from http import HTTPStatus
from itertools import pairwise
from wsgiref.validate import validator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.memory import traced
from webhook.serving.exchange import Response, serialize
from webhook.serving.request_parser import BODY_BROKEN, BODY_LIMIT, FIELDS_LIMIT, HEAD_LIMIT, RequestParser
from webhook.serving.wsgi import wsgi_response

thorough = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])

HEAD = "POST /mutate HTTP/1.1\r\nHost: x\r\n"
CHUNKED = f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode()
NOT_HTTP = (HTTPStatus.BAD_REQUEST, "not HTTP")
BROKEN = (HTTPStatus.BAD_REQUEST, BODY_BROKEN)


def read(*pieces):
    """All whole requests in these pieces, and why what follows them is of no use."""
    reader, found = RequestParser(), []
    for piece in pieces:
        reader.feed(piece.encode() if isinstance(piece, str) else piece, 0.0)
        while reader.complete:
            found.append(reader.take(0.0))
        if reader.failure:
            break
    return found, reader.failure


def only(*pieces):
    """The one request in these pieces."""
    [found], failure = read(*pieces)
    assert failure is None
    return found


def failure_of(*pieces):
    """Why these pieces hold no request."""
    found, failure = read(*pieces)
    assert found == []
    return failure


# Wherever the bytes are cut


@st.composite
def requests(draw):
    """A request as bytes, and what is to come out of them."""
    method = draw(st.sampled_from(["GET", "POST", "HEAD", "OPTIONS"]))
    target = draw(st.sampled_from(["/", "/mutate?timeout=10s", "/%41", "http://host/x?y"]))
    version, kept = draw(st.sampled_from([("1.1", True), ("1.0", False)]))
    fields = draw(
        st.lists(st.sampled_from(["a: b", "Long: " + "x" * 300, "empty:", "Expect: 100-continue"]), max_size=4)
    )
    chunks = draw(st.lists(st.binary(min_size=1, max_size=300), max_size=4))
    body = b"".join(chunks)
    if version == "1.1" and draw(st.booleans()):
        ends = draw(st.lists(st.sampled_from([b"\r\n", b";a=b\r\n", b' ;a="\x80"\r\n']), min_size=4, max_size=4))
        framed = b"".join(b"%x%s%s\r\n" % (len(chunk), end, chunk) for chunk, end in zip(chunks, ends, strict=False))
        fields, sent = (
            [*fields, "Transfer-Encoding: chunked"],
            framed + draw(st.sampled_from([b"0\r\n\r\n", b"0\r\nTrailing: x\r\n\r\n"])),
        )
    else:
        fields, sent = [*fields, f"Content-Length: {len(body)}"], body
    first = draw(st.sampled_from(["", "\r\n"]))
    head = first + f"{method} {target} HTTP/{version}\r\n" + "".join(f"{field}\r\n" for field in fields) + "\r\n"
    return head.encode() + sent, (method, target, body, kept)


TAILS = [b"", b"GET", b"GET /\r\n\r\n", b"\x16\x03\x01\x02\x00", b"POST / HTTP/1.1\r\nA :\r\n\r\n", b"\n\n", b"\0" * 9]


@thorough
@given(
    st.lists(requests(), max_size=4),
    st.sampled_from([*TAILS, CHUNKED + b"5\r\nab", CHUNKED + b"x\r\n"]),
    st.lists(st.integers(0, 3000), max_size=12),
)
def test_wherever_the_bytes_are_cut_the_same_requests_come_out(sent, tail, cuts):
    stream = b"".join(each for each, _ in sent) + tail
    whole, failure = read(stream)
    edges = [0, *sorted({cut for cut in cuts if cut < len(stream)}), len(stream)]
    assert read(*(stream[begin:end] for begin, end in pairwise(edges))) == (whole, failure)
    assert read(*(bytes([byte]) for byte in stream)) == (whole, failure)
    assert [(each.method, each.target, each.body, each.keep) for each in whole] == [out for _, out in sent]


@thorough
@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=4))
def test_any_bytes_are_a_request_or_a_refusal_and_never_a_surprise(stream, cuts):
    edges = [0, *sorted(cuts), 200]
    _, failure = read(*(stream[begin:end] for begin, end in pairwise(edges)))
    assert failure in (None, NOT_HTTP, BROKEN)


@thorough
@given(st.sampled_from([HEAD.encode(), CHUNKED]), st.binary(max_size=100))
def test_any_bytes_behind_a_good_beginning_are_no_surprise_either(beginning, rest):
    assert read(beginning + rest)[1] in (None, NOT_HTTP, BROKEN)


# What is no request


@pytest.mark.parametrize(
    "fields",
    [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: 5\r\nContent-Length: 5",
        "Content-Length: 5, 5",
        "Content-Length: 5,5",
        "Content-Length: +5",
        "Content-Length: -5",
        "Content-Length: 0x5",
        "Content-Length: 5_0",
        "Content-Length: 5 0",
        "Content-Length: 5.0",
        "Content-Length: \xb2",
        "Content-Length:",
        "Content-Length: " + "9" * 5000,
        "Transfer-Encoding: chunked, gzip",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: identity",
        "Transfer-Encoding: gzip",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: chunked\x0b",
        'Transfer-Encoding: "chunked"',
        "Transfer-Encoding:",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding\t: chunked",
        "Content-Length : 5",
        " Content-Length: 5",
        "\tContent-Length: 5",
        "X: 1\r\n Content-Length: 5",
        "X: 1\r\n\tTransfer-Encoding: chunked",
        "Content-Length: 5\nX: 1",
        "X: 1\nContent-Length: 5",
        "X: 1\rContent-Length: 5",
        "X: a\0b",
        "X\0: a",
        "X: \x7f",
        "X",
        ": x",
        "X y: z",
        "X\xe9: z",
        "Host: x",
        "Content-Type: a\r\nContent-Type: b",
    ],
    ids=lambda fields: repr(fields[:60]),
)
def test_a_head_that_two_readers_could_read_in_two_ways_is_refused(fields):
    head = f"{HEAD}{fields}\r\n\r\n".encode("latin-1")
    assert failure_of(head + b"hello") == NOT_HTTP
    assert failure_of(*(bytes([byte]) for byte in head)) == NOT_HTTP


@pytest.mark.parametrize(
    "line",
    [
        "GET / HTTP/1.1\n",
        "GET  / HTTP/1.1\r\n",
        "GET / HTTP/1.1 \r\n",
        " GET / HTTP/1.1\r\n",
        "GET\t/ HTTP/1.1\r\n",
        "GET / HTTP/1.2\r\n",
        "GET / HTTP/2.0\r\n",
        "GET / HTTP/0.9\r\n",
        "GET / http/1.1\r\n",
        "GET /\r\n",
        "get / HTTP/1.1\r\n",
        "GET x HTTP/1.1\r\n",
        "GET * HTTP/1.1\r\n",
        "GET /\0 HTTP/1.1\r\n",
        "GET /\xe9 HTTP/1.1\r\n",
        "G(T / HTTP/1.1\r\n",
        "\r\n\r\nGET / HTTP/1.1\r\n",
        "PRI * HTTP/2.0\r\n",
        f"GET /{'x' * 8190} HTTP/1.1\r\n",
    ],
    ids=lambda line: repr(line[:40]),
)
def test_a_line_that_is_no_request_line_is_refused(line):
    assert failure_of(f"{line}Host: x\r\n\r\n".encode("latin-1")) == NOT_HTTP


def test_a_chunked_body_in_http_1_0_is_refused():
    assert failure_of(CHUNKED.replace(b"1.1", b"1.0")) == NOT_HTTP


@pytest.mark.parametrize(
    "body",
    [
        b"x\r\n",
        b"\r\n",
        b"-1\r\n",
        b"+1\r\n",
        b"0x1\r\n",
        b" 1\r\n",
        b"1 \r\n",
        b"1_0\r\n",
        b"1\na\r\n",
        b"1\r\nab\r\n",
        b"1\r\na\n\n",
        b"1;\ra=b\r\n",
        b"1;=\r\n",
        b"0\r\nContent-Length: 5\r\n\r\n",
        b"0\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"0\r\nHost: y\r\n\r\n",
        b"0\r\n" + b"A: b\r\n" * (FIELDS_LIMIT + 1),
    ],
    ids=repr,
)
def test_chunks_that_are_none_are_refused(body):
    assert failure_of(CHUNKED + body) == BROKEN
    assert failure_of(CHUNKED, *(bytes([byte]) for byte in body)) == BROKEN


# What is a request


@pytest.mark.parametrize(
    ("stream", "body"),
    [
        (f"{HEAD}\r\n", b""),
        (f"{HEAD}Content-Length: 0\r\n\r\n", b""),
        (f"{HEAD}content-length:\t005 \r\n\r\nhello", b"hello"),
        (f"{HEAD}TRANSFER-ENCODING: Chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", b"hello"),
        (f"{HEAD}Transfer-Encoding: chunked\r\n\r\n00A;x=y\r\n0123456789\r\n0\r\nTrailing: x\r\n\r\n", b"0123456789"),
        (f"\r\n{HEAD}Content-Length: 2\r\n\r\nok", b"ok"),
        (f"{HEAD}X: \xe9\r\nContent-Length: 2\r\n\r\nok".encode("latin-1"), b"ok"),
    ],
)
def test_the_body_is_what_was_framed(stream, body):
    assert only(stream).body == body


@pytest.mark.parametrize(
    ("version", "field", "keep"),
    [
        ("1.1", "A: b", True),
        ("1.1", "Connection: close", False),
        ("1.1", "Connection: Close, TE", False),
        ("1.0", "A: b", False),
        ("1.0", "Connection: keep-alive", True),
        ("1.0", "Connection: close", False),
    ],
)
def test_the_peer_says_whether_it_uses_the_connection_again(version, field, keep):
    assert only(f"GET / HTTP/{version}\r\n{field}\r\n\r\n").keep is keep


def test_behind_a_connect_nothing_is_read():
    assert not only("CONNECT host:443 HTTP/1.1\r\nHost: host\r\n\r\n").keep


def test_a_request_begins_with_its_first_byte():
    reader = RequestParser()
    for now, piece in enumerate((HEAD, "Content-Length: 2\r\n", "\r\no", "kGET / HTTP/1.1\r\n")):
        reader.feed(piece.encode(), 100.0 + now)
    assert reader.take(200.0).received == 100.0
    reader.feed(b"\r\n", 300.0)
    assert reader.take(300.0).received == 200.0


@pytest.mark.parametrize("sent", ["", "G", HEAD, f"{HEAD}Content-Length: 5\r\n\r\nhell"])
def test_an_end_in_the_middle_of_a_request_is_a_failure_and_between_two_it_is_none(sent):
    reader = RequestParser()
    if sent:
        reader.feed(sent.encode(), 0.0)
    reader.end_of_stream()
    assert reader.failure == (BROKEN if sent else None)


@pytest.mark.parametrize(
    ("fields", "body", "waits"),
    [
        ("Expect: 100-continue\r\nContent-Length: 5", "", True),
        ("expect: 100-Continue\r\nTransfer-Encoding: chunked", "", True),
        ("Expect: 100-continue\r\nContent-Length: 5", "h", False),
        ("Expect: 100-continue\r\nContent-Length: 0", "", False),
        ("Expect: something\r\nContent-Length: 5", "", False),
        ("Content-Length: 5", "", False),
    ],
)
def test_who_waits_to_go_on_is_told_once(fields, body, waits):
    reader = RequestParser()
    reader.feed(f"{HEAD}{fields}\r\n\r\n{body}".encode(), 0.0)
    assert [reader.expects_continue(), reader.expects_continue()] == [waits, False]


def test_nobody_who_speaks_http_1_0_is_told_to_go_on():
    reader = RequestParser()
    reader.feed(b"POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n", 0.0)
    assert not reader.expects_continue()


# How much is kept


@pytest.mark.parametrize(("size", "status"), [(BODY_LIMIT, None), (BODY_LIMIT + 1, 413), (10**30, 413)])
def test_a_body_over_8_mib_is_refused_for_its_head_alone(size, status):
    failure = failure_of(f"{HEAD}Content-Length: {size}\r\n\r\n")
    assert (failure[0] if failure else None) == status


@pytest.mark.parametrize(("more", "status"), [(0, None), (1, 413)])
def test_a_chunked_body_over_8_mib_is_refused_at_the_first_byte_too_many(more, status):
    megabyte = b"100000\r\n" + b"x" * 2**20 + b"\r\n"
    failure = failure_of(CHUNKED, *[megabyte] * 8, b"%x\r\nx" % 2**20 if more else b"")
    assert (failure[0] if failure else None) == status


@pytest.mark.parametrize(
    "head",
    [
        HEAD + "A: b\r\n" * FIELDS_LIMIT,
        HEAD + f"A: {'x' * 8190}",
        HEAD + f"A: {'x' * 4000}\r\n" * (HEAD_LIMIT // 4000 + 1),
    ],
    ids=["too many fields", "a field that is too long", "too much of it"],
)
def test_a_head_that_does_not_end_is_refused(head):
    assert failure_of(*(head[begin : begin + 1000] for begin in range(0, len(head), 1000))) == NOT_HTTP


def test_what_is_held_is_counted_and_let_go_of():
    reader = RequestParser()
    stream = f"{HEAD}Content-Length: 5\r\n\r\nhello".encode()
    reader.feed(stream + b"GET /", 0.0)
    assert reader.buffered == len(stream) + 5
    reader.take(0.0)
    assert reader.buffered == 5


def test_a_body_in_tiny_chunks_takes_little_more_memory_than_it_is_long():
    wire, size = b"2\r\nab\r\n" * 4096, 2 * 4096
    with traced(__file__) as taken:
        reader = RequestParser()
        reader.feed(CHUNKED, 0.0)
        before = taken()
        for begin in range(0, len(wire), 1024):
            reader.feed(wire[begin : begin + 1024], 0.0)
        held = taken() - before
    assert held < 4 * size + 4096


@pytest.mark.parametrize(
    "chunk",
    [b"2\r\nab\r\n", b"6\r\nabcdef\r\n", b"1;" + b"x" * 4000 + b"\r\na\r\n"],
    ids=["tiny", "small", "much said"],
)
def test_a_body_that_is_framing_above_all_is_refused(chunk):
    assert failure_of(CHUNKED, *[chunk * (16384 // len(chunk))] * 20) == BROKEN


def test_a_body_in_chunks_as_clients_send_them_is_no_matter_of_framing():
    assert len(only(CHUNKED, *[b"200\r\n" + b"x" * 512 + b"\r\n"] * 2048, b"0\r\n\r\n").body) == 2**20


# As WSGI has it


def told(target, *fields, body=b""):
    """What an application is told of a request, as the standard's own checker lets it pass."""
    seen = {}

    def app(environ, start_response):
        seen.update(environ)
        seen["body"] = environ["wsgi.input"].read(-1)
        start_response("200 OK", [("Content-Type", "text/plain"), ("X-Own", "1")])
        return [b"he", b"llo"]

    lines = "".join(f"{field}\r\n" for field in (*fields, f"Content-Length: {len(body)}"))
    answer = wsgi_response(validator(app), only(f"POST {target} HTTP/1.1\r\n{lines}\r\n".encode() + body), "192.0.2.1")
    assert (answer.status, answer.body) == (200, b"hello")
    assert list(answer.headers) == [("Content-Type", "text/plain"), ("X-Own", "1")]
    return seen


def test_an_application_is_told_what_was_sent():
    seen = told("/a?b=c", "Content-Type: text/plain", "X-A: 1", "X-A: 2", "X_A: 3", "Host: h", body=b"said")
    expected = {"REQUEST_METHOD": "POST", "QUERY_STRING": "b=c", "REMOTE_ADDR": "192.0.2.1", "body": b"said"}
    expected |= {"CONTENT_LENGTH": "4", "CONTENT_TYPE": "text/plain", "HTTP_X_A": "1,2", "HTTP_HOST": "h"}
    assert expected.items() <= seen.items()


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/mutate?timeout=1s", "/mutate", "timeout=1s"),
        ("/mutate?a?b", "/mutate", "a?b"),
        ("/%6dut%C3%A9", "/mut\xc3\xa9", ""),
        ("http://host/mutate?a=b", "/mutate", "a=b"),
        ("http://host", "/", ""),
        ("//host/mutate", "//host/mutate", ""),
        ("//[", "//[", ""),
        ("http://[/mutate", "/mutate", ""),
        ("/a;b", "/a;b", ""),
    ],
)
def test_the_path_is_what_the_target_names(target, path, query):
    seen = told(target)
    assert (seen["PATH_INFO"], seen["QUERY_STRING"]) == (path, query)


# Answers


def test_an_answer_is_one_piece():
    head, _, body = serialize(Response(HTTPStatus.OK, b"{}"), keep=True).decode().partition("\r\n\r\n")
    status, date, *fields = head.split("\r\n")
    assert (status, body) == ("HTTP/1.1 200 OK", "{}")
    assert date.startswith("Date: ")
    assert fields == ["Connection: keep-alive", "Content-Length: 2", "Content-Type: application/json"]


def test_the_last_answer_says_so_and_one_to_head_has_no_body():
    answer = serialize(Response(HTTPStatus.OK, b"{}", [("X", "y")]), keep=False, head_only=True).decode()
    assert answer.endswith("\r\nConnection: close\r\nContent-Length: 2\r\nX: y\r\n\r\n")
