"""`effective_requests` counts the requests of a pod as the scheduler does."""

from copy import deepcopy
from typing import Any

import pytest

from tests.support.builders import Object, pod, pod_fact, typed
from webhook.placement.objects.fields import Malformed
from webhook.placement.objects.resources import (
    MAX_LENGTH,
    MAX_QUANTITIES,
    CostlyQuantities,
    amount,
    amounts,
    effective_requests,
    format_quantity,
)


def requests_of(item: Object) -> dict[str, int]:
    return effective_requests(typed(item).pod)


def container(name: str = "c", sidecar: bool = False, limits: Object | None = None, **requests: Any) -> Object:
    resources = {"requests": requests} | ({"limits": limits} if limits else {})
    return {"name": name, "resources": resources} | ({"restartPolicy": "Always"} if sidecar else {})


ONE, TWO_MORE = container(cpu="1"), container(sidecar=True, cpu="2")
HUGE = {"hugepages-2Mi": "4Mi"}
OTHERS = {"ephemeral-storage": "1", "a.b/c": "1"}
PODS: dict[str, tuple[Object, dict[str, int]]] = {
    "containers": ({"containers": [ONE, container(cpu="2", memory="1")]}, {"cpu": 3000, "memory": 1}),
    "zero": ({"containers": [container(cpu="0", memory="0")]}, {}),
    "null": ({"containers": [container(cpu=None, memory="1")]}, {"memory": 1}),
    "a limit without a request": ({"containers": [container(limits={"cpu": "2"})]}, {"cpu": 2000}),
    "overhead": ({"containers": [ONE], "overhead": {"cpu": "250m", "memory": "1"}}, {"cpu": 1250, "memory": 1}),
    "memory is rounded up once": ({"containers": [container(memory="100m")] * 2}, {"memory": 1}),
    "a sidecar": ({"containers": [ONE], "initContainers": [TWO_MORE]}, {"cpu": 3000}),
    "an init container after a sidecar": (
        {"containers": [ONE], "initContainers": [TWO_MORE, container(cpu="5")]},
        {"cpu": 7000},
    ),
    # The resources of the pod: its requests replace those of the containers.
    "a request of the pod": (
        {"containers": [container(cpu="1", memory="9")], "resources": {"requests": {"cpu": "5"}}},
        {"cpu": 5000, "memory": 9},
    ),
    "resources that count only for containers": (
        {"containers": [], "resources": {"requests": OTHERS | {"cpu": "5", "hugepages-2Mi": "2Mi"}}},
        {"cpu": 5000, "hugepages-2Mi": 2**21},
    ),
    "a limit of the pod": ({"containers": [container()], "resources": {"limits": {"cpu": "5"}}}, {"cpu": 5000}),
    # A limit of huge pages counts whatever the containers request.
    "huge pages": (
        {"containers": [container(**{"hugepages-2Mi": "2Mi"})], "resources": {"limits": HUGE}},
        {"hugepages-2Mi": 2**22},
    ),
}


@pytest.mark.parametrize(("spec", "requests"), PODS.values(), ids=PODS)
def test_effective_requests_match_what_the_scheduler_reserves(spec: Object, requests: dict[str, int]) -> None:
    assert requests_of(pod(**spec)) == {"pods": 1} | requests


@pytest.mark.parametrize(
    ("status", "cpu"),
    [
        ({}, 2000),
        ({"resources": {"requests": {"cpu": "3"}}}, 3000),
        ({"resources": {"requests": {"cpu": "1"}}}, 2000),
        ({"resources": {"requests": {"cpu": "1"}}, "allocatedResources": {"cpu": "4"}}, 4000),
        ({"resources": None, "allocatedResources": None}, 2000),
    ],
    ids=["no status", "a larger actual request", "a smaller one", "larger allocated resources", "nulls"],
)
@pytest.mark.parametrize("kind", ["container", "initContainer"])
def test_the_larger_amount_counts_during_a_container_resize(status: Object, cpu: int, kind: str) -> None:
    containers = {f"{kind}s": [container("main", sidecar=kind != "container", cpu="2")]}
    resized = pod("one", node="node-a", **{"containers": []} | containers)
    other = {"name": "other", "resources": {"requests": {"cpu": "9"}}}
    resized["status"][f"{kind}Statuses"] = [status | {"name": "main"}, other]
    assert requests_of(resized)["cpu"] == cpu


