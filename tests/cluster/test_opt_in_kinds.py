"""Namespaces and StorageClasses can opt in VMs: how the webhook reads them, and what it does without them."""

from typing import Any

import pytest

from tests.cluster.live_caches import follow, reflector, sync_caches
from tests.support.builders import (
    Object,
    labeled_namespace,
    node,
    review,
    settings,
    storage,
    storage_class,
    virt_launcher,
)
from tests.support.fake_api_server import ApiServer, error_response, forbidden, status
from tests.support.fake_clock import FakeClock
from webhook.cluster.backend import LiveBackend
from webhook.cluster.client import ClusterClient
from webhook.cluster.credentials import Api, ClusterError
from webhook.cluster.live_catalog import Live
from webhook.placement.reasons import OptedInBy, Reason
from webhook.placement.settings import OptIn

SOURCES = "namespaces", "storageclasses"
BY_NAMESPACE: Object = {"opt_in": OptIn.NAMESPACE}


@pytest.fixture
def server(server: ApiServer) -> ApiServer:
    server.put(*storage(), node())
    return server


def client(server: ApiServer) -> ClusterClient:
    return ClusterClient(Api(server.url))


def make_live(server: ApiServer, **options: Any) -> Live:
    return Live(client(server), settings(**options), FakeClock())


def opted_in_by(live: Live) -> OptedInBy:
    injection = live.inject(review(virt_launcher(opt_in=None)))
    assert injection
    return injection.decision.opted_in_by


def test_of_namespaces_the_api_server_is_asked_for_the_metadata_only(server: ApiServer) -> None:
    server.put(labeled_namespace(), storage_class())
    sync_caches(make_live(server), server)
    for verb, kind in ("list", "PartialObjectMetadataList"), ("watch", "PartialObjectMetadata"):
        accept = server.last(verb, "namespaces").headers["accept"]
        assert accept == f"application/json;as={kind};g=meta.k8s.io;v=v1"
    for plural in ("pods", "storageclasses"):
        assert server.last("list", plural).headers["accept"] == "application/json"


def test_the_decisions_wait_until_both_kinds_are_listed(server: ApiServer) -> None:
    backend = LiveBackend(client(server), settings(**BY_NAMESPACE))
    live = backend.live
    for each in live.reflectors:
        if each.kind.plural != "namespaces":
            follow(live, server, each.kind.plural)
    assert not live.synced()
    assert [cache.resource for cache in backend.caches() if cache.required and not cache.synced] == ["namespaces"]
    server.script("list", "namespaces", error_response(status(500, "etcd is slow")))
    with pytest.raises(ClusterError) as raised:
        follow(live, server, "namespaces")
    reflector(live, "namespaces")._record_failure(raised.value)
    assert not live.synced()
    follow(live, server, "namespaces")
    assert live.synced()


def test_a_missing_right_is_reported_and_does_not_stop_the_decisions(server: ApiServer) -> None:
    may_be_missing = (*SOURCES, "csinodes")
    server.forbidden = {("list", plural) for plural in may_be_missing}
    backend = LiveBackend(client(server), settings(**BY_NAMESPACE))
    live = backend.live
    for each in live.reflectors:
        try:
            follow(live, server, each.kind.plural)
        except ClusterError as error:
            each._record_failure(error)
    assert live.synced()
    assert opted_in_by(live) is OptedInBy.NOTHING
    annotated = live.inject(review(virt_launcher()))
    assert annotated
    assert annotated.decision.reason is Reason.CO_SCHEDULED
    assert [cache.resource for cache in backend.caches() if cache.required and not cache.synced] == []
    problems = {cache.resource: cache.problem for cache in backend.caches() if cache.problem}
    assert problems == {plural: forbidden("list", plural)["message"] for plural in may_be_missing}
