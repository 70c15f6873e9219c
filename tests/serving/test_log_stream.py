"""The log stream: a slow or closed reader loses lines, and reviews neither wait nor fail."""

import fcntl
import json
import os
from contextlib import contextmanager

import pytest

from tests.support.server_process import run_server, until
from webhook.serving.telemetry.logs import PIPE_BUF, LogStream


@contextmanager
def pipe(pages=1):
    """The read end and the write end of a pipe, as a list. At the end the ends in the list are closed."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, pages * PIPE_BUF)
    ends = [reader, writer]
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


def read(reader):
    os.set_blocking(reader, False)
    return os.read(reader, 1 << 20).decode()


def test_lines_reach_the_reader():
    with pipe(pages=2) as (reader, writer):
        stream = LogStream(writer)
        for line in ("one\n", "zwölf\n", "lone surrogate: \ud83d\n"):
            assert stream.write(line) == len(line)
        assert read(reader) == "one\nzwölf\nlone surrogate: \\ud83d\n"
        assert stream.dropped == 0


def test_lines_are_dropped_and_counted_while_the_pipe_is_full():
    with pipe() as (reader, writer):
        stream = LogStream(writer)
        for _ in range(3):
            stream.write("x" * (PIPE_BUF - 1) + "\n")
        assert stream.dropped == 2
        assert read(reader) == "x" * (PIPE_BUF - 1) + "\n"
        stream.write("again\n")
        assert (read(reader), stream.dropped) == ("again\n", 2)


def test_a_truncated_line_is_terminated_before_the_next_line():
    with pipe(pages=2) as (reader, writer):
        stream = LogStream(writer)
        for _ in range(2):
            stream.write("x" * 3 * PIPE_BUF + "\n")
        assert stream.dropped == 2
        assert read(reader) == "x" * 2 * PIPE_BUF
        for line in ("next\n", "last\n"):
            stream.write(line)
        assert (read(reader), stream.dropped) == ("\nnext\nlast\n", 2)


def test_a_closed_reader_drops_the_line_without_an_error():
    with pipe() as ends:
        stream = LogStream(ends[1])
        os.close(ends.pop(0))
        stream.write("unread\n")
        assert stream.dropped == 1


@pytest.fixture
def piped(tmp_path):
    """A server whose standard error is a pipe of one page, and a list with the read end of the pipe."""
    os.mkfifo(tmp_path / "log")
    reader = os.open(tmp_path / "log", os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, PIPE_BUF)
    ends = [reader]
    with run_server(tmp_path) as server:
        yield server, ends
    for end in ends:
        os.close(end)


def test_reviews_succeed_while_the_log_is_not_read_and_after_its_reader_closes(piped):
    server, ends = piped
    [reader] = ends
    while server.metric("log_lines_dropped_total") < 3:
        assert server.review()["allowed"]
    assert server.probe("/healthz")[0] == 200
    read(reader)
    before = server.metric("log_lines_dropped_total")
    assert server.review()["allowed"]
    assert json.loads(until(lambda: read(reader)).splitlines()[-1])["event"] == "decided"
    assert server.metric("log_lines_dropped_total") == before
    os.close(ends.pop())
    assert until(lambda: server.review()["allowed"] and server.metric("log_lines_dropped_total") > before)