@pytest.mark.parametrize(
    ("reason", "cpu", "pod_cpu"), [("Infeasible", 2000, 4000), ("Deferred", 5000, 6000), (None, 5000, 6000)]
)
def test_the_spec_does_not_count_while_a_resize_is_infeasible(reason: str | None, cpu: int, pod_cpu: int) -> None:
    status: Object = {
        "conditions": [{"type": "Ready"}, {"type": "PodResizePending", "status": "True", "reason": reason}]
    }
    actual = {"resources": {"requests": {"cpu": "1"}}, "allocatedResources": {"cpu": "2"}}
    resized = pod("one", node="node-a", containers=[container("main", cpu="5")])
    resized["status"] |= status | {"containerStatuses": [actual | {"name": "main"}]}
    assert requests_of(resized)["cpu"] == cpu
    resized = pod("one", node="node-a", containers=[], resources={"requests": {"cpu": "6"}})
    resized["status"] |= status | {"resources": {"requests": {"cpu": "4"}}, "allocatedResources": {"cpu": "3"}}
    assert requests_of(resized)["cpu"] == pod_cpu


def test_the_larger_amount_counts_during_a_pod_level_resize() -> None:
    resized = pod("one", node="node-a", containers=[container(memory="4k")], resources={"requests": {"cpu": "1"}})
    resized["status"] |= {"resources": {"requests": {"cpu": "3", "memory": "2k"}}, "allocatedResources": {"cpu": "2"}}
    resized["status"]["containerStatuses"] = [{"name": "c", "resources": {"requests": {"memory": "2k"}}}]
    requests = requests_of(resized)
    assert (requests["cpu"], requests["memory"]) == (3000, 4000)


def test_the_overhead_counts_again_where_the_status_of_the_whole_pod_contains_it() -> None:
    """Kubernetes 1.37 does so: a VM was pinned to a node with too little free CPU, and stayed Pending."""
    running = pod("one", node="node-a", containers=[container("main", cpu="1")], overhead={"cpu": "500m"})
    status: Object = {"allocatedResources": {"cpu": "1500m", "memory": "64"}, "resources": {"requests": {"cpu": "1"}}}
    assert requests_of(running | {"status": status}) == {"pods": 1, "cpu": 2000, "memory": 64}
    # Without the actual requests, the scheduler sums up the statuses of the containers.
    assert requests_of(running | {"status": status | {"resources": {}}}) == {"pods": 1, "cpu": 1500}
    pod_level = deepcopy(running) | {"status": status}
    pod_level["spec"]["resources"] = {"requests": {"cpu": "1200m"}}
    assert requests_of(pod_level) == {"pods": 1, "cpu": 2000, "memory": 64}


COSTLY: dict[str, Object] = {
    "a long quantity": {"requests": {"cpu": "1".zfill(MAX_LENGTH + 1)}},
    "a long number": {"requests": {"cpu": 10**MAX_LENGTH}},
    "resources": {"requests": {f"example.com/{number}": "1" for number in range(MAX_QUANTITIES + 1)}},
    "resources of containers": {"containers": [container(**{str(each): "1" for each in range(20)})] * 30},
    "containers": {"containers": [container()] * 60, "initContainers": [container()] * 5},
    "overhead": {"overhead": {str(each): "1" for each in range(MAX_QUANTITIES + 1)}},
}


@pytest.mark.parametrize("spec", COSTLY.values(), ids=COSTLY)
def test_quantities_that_no_pod_of_the_api_server_has_are_not_parsed(spec: Object) -> None:
    """60,000 resources took 2 s, 1,800 long quantities 18 ms, and 8,192 in the cache 80 MB."""
    with pytest.raises(CostlyQuantities):
        requests_of(pod(**spec))


