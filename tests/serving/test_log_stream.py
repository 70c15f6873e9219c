"""The log never keeps a review waiting, and no review fails for want of whoever reads it."""

import fcntl
import json
import os
from contextlib import contextmanager

import pytest

from tests.support.server_process import serving, until
from webhook.serving.log_stream import PIECE, LogStream


@contextmanager
def pipe(pages=1):
    """Both ends of a pipe that holds so many pages; each is closed at the end if it is not already."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, pages * PIECE)
    ends = [reader, writer]
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


def read(reader):
    os.set_blocking(reader, False)
    return os.read(reader, 1 << 20).decode()


def test_lines_come_through():
    with pipe(pages=2) as (reader, writer):
        outlet = LogStream(writer)
        for line in ("one\n", "zwölf\n", "half a pair: \ud83d\n"):
            assert outlet.write(line) == len(line)
        outlet.flush()
        assert read(reader) == "one\nzwölf\nhalf a pair: \\ud83d\n"
        assert outlet.dropped == 0


def test_what_nobody_reads_is_dropped_and_counted():
    with pipe() as (reader, writer):
        outlet = LogStream(writer)
        for _ in range(3):
            outlet.write("x" * (PIECE - 1) + "\n")
        assert outlet.dropped == 2
        assert read(reader) == "x" * (PIECE - 1) + "\n"
        outlet.write("again\n")
        assert (read(reader), outlet.dropped) == ("again\n", 2)


def test_a_line_that_was_cut_ends_before_the_next_one_begins():
    with pipe(pages=2) as (reader, writer):
        outlet = LogStream(writer)
        for _ in range(2):
            outlet.write("x" * 3 * PIECE + "\n")
        assert outlet.dropped == 2
        assert read(reader) == "x" * 2 * PIECE
        for line in ("next\n", "last\n"):
            outlet.write(line)
        assert (read(reader), outlet.dropped) == ("\nnext\nlast\n", 2)


def test_a_reader_that_has_gone_is_no_error():
    with pipe() as ends:
        outlet = LogStream(ends[1])
        os.close(ends.pop(0))
        outlet.write("to nobody\n")
        assert outlet.dropped == 1


def dropped(server):
    lines = server.probe("/metrics")[1].splitlines()
    return next(
        float(line.split()[1]) for line in lines if line.startswith("kubevirt_scheduler_log_lines_dropped_total")
    )


@pytest.fixture
def piped(tmp_path):
    """A server whose standard error is a short pipe, and the end of it that is to be read."""
    os.mkfifo(tmp_path / "log")
    reader = os.open(tmp_path / "log", os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, PIECE)
    ends = [reader]
    with serving(tmp_path) as server:
        yield server, ends
    for end in ends:
        os.close(end)


def test_reviews_are_answered_while_nobody_reads_the_log(piped):
    server, (reader,) = piped
    while dropped(server) < 3:
        assert server.review()["allowed"]
    assert server.probe("/healthz")[0] == 200
    read(reader)
    before = dropped(server)
    assert server.review()["allowed"]
    assert json.loads(until(lambda: read(reader)).splitlines()[-1])["event"] == "decided"
    assert dropped(server) == before


def test_reviews_are_answered_when_whoever_read_the_log_has_gone(piped):
    server, ends = piped
    with server.raw() as kept:
        os.close(ends.pop())
        for _ in range(3):
            assert server.review()["allowed"]
        assert dropped(server) >= 3
        kept.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert kept.recv(100).startswith(b"HTTP/1.1 404 ")  # by the same worker
