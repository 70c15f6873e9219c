"""The webhook's own ServiceAccount: what it documents is enough, and each right that is missing is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.controlplane.api import ApiError, Object
from tests.support.controlplane.plane import ControlPlane
from tests.support.fault_proxy import Cable
from tests.support.longhorn import Longhorn
from tests.support.scenario import World
from tests.support.webhook_process import NAMESPACE, RBAC, RIGHTS, Right, Webhook, grant, rules

pytestmark = pytest.mark.controlplane

KINDS = [kind for _, kind, verbs in RIGHTS if "list" in verbs]


def without(*missing: tuple[str, str]) -> tuple[Right, ...]:
    """The documented rights but for some of (verb, resource)."""
    return tuple(
        (group, kind, tuple(verb for verb in verbs if (verb, kind) not in missing)) for group, kind, verbs in RIGHTS
    )


def deprived_of(plane: ControlPlane, name: str, *missing: tuple[str, str]) -> Webhook:
    token = grant(plane, name, without(*missing))
    return Webhook(plane, name, plane.write_kubeconfig(plane.folder / f"{name}-kubeconfig", token), {})


def refusal(webhook: Webhook, verb: str, kind: str) -> str:
    """How the API server says that the webhook's account lacks a right."""
    return f'User "system:serviceaccount:{NAMESPACE}:{webhook.name}" cannot {verb} resource "{kind}"'


def events_about(world: World, vm: str) -> list[Object]:
    path = f"/api/v1/namespaces/{world.namespace}/events?fieldSelector=involvedObject.name={vm}"
    found: list[Object] = world.plane.request("GET", path)["items"]
    return found


def twin(world: World) -> Object:
    """The pod of a VM that is always the same, and on which the decision is: it never gets a node."""
    pod = world.vm_pod("vm1", "no-such-claim")
    pod["metadata"]["labels"]["kubevirt.io/created-by"] = "8a409563-c3a8-4ea4-b258-c559ed8a11d5"
    return pod


def ghost(world: World) -> None:
    """A claim that names a PV which does not exist."""
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    spec |= {"volumeName": f"ghost-{world.namespace}", "storageClassName": ""}
    world.plane.request("POST", world.claims, {"metadata": {"name": "ghost"}, "spec": spec})


def use_every_right(world: World, webhook: Webhook) -> None:
    """Have claims, PVs and ShareManagers read live, and events created and patched."""
    world.add_nodes(2)
    world.add_volume()
    world.wait_bound("disk1")
    ghost(world)
    for claim in "no-such-claim", "ghost", "disk1":
        world.decision(claim)
    world.create(twin(world))

    def is_tried() -> bool:  # before that, both would be told in one
        return bool(events_about(world, "vm1")) or webhook.says('cannot create resource "events"')

    world.plane.wait(is_tried, 20, "an event about the VMI")
    world.create(twin(world))


def test_what_is_documented_is_enough(world: World, webhook: Webhook, plane: ControlPlane) -> None:
    # Not from the start: an API server that is only just up knows of no rights at all, and says so.
    before = len(webhook.log())
    use_every_right(world, webhook)

    def told_twice() -> bool:
        return [event["count"] for event in events_about(world, "vm1")] == [2]

    plane.wait(told_twice, 20, "one event about the VMI, seen twice")
    (event,) = events_about(world, "vm1")
    assert event["involvedObject"]["kind"] == "VirtualMachineInstance"
    assert event["reason"] == "NoShareManager"
    assert not webhook.says("cannot ", since=before)
    assert problems(webhook) == {}


@pytest.mark.parametrize(
    "missing",
    [
        [("get", "persistentvolumeclaims"), ("get", "persistentvolumes"), ("get", "sharemanagers")],
        [("create", "events")],
        [("patch", "events")],
    ],
    ids=["get", "create", "patch"],
)
def test_what_may_not_be_read_or_written_is_named_and_no_vm_is_refused_for_it(
    plane: ControlPlane, longhorn: Longhorn, missing: list[tuple[str, str]]
) -> None:
    with deprived_of(plane, f"may-not-{missing[0][0]}", *missing) as webhook:
        world = World(plane, longhorn, webhook.register(share_managers=False))
        use_every_right(world, webhook)
        for verb, kind in missing:
            said = refusal(webhook, verb, kind)
            plane.wait(lambda said=said: webhook.says(said), 20, f"a line in the log that says: {said}")
        world.close()


@pytest.fixture(scope="module")
def blind(plane: ControlPlane) -> Iterator[dict[str, Webhook]]:
    """For each resource a webhook that may not list it, and may not watch the next one; none of them is registered."""
    webhooks = {
        kind: deprived_of(plane, f"blind-to-{kind}", ("list", kind), ("watch", following))
        for kind, following in zip(KINDS, KINDS[1:] + KINDS[:1], strict=True)
    }
    with ExitStack() as stack:
        for webhook in webhooks.values():
            stack.callback(webhook.stop)
            webhook.process.start()  # none of them ever becomes ready
        yield webhooks
        for webhook in webhooks.values():
            webhook.ask_to_end()


def is_told(webhook: Webhook, verb: str, kind: str) -> bool:
    """Whether the log, /readyz and the metrics tell that a right is missing."""
    said = refusal(webhook, verb, kind)
    metric = f'kubevirt_scheduler_cache_forbidden{{resource="{kind}"}} 1.0'
    told = webhook.says(said) and said in problems(webhook).get(kind, "")
    return told and metric in webhook.page("/metrics")[1]


def problems(webhook: Webhook) -> dict[str, str]:
    found: dict[str, str] = json.loads(webhook.page("/readyz")[1])["problems"]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_what_may_not_be_listed_is_named_and_keeps_it_from_being_ready(
    plane: ControlPlane, blind: dict[str, Webhook], kind: str
) -> None:
    plane.wait(lambda: is_told(blind[kind], "list", kind), 20, f"word of the missing right to list {kind}")
    assert blind[kind].page("/readyz")[0] == 503


@pytest.mark.parametrize("kind", KINDS)
def test_what_may_not_be_watched_is_named(plane: ControlPlane, blind: dict[str, Webhook], kind: str) -> None:
    webhook = blind[KINDS[KINDS.index(kind) - 1]]
    plane.wait(lambda: is_told(webhook, "watch", kind), 20, f"word of the missing right to watch {kind}")


def test_rights_that_are_taken_away_later_are_named_and_all_is_well_when_they_are_back(plane: ControlPlane) -> None:
    cable, name, token = Cable(plane), "robbed", grant(plane, "robbed")
    role = f"{RBAC}/clusterroles/{name}"

    def may_list() -> bool:
        try:
            return bool(plane.request("GET", "/api/v1/nodes?limit=1", token=token))
        except ApiError:
            return False

    with Webhook(plane, name, cable.write_kubeconfig(plane, plane.folder / f"{name}-kubeconfig", token), {}) as webhook:
        plane.request("PATCH", role, {"rules": []})
        plane.wait(lambda: not may_list(), 20, "the loss of the rights")
        cable.sever()  # a watch that runs is not asked again for its rights
        for kind in KINDS:
            plane.wait(lambda kind=kind: is_told(webhook, "list", kind), 20, f"word of the loss of {kind}")
        assert webhook.page("/readyz")[0] == 200  # it answers from what it knows
        plane.request("PATCH", role, {"rules": rules(RIGHTS)})
        plane.wait(lambda: problems(webhook) == {}, 20, "no problems any more")
    cable.stop()
