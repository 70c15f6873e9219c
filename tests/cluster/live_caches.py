"""Fills the caches of a `Live` from a fake API server in the test's own thread, and applies chosen watch events."""

import threading

from tests.support.fake_api_server import ApiServer, stream
from webhook.cluster.live_catalog import Live
from webhook.cluster.reflector import Reflector


def reflector(live: Live, plural: str) -> Reflector:
    return next(found for found in live.reflectors if found.kind.plural == plural)


def follow(live: Live, server: ApiServer, plural: str, *lines: bytes) -> None:
    """List one kind again, then apply these watch events."""
    stop = threading.Event()
    server.script("watch", plural, stream(*lines, then=stop.set))
    found = reflector(live, plural)
    clock, found._clock = found._clock, iter(range(0, 10_000, 60)).__next__  # by this clock, each watch lasts a minute
    found.follow(stop)
    found._clock = clock
    found._record_contact()


def sync_caches(live: Live, server: ApiServer) -> None:
    """List every kind once."""
    for each in live.reflectors:
        follow(live, server, each.kind.plural)
