"""Attacks on the webhook without credentials, for benchmarks/faults.py. Each runs in processes until it is stopped.

This module measures nothing: run as a script, it prints nothing.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import secrets
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from itertools import cycle, islice
from multiprocessing import get_context
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

from sides import ANTI_AFFINITY_NAMESPACE, REVIEW, TIMEOUT, Side

from tests.support.accounts import LONGHORN
from tests.support.client_hello import client_hello, records
from tests.support.large_reviews import REQUIRED, large_review
from tests.support.tls_records import handshake
from webhook.placement.objects.longhorn import COMPONENT_LABEL, SHARE_MANAGER, VOLUME_LABEL
from webhook.serving.review.admission_review import MAX_ITEMS, REVIEW_LIMIT
from webhook.serving.worker.parser import BODY_LIMIT

COSTLY = MAX_ITEMS  # bytes of nested lists, which the webhook still decodes
HEAD = b"POST /mutate?timeout=10s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
MANY = 100  # requests per connection, or connections
KEY_UPDATES = 20_000  # 0.5 MB of records
ANNOUNCED_HELLO = b"\x16\x03\x01\x00\x06\x01" + (128 * 1024).to_bytes(3, "big") + b"\x03\x03"
UNKNOWN = range(0x3000, 0x3000 + 16_200)  # groups
LARGE_HELLO = records(client_hello(UNKNOWN, [(group, b"x") for group in UNKNOWN[:6480]]))
COSTLY_HELLO = records(client_hello([260], [(260, b"x" * 1024)]))
ADDRESSES = [f"127.0.0.{number}" for number in range(2, 10)]  # the load uses others: the server's peers take turns
ATTACKER = ADDRESSES[0]
NICENESS = 10  # of the attacking processes, which share a core with the load, whose delays are measured


def join_within(seconds: float, *threads: Thread) -> None:
    """Wait until the threads end. Exits with the names of those that don't; they are daemons, so the process ends."""
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if hanging := sorted({thread.name for thread in threads if thread.is_alive()}):
        sys.exit(f"these threads don't end within {seconds:.0f} s: {', '.join(hanging)}")


def _connect(side: Side) -> socket.socket:
    parts = urlsplit(side.url)
    return socket.create_connection((str(parts.hostname), int(parts.port or 0)), TIMEOUT, source_address=(ATTACKER, 0))


def abandon_a_body(side: Side) -> None:
    """Send a body of 4 MiB without its last byte, and close."""
    tls_context = ssl.create_default_context(cafile=side.ca)
    with tls_context.wrap_socket(_connect(side), server_hostname="localhost") as sock:
        sock.sendall(HEAD % BODY_LIMIT + b" " * (BODY_LIMIT - 1))


def flood_with_key_updates(side: Side) -> None:
    """Send KeyUpdate records instead of a request."""
    with _connect(side) as sock, tempfile.TemporaryDirectory() as folder:
        writer = handshake(sock, ssl.create_default_context(cafile=side.ca), Path(folder))
        sock.sendall(writer.key_updates(KEY_UPDATES))


@cache
def _body(shape: str, size: int) -> bytes:
    return large_review(shape, size)[0]


def send_a_large_review(shape: str, size: int, side: Side) -> None:
    """Send a review of this shape and size, and read the response."""
    send_many([_body(shape, size)], side)


def send_many(
    bodies: Iterable[bytes], side: Side, content_type: str = "application/json", address: str = ATTACKER
) -> None:
    """Send reviews over one connection, one after the other, from a local address."""
    parts = urlsplit(side.url)
    context = ssl.create_default_context(cafile=str(side.ca))
    connection = http.client.HTTPSConnection(
        str(parts.hostname), parts.port, timeout=TIMEOUT, context=context, source_address=(address, 0)
    )
    try:
        for body in bodies:
            connection.request("POST", "/mutate?timeout=10s", body, {"Content-Type": content_type})
            connection.getresponse().read()
    finally:
        connection.close()