def test_a_status_that_no_kubelet_writes_is_not_parsed() -> None:
    for status in (
        {"containerStatuses": [{"name": str(each)} for each in range(65)]},
        {"containerStatuses": [{"name": "main", "allocatedResources": COSTLY["overhead"]["overhead"]}]},
    ):
        with pytest.raises(CostlyQuantities):
            requests_of(pod() | {"status": status})


# Quantities, parsed as in the API server and formatted for people


@pytest.mark.parametrize(
    ("quantity", "milli", "units"),
    [
        ("+1", 1000, 1),
        ("1.", 1000, 1),
        (".5", 500, 1),
        ("1500m", 1500, 2),
        ("0.0001", 1, 1),
        ("999999n", 1, 1),
        ("1000001n", 2, 1),
        ("0.1n", 1, 1),
        ("1k", 1_000_000, 1000),
        ("1G", 10**12, 10**9),
        ("1E", 10**21, 10**18),
        ("1Ki", 1024_000, 1024),
        ("1.5Gi", 1500 * 2**30, 3 * 2**29),
        ("1Ei", 1000 * 2**60, 2**60),
        ("2e3", 2_000_000, 2000),
        ("2e-3", 2, 1),
        ("25e+1", 250_000, 250),
        ("-1.5", -1500, -1),
        (2, 2000, 2),
        (0.1, 100, 1),
        (1e18, 10**21, 10**18),
        ("1e999", 1000 * (2**63 - 1), 2**63 - 1),
        ("-1e999", -1000 * (2**63 - 1), -(2**63) + 1),
    ],
)
def test_a_quantity_is_parsed_to_milli_for_cpu_and_to_whole_units_otherwise(
    quantity: Any, milli: int, units: int
) -> None:
    assert amounts({"cpu": quantity, "memory": quantity}, "path") == {"cpu": milli, "memory": units}


@pytest.mark.parametrize(
    "quantity", ["x", "1x", "1 ", " 1", "1e", "1e1.5", "--1", ".", "1.5.1", "1K", "1mi", "1_0", "inf", "٣"]
)
def test_an_invalid_quantity_raises_malformed(quantity: str) -> None:
    with pytest.raises(Malformed, match=r"^path\.cpu: expected a quantity"):
        amounts({"cpu": quantity}, "path")
    with pytest.raises(Malformed, match=r"^memory\.guest: expected a quantity"):
        amount(quantity, "memory.guest")


LIMITS = {"limits": {"cpu": "1", "example.com/gpu": "one"}}
IN_STATUS = {"containerStatuses": [{"name": "a", "allocatedResources": {"cpu": "one"}}]}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"spec": {"containers": [{"name": "a"}, {"name": "b", "resources": LIMITS}]}},
         "spec.containers[1].resources.limits.example.com/gpu"),
        ({"spec": {"containers": [], "initContainers": [{"name": "a", "resources": LIMITS}]}},
         "spec.initContainers[0].resources.limits.example.com/gpu"),
        ({"spec": {"containers": [], "resources": {"requests": {"memory": "much"}}}}, "spec.resources.requests.memory"),
        ({"spec": {"containers": [], "overhead": {"cpu": "one"}}}, "spec.overhead.cpu"),
        ({"spec": {"containers": [{"name": "a"}]}, "status": IN_STATUS}, "status"),
    ],
)  # fmt: skip
def test_the_field_of_a_quantity_that_cannot_be_parsed_is_named(changes: Object, field: str) -> None:
    with pytest.raises(Malformed) as caught:
        pod_fact(pod() | changes)
    assert str(caught.value) == f"{field}: expected a quantity, such as 500m or 4Gi"


@pytest.mark.parametrize(
    ("resource", "quantity", "formatted"),
    [
        ("cpu", 1000, "1"),
        ("cpu", 1001, "1001m"),
        ("devices.kubevirt.io/kvm", 10240, "10240"),
        ("memory", 10239, "10239"),
        ("memory", 10240, "10Ki"),
        ("memory", 2**30, "1024Mi"),
        ("ephemeral-storage", 50 * 10**6, "47.7Mi"),
    ],
)
def test_an_amount_is_formatted_for_people(resource: str, quantity: int, formatted: str) -> None:
    assert format_quantity(resource, quantity) == formatted
