"""How much room a pod asks for is counted as the scheduler counts it."""

import pytest

from tests.support.builders import Object, pod
from webhook.placement.resources import effective_requests


def container(name: str = "c", sidecar: bool = False, limits: Object | None = None, **requests: str) -> Object:
    resources = {"requests": requests} | ({"limits": limits} if limits else {})
    return {"name": name, "resources": resources} | ({"restartPolicy": "Always"} if sidecar else {})


@pytest.mark.parametrize(
    ("spec", "requests"),
    [
        pytest.param({"containers": []}, {}, id="nothing but itself"),
        pytest.param({"containers": None, "initContainers": None, "overhead": None, "resources": None}, {}, id="nulls"),
        pytest.param({"containers": [{"name": "c"}, {"name": "d", "resources": None}]}, {}, id="no resources"),
        pytest.param(
            {"containers": [container(cpu="1"), container(cpu="2", memory="1")]}, {"cpu": 3000, "memory": 1}, id="sum"
        ),
        pytest.param({"containers": [container(cpu="0", memory="0")]}, {}, id="what is asked for as 0"),
        pytest.param({"containers": [container(limits={"cpu": "2"})]}, {"cpu": 2000}, id="a limit alone is a request"),
        pytest.param(
            {"containers": [container(limits={"cpu": "2"}, cpu="1")]}, {"cpu": 1000}, id="a request beside a limit"
        ),
        pytest.param({"containers": [container(limits={"cpu": "2"}, cpu="0")]}, {}, id="a request of 0 beside a limit"),
        pytest.param(
            {
                "containers": [
                    container(**{"devices.kubevirt.io/kvm": "1", "hugepages-2Mi": "4Mi", "ephemeral-storage": "1k"})
                ]
            },
            {"devices.kubevirt.io/kvm": 1, "hugepages-2Mi": 2**22, "ephemeral-storage": 1000},
            id="extended resources, huge pages, ephemeral storage",
        ),
        pytest.param(
            {"containers": [container(cpu="1")], "overhead": {"cpu": "250m", "memory": "1"}},
            {"cpu": 1250, "memory": 1},
            id="overhead",
        ),
        pytest.param(
            {"containers": [container(memory="100m"), container(memory="100m")]}, {"memory": 1}, id="rounded up once"
        ),
        pytest.param(
            {"containers": [container(cpu="0.0004"), container(cpu="0.0004")]},
            {"cpu": 2},
            id="but to a milli at once",
        ),
        pytest.param(
            {"containers": [container(cpu="1")], "initContainers": [container(cpu="3"), container(cpu="2")]},
            {"cpu": 3000},
            id="the largest init container",
        ),
        pytest.param(
            {"containers": [container(cpu="4")], "initContainers": [container(cpu="3", memory="1")]},
            {"cpu": 4000, "memory": 1},
            id="each resource for itself",
        ),
        pytest.param(
            {"containers": [container(cpu="1")], "initContainers": [container(sidecar=True, cpu="2")]},
            {"cpu": 3000},
            id="a sidecar stays",
        ),
        pytest.param(
            {
                "containers": [container(cpu="1")],
                "initContainers": [container(sidecar=True, cpu="2"), container(cpu="5")],
            },
            {"cpu": 7000},
            id="an init container beside the sidecar before it",
        ),
        pytest.param(
            {
                "containers": [container(cpu="1")],
                "initContainers": [container(cpu="5"), container(sidecar=True, cpu="2")],
            },
            {"cpu": 5000},
            id="an init container before the sidecar",
        ),
        pytest.param(
            {
                "containers": [container(cpu="1")],
                "initContainers": [
                    container(sidecar=True, cpu="1"),
                    container(sidecar=True, cpu="2"),
                    container(cpu="1"),
                ],
            },
            {"cpu": 4000},
            id="two sidecars",
        ),
        pytest.param(
            {"containers": [], "initContainers": [container(cpu="1") | {"restartPolicy": "Never"}]},
            {"cpu": 1000},
            id="another restart policy",
        ),
        pytest.param(
            {"containers": [container(cpu="1", memory="9")], "resources": {"requests": {"cpu": "5"}}},
            {"cpu": 5000, "memory": 9},
            id="pod-level requests",
        ),
        pytest.param(
            {"containers": [container(cpu="9")], "resources": {"requests": {"cpu": "5"}}},
            {"cpu": 5000},
            id="pod-level requests below the containers'",
        ),
        pytest.param(
            {
                "containers": [],
                "resources": {"requests": {"cpu": "5", "ephemeral-storage": "1", "a.b/c": "1", "hugepages-2Mi": "2Mi"}},
            },
            {"cpu": 5000, "hugepages-2Mi": 2**21},
            id="only cpu, memory and huge pages are asked for by a pod as such",
        ),
        pytest.param(
            {"containers": [container()], "resources": {"limits": {"cpu": "5"}}},
            {"cpu": 5000},
            id="a pod-level limit alone",
        ),
        pytest.param(
            {"containers": [container(cpu="1")], "resources": {"limits": {"cpu": "5"}}},
            {"cpu": 1000},
            id="a pod-level limit above its containers' requests",
        ),
        pytest.param(
            {"containers": [container(cpu="1")], "resources": {"requests": {"cpu": "5"}}, "overhead": {"cpu": "1"}},
            {"cpu": 6000},
            id="overhead over pod-level requests",
        ),
        pytest.param(
            {"containers": [container(**{"hugepages-2Mi": "2Mi"})], "resources": {"limits": {"hugepages-2Mi": "4Mi"}}},
            {"hugepages-2Mi": 2**22},
            id="a pod-level limit of huge pages is a request whatever its containers ask for",
        ),
    ],
)
def test_a_pod_asks_for_what_the_scheduler_reserves(spec: Object, requests: dict[str, int]) -> None:
    assert effective_requests(pod(**spec)) == {"pods": 1} | requests


@pytest.mark.parametrize(
    ("status", "cpu"),
    [
        pytest.param({}, 2000, id="no status"),
        pytest.param({"resources": {"requests": {"cpu": "3"}}}, 3000, id="still larger than asked for"),
        pytest.param({"resources": {"requests": {"cpu": "1"}}}, 2000, id="still smaller than asked for"),
        pytest.param(
            {"resources": {"requests": {"cpu": "1"}}, "allocatedResources": {"cpu": "4"}}, 4000, id="allocated"
        ),
        pytest.param({"resources": None, "allocatedResources": None}, 2000, id="nulls"),
    ],
)
@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_until_a_resize_is_done_the_larger_amount_counts(status: Object, cpu: int, kind: str) -> None:
    resized = pod(
        "one", node="node-a", **{"containers": [], kind: [container("main", sidecar=kind != "containers", cpu="2")]}
    )
    statuses = "containerStatuses" if kind == "containers" else "initContainerStatuses"
    resized["status"][statuses] = [
        status | {"name": "main"},
        {"name": "other", "resources": {"requests": {"cpu": "9"}}},
    ]
    assert effective_requests(resized)["cpu"] == cpu


def test_until_a_resize_of_the_pod_itself_is_done_the_larger_amount_counts() -> None:
    resized = pod("one", node="node-a", containers=[], resources={"requests": {"cpu": "1"}})
    resized["status"] |= {"resources": {"requests": {"cpu": "3"}}, "allocatedResources": {"cpu": "2"}}
    assert effective_requests(resized)["cpu"] == 3000
