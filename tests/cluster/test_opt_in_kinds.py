"""Namespaces and StorageClasses can opt in VMs: how the webhook, the report and a snapshot read them."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.live_caches import follow, reflector, sync_caches
from tests.support.builders import (
    Object,
    claim,
    labeled_namespace,
    node,
    request,
    settings,
    storage,
    storage_class,
    virt_launcher,
)
from tests.support.fake_api_server import ApiServer, error_response, event, forbidden, status
from tests.support.fake_clock import FakeClock
from webhook.catalog.kinds import NAMESPACES, STORAGE_CLASSES
from webhook.cluster.backend import LiveBackend
from webhook.cluster.client import Api, ClusterClient, ClusterError
from webhook.cluster.live_catalog import Live
from webhook.placement.objects.facts import StorageClass
from webhook.placement.reasons import OptedInBy, Reason
from webhook.placement.settings import OptIn
from webhook.reading.export import reduced
from webhook.reading.kubernetes_yaml import to_yaml
from webhook.reading.live import read_inventory
from webhook.reading.snapshot import read

SOURCES = "namespaces", "storageclasses"
BY_NAMESPACE: Object = {"opt_in": OptIn.NAMESPACE}
OF_CLASS = claim(storageClassName="longhorn-rwx")


@pytest.fixture
def server(server: ApiServer) -> ApiServer:
    server.put(*storage(), node())
    return server


def client(server: ApiServer) -> ClusterClient:
    return ClusterClient(Api(server.url))


def make_live(server: ApiServer, **options: Any) -> Live:
    return Live(client(server), settings(**options), FakeClock())


def opted_in_by(live: Live) -> OptedInBy:
    injection = live.inject(request(virt_launcher(opt_in=None)))
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


def test_a_label_takes_effect_with_its_watch_event(server: ApiServer) -> None:
    live = make_live(server, **BY_NAMESPACE)
    sync_caches(live, server)
    assert opted_in_by(live) is OptedInBy.NOTHING
    follow(live, server, "namespaces", event("ADDED", labeled_namespace()))
    assert opted_in_by(live) is OptedInBy.NAMESPACE
    server.put(OF_CLASS)
    follow(live, server, "persistentvolumeclaims")
    follow(live, server, "namespaces", event("MODIFIED", labeled_namespace(opt_in=None)))
    follow(live, server, "storageclasses", event("ADDED", storage_class()))
    assert opted_in_by(live) is OptedInBy.STORAGE_CLASS


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
    annotated = live.inject(request(virt_launcher()))
    assert annotated
    assert annotated.decision.reason is Reason.CO_SCHEDULED
    assert [cache.resource for cache in backend.caches() if cache.required and not cache.synced] == []
    problems = {cache.resource: cache.problem for cache in backend.caches() if cache.problem}
    assert problems == {plural: forbidden("list", plural)["message"] for plural in may_be_missing}


def test_the_report_reads_them(server: ApiServer) -> None:
    server.put(labeled_namespace(), storage_class())
    store = read_inventory(client(server), settings()).store
    assert [server.count("list", plural) for plural in SOURCES] == [1, 1]
    (namespace,) = store.all_namespaces()
    assert (namespace.opt_in, store.storage_class("longhorn-rwx")) == (True, StorageClass("longhorn-rwx", opts_in=True))


def test_a_snapshot_has_what_opts_in_vms(tmp_path: Path) -> None:
    planted = storage_class()
    planted["metadata"]["annotations"]["example.com/token"] = "secret"
    items = (NAMESPACES, labeled_namespace()), (STORAGE_CLASSES, planted)
    kept = [reduced(kind, json.dumps(item).encode(), ()) for kind, item in items]
    assert "secret" not in str(kept)
    file = tmp_path / "cluster.yaml"
    file.write_text("---\n".join(map(to_yaml, kept)))
    store = read([file])[0].store
    (namespace,) = store.all_namespaces()
    assert namespace.opt_in is True
    assert store.storage_class("longhorn-rwx") == StorageClass("longhorn-rwx", opts_in=True)
