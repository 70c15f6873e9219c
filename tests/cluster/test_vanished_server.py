"""An API server that vanishes without a word, as by a power cut: no packet ends its connections."""

import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

# Runs in a network of its own, and switches it off.
WATCH = """
import fcntl, socket, struct
from tests.support.fake_api_server import ApiServer, stream
from webhook.cluster.client import ClusterClient
from webhook.cluster.credentials import Api, ClusterError

SIOCSIFFLAGS, IFF_UP = 0x8914, 1

def set_loopback(flags):
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags))

set_loopback(IFF_UP)
with ApiServer() as server:
    server.script("watch", "persistentvolumeclaims", stream(b"", end=None))
    events = ClusterClient(Api(server.url)).watch("/api/v1/persistentvolumeclaims", "1", 300)
    set_loopback(0)
    try:
        next(events)
    except ClusterError as error:
        print(error)
    set_loopback(IFF_UP)
"""


def test_a_watch_of_a_server_that_has_vanished_ends_long_before_a_bookmark_is_missing() -> None:
    """Without the kernel's probes, it would end after 150 s."""
    isolated = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    if subprocess.run([*isolated, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no right to make a network of its own")
    command = [*isolated, sys.executable, "-c", WATCH]
    found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=90, cwd=ROOT)
    assert found.stdout == "the watch was interrupted: no response in time\n", found.stderr
