"""Tests of the live backend: which threads and caches run, and what the plain port reports of them."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from tests.serving.review_client import ReviewClient, probe_port
from tests.support.builders import node, pinned_vm_pod, settings, storage, virtual_machine
from tests.support.fake_api_server import ApiServer
from tests.support.fleet import vm, vm_pod
from tests.support.log_capture import capture_logs
from tests.support.server_process import until
from tests.support.threads import own_threads
from webhook.cluster.backend import LiveBackend
from webhook.cluster.client import ClusterClient
from webhook.cluster.credentials import Api
from webhook.fleet.release import RELEASE_REASONS
from webhook.placement.settings import Action
from webhook.serving.app import Health
from webhook.serving.telemetry.collectors import cluster_metrics, fleet_metrics
from webhook.serving.telemetry.metrics import Metrics

MakeBackend = Callable[..., LiveBackend]

LEASE = ("kubevirt-scheduler", "webhook")


@pytest.fixture
def server(server: ApiServer) -> ApiServer:
    server.put({"kind": "Lease", "metadata": {"namespace": LEASE[0], "name": LEASE[1]}})
    return server


@pytest.fixture
def make_backend(server: ApiServer) -> Iterator[MakeBackend]:
    """Create backends of the server, and stop them at the end.

    A failed test must not leave threads behind: their use of `random` fails the properties of later tests.
    """
    created = list[LiveBackend]()

    def make(lease: tuple[str, str] | None = LEASE, **overrides: Any) -> LiveBackend:
        cluster = ClusterClient(Api(server.url))
        created.append(LiveBackend(cluster, settings(**overrides), lease))
        return created[-1]

    yield make
    for backend in created:
        backend.stop()


def all_synced(backend: LiveBackend) -> bool:
    """Return whether all caches are synced, also that of the VMs, without which decisions are made."""
    return all(cache.synced for cache in backend.caches())


def samples(backend: LiveBackend) -> dict[str, float]:
    metrics = Metrics()
    metrics.add(partial(cluster_metrics, backend))
    metrics.add(partial(fleet_metrics, backend.fleet.counts))
    lines = metrics.exposition().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}


def test_a_replica_with_a_lease_leads_and_gives_the_lease_up_at_its_end(
    server: ApiServer, make_backend: MakeBackend
) -> None:
    server.put(*storage(), node())
    before, backend = own_threads(), make_backend()
    backend.start()
    until(backend.leads)
    until(backend.live.synced)
    assert {"election", "releaser", "reflector-virtualmachines"} <= {thread.name for thread in own_threads() - before}
    assert samples(backend)["kubevirt_scheduler_release_leader"] == 1
    backend.stop()
    until(lambda: server.end_watches() or own_threads() <= before)


def test_without_a_lease_no_pins_are_released_or_reported_and_the_log_says_so(
    server: ApiServer, make_backend: MakeBackend
) -> None:
    before, backend = own_threads(), make_backend(lease=None)
    with capture_logs() as lines:
        backend.start()
        names = {thread.name for thread in own_threads() - before}
        backend.stop()
    events = [line["event"] for line in lines if "lease" in line["event"]]
    assert events == ["no lease given, so stuck pins are neither released nor reported"]
    assert not names & {"election", "releaser"}
    assert not backend.leads()
    until(backend.live.synced)
    until(lambda: server.end_watches() or own_threads() <= before)


def test_the_fleet_is_exported_once_the_caches_are_synced(server: ApiServer, make_backend: MakeBackend) -> None:
    server.put(*storage(), node("node-b"), vm("vm1"), vm_pod("vm1", "node-b", opt_in=None), vm("off", opt_in=False))
    backend = make_backend(lease=None)
    assert not [name for name in samples(backend) if "_vms{" in name]
    backend.start()
    until(backend.live.synced)
    until(lambda: backend.live.query(lambda store: len(store.virtual_machines)) == 2)
    found = samples(backend)
    assert found['kubevirt_scheduler_vms{opted_in="true",state="Apart"}'] == 1
    assert found['kubevirt_scheduler_vms{opted_in="false",state="Stopped"}'] == 1
    assert sum(value for name, value in found.items() if "_scheduler_vms{" in name) == 2
    assert {name: value for name, value in found.items() if "_node_vms{" in name} == {
        'kubevirt_scheduler_node_vms{node="node-b",state="Apart"}': 1,
        'kubevirt_scheduler_node_vms{node="node-b",state="NotConcerned"}': 0,
        'kubevirt_scheduler_node_vms{node="node-b",state="Together"}': 0,
        'kubevirt_scheduler_node_vms{node="node-b",state="Unserved"}': 0,
    }
    backend.stop()


OPTIONAL = ["virtualmachines", "namespaces", "csinodes", "storageclasses", "volumes", "replicas"]


@pytest.mark.parametrize("plural", OPTIONAL)
def test_a_replica_is_ready_without_the_right_to_read_a_kind_that_no_decision_requires(
    make_backend: MakeBackend, plural: str
) -> None:
    backend = make_backend()
    forbidden = next(each for each in backend.live.reflectors if each.kind.plural == plural)
    for each in backend.live.reflectors:
        each.health.last_contact = None if each is forbidden else 0.0
    forbidden.health.problem, forbidden.health.code = f"{plural} is forbidden", 403
    probes = ReviewClient(probe_port(Health(Metrics(), backend.caches)))
    response = probes.get("/readyz")
    assert response.status_code == 200
    assert response.json["problems"] == {plural: f"{plural} is forbidden"}
    assert samples(backend)[f'kubevirt_scheduler_cache_forbidden{{resource="{plural}"}}'] == 1


@pytest.mark.parametrize("lease", [LEASE, None], ids=["with a lease", "without a lease"])
def test_each_reason_of_a_release_starts_at_0(make_backend: MakeBackend, lease: tuple[str, str] | None) -> None:
    found = samples(make_backend(lease))
    for reason in RELEASE_REASONS:
        assert found[f'kubevirt_scheduler_pending_pins{{reason="{reason}"}}'] == 0
        assert found[f'kubevirt_scheduler_released_total{{reason="{reason}"}}'] == 0
    assert found["kubevirt_scheduler_release_leader"] == 0


@pytest.mark.parametrize("overrides", [{"release": False}, {"action": Action.OBSERVE}], ids=["release off", "observe"])
def test_without_the_release_the_leader_reports_a_stuck_pod_and_never_deletes_it(
    server: ApiServer, make_backend: MakeBackend, overrides: Any
) -> None:
    server.put(*storage(), node(unschedulable=True), pinned_vm_pod(), virtual_machine())
    backend = make_backend(release_after=0, **overrides)
    backend.start()
    until(lambda: backend.leads() and all_synced(backend))
    for _ in range(2):
        backend.releaser.step()
    found = samples(backend)
    assert found['kubevirt_scheduler_pending_pins{reason="NodeCordoned"}'] == 1
    assert found["kubevirt_scheduler_release_leader"] == 1
    if "action" not in overrides:  # in observe mode, the webhook writes no Events
        until(lambda: server.count("post", "events"))
        assert "the release of pins is disabled" in server.last("post", "events").body["message"]
    backend.stop()
    assert server.count("post", "events") == ("action" not in overrides)
    assert server.count("delete", "pods") == 0
    assert not backend.releaser.released
