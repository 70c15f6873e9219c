"""A large object is decoded without what is too large to decode."""

import json
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import msgspec
import pytest

from tests.support.builders import Object, pod, pod_anti_affinity, pod_term, virt_launcher
from tests.support.own_process import run_in_child_process
from webhook.catalog.kind import MAX_FIELD, Kind, MalformedObject, decode_json, decode_large, map_of, object_of
from webhook.catalog.kinds import PODS, read_pod
from webhook.placement.objects.pod import UNDECODED

TERMS = pod_anti_affinity(*(pod_term({"app": f"app-{number}"}) for number in range(4000)))
LONG = "x" * MAX_FIELD


def decoded(item: Any) -> Object:
    return decode_large(msgspec.Raw(json.dumps(item).encode()), PODS.shape)


def test_an_unexpected_error_of_a_reader_names_the_object_and_not_its_content() -> None:
    kind = Kind("v1", "Pod", PODS.shape, read=lambda item: item["spec"]["passphrase"])
    with pytest.raises(MalformedObject) as raised:
        kind.extract(pod("one"))
    assert raised.value.args == ("default/one", "KeyError")


@pytest.mark.parametrize(
    ("item", "field", "whole"),
    [
        (pod("one", affinity=TERMS), ("spec", "affinity"), False),
        (pod("one", labels={"a": LONG}), ("metadata", "labels"), False),
        (pod("one", annotations={"a": LONG}), ("metadata", "annotations"), True),
        (pod("one", annotations={"a": LONG * 2}), ("metadata", "annotations"), False),
        (pod("one", containers=[{"name": "c", "env": [LONG]}]), ("spec", "containers"), True),
        (pod("one", containers=[{"name": "c", "resources": {"requests": {LONG: "1"}}}]), ("spec", "containers"), False),
        (pod("one", containers=[{"name": "c" * 2000}] * 300), ("spec", "containers"), False),
        (pod("one", containers={"a": LONG}), ("spec", "containers"), False),
        (pod("one") | {"spec": [LONG]}, ("spec",), False),
    ],
    ids=["terms", "labels", "annotations", "more annotations", "environment", "resources", "containers", "map", "list"],
)
def test_a_large_object_is_decoded_without_its_large_fields(item: Object, field: tuple[str, ...], whole: bool) -> None:
    found: Any = decoded(item)
    assert (UNDECODED not in found) is whole
    assert found["metadata"]["name"] == "one"
    for key in field:
        found = found.get(key) or {}
    assert bool(found and "resources" not in found[0] if isinstance(found, list) else found) is whole


def test_a_large_pod_has_the_facts_of_a_small_one() -> None:
    item = virt_launcher("one", node="node-a", requests={"cpu": "1"}, annotations={"note": LONG})
    small = virt_launcher("one", node="node-a", requests={"cpu": "1"})
    assert read_pod(decoded(item)) == read_pod(small)


def test_what_is_not_json_raises_an_error() -> None:
    with pytest.raises(ValueError, match="malformed"):
        decode_large(msgspec.Raw(b'{"a":' + LONG.encode()), PODS.shape)


@pytest.mark.usefixtures("no_collection")
def test_a_page_with_a_deeply_nested_object_is_not_taken_apart_at_once() -> None:
    """The parts of a page of 4 MiB took 130 MB, and no other thread ran for 2 s."""
    raw = b"[" + b'{"a":1},' * 50_000 + b"[" * 10_000 + b"]" * 10_001
    tracemalloc.start()
    found = decode_json(msgspec.json.Decoder(list[msgspec.Raw]), raw)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (len(found), len(found[-1])) == (50_001, 2 * 99)
    assert peak < 20 * len(raw)


def test_threads_that_decode_kinds_with_a_shared_part_do_not_crash() -> None:
    """Crashes in msgspec came when two reflectors made the decoders of such kinds at once: 3 times in an afternoon."""
    run_in_child_process(decode_kinds_in_threads)


def decode_kinds_in_threads(threads: int = 4, rounds: int = 150) -> None:
    sys.setswitchinterval(1e-6)
    item = msgspec.Raw(b'{"metadata": {"name": "one"}, "spec": {"shared": {"inner": {"inner": {"a": 1}}}}}')
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(rounds):
            shared = map_of(inner=map_of("b c", inner=map_of("a")))
            kinds = [Kind("v1", "Any", object_of(spec=map_of(shared=shared))) for _ in range(threads)]
            barrier = Barrier(threads)

            def decode(kind: Kind, barrier: Barrier = barrier) -> Object:
                barrier.wait()
                return kind.decode(item)

            assert all(found["spec"]["shared"]["inner"]["inner"] == {"a": 1} for found in pool.map(decode, kinds))