@cache
def _review_with_terms(terms: int, *, share_manager: bool = False) -> bytes:
    """Return a small review whose pod has required anti-affinity terms that no label helps to look up."""
    review = json.loads(REVIEW.read_bytes())
    request, selector = review["request"], {"matchExpressions": [{"key": "absent", "operator": "Exists"}]}
    pod, namespaces = request["object"], [ANTI_AFFINITY_NAMESPACE, request["namespace"]]
    if share_manager:
        pod["metadata"]["labels"] = {COMPONENT_LABEL: SHARE_MANAGER, VOLUME_LABEL: "vol-disk1"}
        request |= {"namespace": "longhorn-system", "userInfo": {"username": LONGHORN}}
        namespaces = [*namespaces, "longhorn-system"]
    term = {"labelSelector": selector, "namespaces": namespaces, "topologyKey": "topology.kubernetes.io/zone"}
    pod["spec"]["affinity"] = {"podAntiAffinity": {REQUIRED: [term] * terms}}
    return json.dumps(review).encode()


def send_terms(
    least: int,
    side: Side,
    *,
    share_manager: bool = False,
    content_type: str = "application/json",
    address: str = ATTACKER,
) -> None:
    """Send small reviews with `least` to 90 terms: each comparison of a term with a pod takes time."""
    terms = cycle(range(least, 91))
    bodies = (_review_with_terms(number, share_manager=share_manager) for number in islice(terms, MANY))
    send_many(bodies, side, content_type, address)


def send_reviews(side: Side) -> None:
    """Send reviews of an ordinary VM."""
    send_many([REVIEW.read_bytes()] * MANY, side)


def ask_for_made_up_claims(side: Side) -> None:
    """Send reviews of VMs that don't exist, with claims that don't exist: each could cause an Event."""
    review = REVIEW.read_bytes()
    claim = re.search(rb'"claimName": ?"([^"]+)"', review)[1]
    vmi = re.search(rb'"kubevirt.io/created-by": ?"([^"]+)"', review)[1]
    names = (secrets.token_hex(16).encode() for _ in range(MANY))
    send_many((review.replace(claim, b"claim-" + name).replace(vmi, name) for name in names), side)


def send_garbage(side: Side) -> None:
    """Send requests that are no reviews: each could write a log line."""
    send_many([b"garbage"] * MANY, side)


def send_at_once(connections: int, request: bytes, side: Side) -> None:
    """Send a request over each of some connections at once, and read no response."""
    tls_context = ssl.create_default_context(cafile=side.ca)
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(tls_context.wrap_socket(_connect(side), server_hostname="localhost"))
            for _ in range(connections)
        ]
        for sock in sockets:
            sock.sendall(request)
        time.sleep(0.5)


def send_over_many(connections: int, read_review: Callable[[], bytes], side: Side) -> None:
    """Send a review over each of some connections at once."""
    review = read_review()
    send_at_once(connections, HEAD % len(review) + review, side)


