"""Which VMs loopback NFS exposes, and which can leave NFS (docs/explanation/costs.md, guides/leave-nfs.md)."""

import pytest
from msgspec.structs import replace

from tests.support.builders import Object, claim, hotplug_pod, node, pod, storage, volume
from tests.support.fleet import inventory, vm, vm_pod
from tests.support.migrations import migratable
from webhook.fleet.nfs import OverNfs, Servers, over_nfs, summarize_nfs
from webhook.fleet.states import assess
from webhook.placement.settings import Settings

VOLUMES = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in ("root", "data", "block")]
NODES = [node("node-a"), node("node-b")]
DISKS = [*storage("root"), *storage("data"), claim("block", volumeMode="Block"), volume("block")]
OLD, NEW = Servers("v1.7.2", {"node-a": (6, 1, 0)}), Servers("v1.7.3", {"node-a": (6, 1, 0)})
OLD_KERNEL = Servers("v1.9.0", {"node-a": (5, 4), "node-b": (6, 1)})


def spec(*disks: Object, **devices: object) -> Object:
    return {"volumes": VOLUMES, "domain": {"devices": {"disks": list(disks)} | devices}}


def running(*disks: Object, conditions: list[Object] | None = None, **devices: object) -> list[Object]:
    vmi = migratable(conditions=conditions) if conditions is not None else migratable()
    vmi["spec"] = spec(*disks, **devices)
    return [*NODES, *DISKS, vm(), vmi, vm_pod(node="node-b", claims=["root", "data", "block"])]


def found(servers: Servers, *cluster: Object) -> OverNfs:
    known = inventory(*cluster)
    (machine,) = (each for each in known.machines(Settings()) if each.name == "vm1")
    return over_nfs(assess(machine, known.store, Settings()), known.store, servers)


ROOT, DATA, BLOCK = ({"name": name} for name in ("root", "data", "block"))
CACHED = {"cache": "writeback"}


def runs(version: str, servers: Servers = NEW) -> Servers:
    return replace(servers, running={"vol-root": version})


# A cluster, its servers, the claims that the VM writes through the page cache, and whether it is exposed.
EXPOSED: dict[str, tuple[list[Object], Servers, list[str], bool]] = {
    "no cache": (running(ROOT, DATA | {"cache": "none"}), OLD, [], False),
    "a cached disk": (running(ROOT | CACHED), OLD, ["root"], True),
    "an old kernel": (running(ROOT | {"cache": "writethrough"}), OLD_KERNEL, ["root"], True),
    "a protected server": (running(ROOT | CACHED), NEW, ["root"], False),
    "unknown versions": (running(ROOT | CACHED), Servers(), ["root"], False),
    "a share-manager that is older than Longhorn": (running(ROOT | CACHED), runs("v1.7.2"), ["root"], True),
    "an old share-manager of another volume": (running(ROOT, DATA | CACHED), runs("v1.7.2"), ["data"], False),
    "a share-manager of an unknown version": (running(ROOT | CACHED), runs("latest", OLD), ["root"], True),
    "a Block volume": (running(BLOCK | CACHED), OLD, [], False),
    "virtiofs": (running(ROOT, filesystems=[{"name": "data"}]), OLD, ["data"], True),
    "a stopped VM": ([*NODES, *DISKS, vm(**spec(ROOT | CACHED))], OLD, ["root"], True),
}


@pytest.mark.parametrize("case", EXPOSED)
def test_loopback_nfs_exposes_vms_that_write_through_the_page_cache(case: str) -> None:
    cluster, servers, cached, exposed = EXPOSED[case]
    result = found(servers, *cluster)
    assert ([*result.cached], result.exposed) == (cached, exposed)


def overlaid(cluster: list[Object]) -> list[Object]:
    root = {"name": "root", "ephemeral": {"persistentVolumeClaim": {"claimName": "root"}}}
    cluster[-2]["spec"]["volumes"] = [root, *VOLUMES[1:]]
    return cluster


EMPTY = vm_pod(node="node-b", claims=[])
LEAVING: dict[str, tuple[list[Object], tuple[str, ...]]] = {
    "disks": (running(ROOT, DATA, BLOCK), ("root", "data")),
    "virtiofs": (running(ROOT, filesystems=[DATA]), ("root",)),
    "shareable, and a LUN": (running(ROOT | {"shareable": True}, DATA | {"lun": {}}), ()),
    "not migratable": (running(ROOT, conditions=[{"type": "LiveMigratable", "status": "False"}]), ()),
    "a backup": ([*running(ROOT, DATA), pod("backup", claims=["data"], node="node-a")], ("root",)),
    "not attached": ([*running(ROOT)[:-1], vm_pod(node="node-b", claims=["data"])], ()),
    "an overlay of an image": (overlaid(running(ROOT, DATA)), ("data",)),
    "hotplugged": ([*running(ROOT)[:-1], EMPTY, hotplug_pod(EMPTY, claims=["root"])], ("root",)),
    "a stopped VM": ([*NODES, *DISKS, vm(**spec(ROOT))], ()),
}


@pytest.mark.parametrize("case", LEAVING)
def test_disks_that_only_a_running_vm_uses_can_leave_nfs(case: str) -> None:
    cluster, claims = LEAVING[case]
    assert found(NEW, *cluster).can_leave == claims


def test_the_words_count_vms() -> None:
    exposed, cached = OverNfs(("root",), True, ("root",)), OverNfs(("root",), False)
    assert [each.as_json()["text"] for each in (exposed, cached, OverNfs())] == ["exposed, can leave", "cached", ""]
    words = "loopback NFS exposes 2; 2 can leave NFS"
    assert summarize_nfs([exposed, exposed, cached]) == {"exposed": 2, "canLeave": 2, "text": words}
    assert summarize_nfs([cached]) == {"exposed": 0, "canLeave": 0, "text": ""}