def fill_the_queue(side: Side) -> None:
    """Send 40 MiB of reviews that take long to decide: two threads send more than the server keeps in memory."""
    review = _body("nested lists", COSTLY)
    send_at_once(40 * 1024 * 1024 // len(review), HEAD % len(review) + review, side)


def announce_client_hellos(side: Side) -> None:
    """Announce a ClientHello of 128 KiB over each of MANY connections, and wait until the server closes the last."""
    with ExitStack() as stack:
        for _ in range(MANY):
            sock = stack.enter_context(_connect(side))
            sock.sendall(ANNOUNCED_HELLO)
        sock.recv(1)


def send_hellos(hello: bytes, address: str, side: Side) -> None:
    """Send a ClientHello over each of MANY connections, one after the other, and read what the server answers."""
    parts = urlsplit(side.url)
    for _ in range(MANY):
        with (
            suppress(OSError),
            socket.create_connection((str(parts.hostname), int(parts.port or 0)), TIMEOUT, (address, 0)) as sock,
        ):
            sock.sendall(hello)
            sock.recv(1000)


def create_large_vms(side: Side) -> None:
    """Send reviews of made-up VMs with 5,000 labels: each once stayed in memory for 10 s."""
    review = json.loads(REVIEW.read_bytes())
    labels = review["request"]["object"]["metadata"]["labels"]
    labels |= {f"label-{number}": "" for number in range(5000)}
    bodies = []
    for _ in range(10):
        labels["kubevirt.io/created-by"] = secrets.token_hex(16)
        bodies.append(json.dumps(review).encode())
    send_many(bodies, side)


Attack = Callable[[Side], None]

OTHER_PODS = "terms of other pods"  # in a cluster that has pods with many terms

# The title of each row, and the attack that each of its processes repeats.
ATTACKS: dict[str, list[Attack]] = {
    "abandoned bodies of 4 MiB": 2 * [abandon_a_body],
    "KeyUpdate floods": 2 * [flood_with_key_updates],
    "4 MiB of nested lists": 2 * [partial(send_a_large_review, "nested lists", BODY_LIMIT)],
    "512 KiB of preferred terms": 2 * [partial(send_a_large_review, "preferred", REVIEW_LIMIT)],
    "100 KB of preferred terms": 2 * [partial(send_a_large_review, "preferred", 100_000)],
    "reviews of made-up claims": 2 * [ask_for_made_up_claims],
    "garbage instead of reviews": 2 * [send_garbage],
    "reviews of 200 connections at once": 2 * [partial(send_over_many, MANY, REVIEW.read_bytes)],
    "600 costly reviews at once": 2 * [partial(send_over_many, 3 * MANY, partial(_body, "nested lists", COSTLY))],
    "80 MiB of costly reviews": 2 * [fill_the_queue],
    "announced ClientHellos": 2 * [announce_client_hellos],
    "ClientHellos of 65 KB from eight addresses": [partial(send_hellos, LARGE_HELLO, each) for each in ADDRESSES],
    "shares of ffdhe8192 from eight addresses": [partial(send_hellos, COSTLY_HELLO, each) for each in ADDRESSES],
    "reviews of large made-up VMs": 2 * [create_large_vms],
    "512 KiB of claims": 2 * [partial(send_a_large_review, "claims", REVIEW_LIMIT)],
    "small reviews with 60 to 90 terms": 2 * [partial(send_terms, 60)],
    "terms of share-managers": 2 * [partial(send_terms, 60, share_manager=True)],
    OTHER_PODS: 2 * [send_reviews],
    "terms with a charset": 8 * [partial(send_terms, 60, content_type="application/json; charset=utf-8")],
    "terms from eight addresses": [partial(send_terms, 90, address=each) for each in ADDRESSES],
}


def _repeat(attack: Attack, side: Side, begun: Synchronized[int]) -> None:
    os.nice(NICENESS)
    while True:
        begun.value += 1
        with suppress(OSError, http.client.HTTPException):
            attack(side)
        time.sleep(0.01)


@contextmanager
def attacking(side: Side, name: str) -> Iterator[Callable[[], int]]:
    """Repeat an attack during the block. Yields a function that returns how often it was begun.

    In processes: threads would share the interpreter with each other, and attack less.
    """
    context = get_context("fork")  # eight new interpreters would take seconds to start
    counters = [context.Value("i", 0) for _ in ATTACKS[name]]
    running = [
        context.Process(target=_repeat, args=(attack, side, begun), name=name, daemon=True)
        for attack, begun in zip(ATTACKS[name], counters, strict=True)
    ]
    try:
        for process in running:
            process.start()
        while not all(begun.value for begun in counters):
            time.sleep(0.01)
        yield lambda: sum(begun.value for begun in counters)
    finally:
        for process in running:
            process.kill()
        for process in running:
            process.join()
