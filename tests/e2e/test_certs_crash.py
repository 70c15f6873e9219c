"""kill -9 before and after each write of each step: another replica then reaches a served and trusted certificate."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from certs import secret as bundles
from certs.authority import Issued, issue_ca, issue_leaf, signed_by, split
from certs.by_hand import plan
from certs.rotation import Policy, Step, next_step
from certs.secret import Bundle, RetiringCA
from tests.support.certificate_processes import ControllerProcesses
from tests.support.controlplane.plane import ControlPlane
from tests.support.installation import Installation, Replica, create_kubeconfig
from tests.support.paths import EXAMPLES
from tests.support.webhook_process import NAMESPACE

pytestmark = pytest.mark.controlplane

NAME = "crashing"
DAY, MINUTE, SECOND = timedelta(days=1), timedelta(minutes=1), timedelta(seconds=1)
NAMES = (f"{NAME}.{NAMESPACE}.svc",)
CALLS = 3  # of the webhook in each case, each through an unused port and thus over a new connection
PASSES = 6  # a whole rotation takes 4, if no step has to wait


@dataclass(frozen=True, slots=True)
class InitialState:
    """The content of the Secret and the `caBundle` when a step is due. `published` is None for the bundle's own CAs.

    With `by_hand`, `certs rotate-ca --drop-old` takes the step.
    """

    bundle: Bundle
    published: bytes | None = None
    by_hand: bool = False


def make_bundle(now: datetime, leaf_age: timedelta = DAY, ca_age: timedelta = 30 * DAY, **fields: Any) -> Bundle:
    authority = issue_ca(now - ca_age, NAMES)
    return Bundle(authority, issue_leaf(authority, NAMES, now - leaf_age), **fields)


def other_ca(now: datetime) -> Issued:
    return issue_ca(now - DAY, NAMES)


def before_renew(now: datetime) -> InitialState:
    return InitialState(make_bundle(now, leaf_age=25 * DAY))


def before_introduce(now: datetime) -> InitialState:
    return InitialState(make_bundle(now, ca_age=300 * DAY))


def before_published(now: datetime) -> InitialState:
    return InitialState(make_bundle(now, next_ca=other_ca(now)))


def before_withdrawn(now: datetime) -> InitialState:
    bundle = make_bundle(now, next_ca=other_ca(now), published=now - MINUTE)
    return InitialState(bundle, published=bundle.authority.certificate)


def before_sign(now: datetime) -> InitialState:
    return InitialState(make_bundle(now, next_ca=other_ca(now), published=now - 10 * MINUTE))


def before_drop(now: datetime) -> InitialState:
    return InitialState(make_bundle(now, retiring=(RetiringCA(other_ca(now).certificate, now - SECOND),)))


def before_drop_early(now: datetime) -> InitialState:
    return InitialState(make_bundle(now), by_hand=True)


def before_replace(now: datetime) -> InitialState:
    return InitialState(make_bundle(now, next_ca=other_ca(now)), by_hand=True)


# The initial state and the number of writes: the Secret, and the configuration too if the step changes the trusted CAs.
STEPS: dict[str, tuple[Callable[[datetime], InitialState | None], int]] = {
    "start": (lambda _: None, 2),  # the Secret is empty
    "renew": (before_renew, 1),
    "introduce": (before_introduce, 2),
    "published": (before_published, 1),
    "withdrawn": (before_withdrawn, 2),
    "sign": (before_sign, 1),
    "drop": (before_drop, 2),
    "drop-early": (before_drop_early, 3),  # three writes: `rotate-ca` introduces a CA first
    "replace": (before_replace, 2),
}
KILLS = [(step, write + 1, done) for step, (_, writes) in STEPS.items() for write in range(writes) for done in (0, 1)]
UNUSED_PORTS = itertools.count()


@dataclass(frozen=True, slots=True)
class Stage:
    """An installation, the replica that survives all cases and serves `folder`, and the controllers that are killed."""

    installation: Installation
    controllers: ControllerProcesses
    kubeconfig: Path
    folder: Path

    def set_up(self, initial: InitialState | None) -> None:
        """Write the Secret and the configuration, and make the surviving replica serve the leaf."""
        plane, path = self.installation.plane, self.installation.secret_path
        metadata = {"name": f"{NAME}-tls", "namespace": NAMESPACE}
        empty = {"metadata": metadata, "type": "Opaque"}
        plane.request("PUT", path, bundles.written(initial.bundle, empty) if initial else empty)
        published = (initial.published or initial.bundle.ca_bundle()) if initial else b""
        self.installation.publish(*[published] * self.installation.port_count)
        if initial:
            write(self.folder, initial.bundle.leaf)
            self.wait_for_call()

    def run_controller(self, folder: Path, **options: Any) -> int:
        """Run a controller for some passes, or until it is killed, and return its exit status."""
        task = {"kubeconfig": str(self.kubeconfig), "name": NAME, "names": NAMES, "folder": str(folder)}
        (result,) = self.controllers.run(task | {"passes": PASSES} | options)
        assert not result.get("problem")
        return int(result["status"])

    def wait_for_call(self) -> None:
        """Wait until the API server has called the webhook over a new connection."""
        port = next(UNUSED_PORTS)
        self.installation.plane.wait(lambda: not self.installation.create_pod(port), 20, "a call over a new connection")


def write(folder: Path, leaf: Issued) -> None:
    (folder / "tls.crt").write_bytes(leaf.certificate)
    (folder / "tls.key").write_bytes(leaf.key)


@pytest.fixture(scope="module")
def stage(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("served")
    now = datetime.now(UTC)
    write(folder, make_bundle(now).leaf)
    (folder / "ca.crt").write_bytes(other_ca(now).certificate)
    installation = Installation(plane, NAME, CALLS * len(KILLS)).create_certificate_objects().create_service()
    snapshot = EXAMPLES / "cluster.yaml"
    replica = Replica(plane, f"{NAME}-0", Path("none"), f"--snapshot={snapshot}", f"--tls-dir={folder}")
    try:
        with replica, ControllerProcesses(plane.folder / "controllers.log") as controllers:
            installation.route(replica.address)
            yield Stage(installation, controllers, create_kubeconfig(plane, NAME, NAME), folder)
    finally:
        installation.delete_certificate_objects()
        installation.delete_service()


def test_the_table_has_every_step_that_writes() -> None:
    assert set(STEPS) == set(Step) - {Step.NOTHING, Step.PUBLISH}


@pytest.mark.parametrize(
    ("step", "write_number", "done"),
    KILLS,
    ids=[f"{step}, {'after' if done else 'before'} write {number}" for step, number, done in KILLS],
)
def test_another_replica_completes_the_step_of_a_killed_one(
    stage: Stage, tmp_path: Path, step: str, write_number: int, done: int
) -> None:
    now = datetime.now(UTC)
    initial = STEPS[step][0](now)
    if initial and initial.by_hand:
        assert step in {one.step for one in plan(initial.bundle, now, Policy(spread=timedelta(0)), drop_old=True)}
    elif initial:
        published = [initial.published or initial.bundle.ca_bundle()]
        assert next_step(initial.bundle, published, now, Policy(NAMES)).step == step
    stage.set_up(initial)
    by_hand = bool(initial and initial.by_hand)
    assert stage.run_controller(tmp_path, die=(write_number, bool(done)), by_hand=by_hand) == -signal.SIGKILL
    if initial:
        stage.wait_for_call()  # the surviving replica still serves the initial leaf
    assert stage.run_controller(stage.folder) == 0
    stage.wait_for_call()
    found = bundles.read(stage.installation.plane.request("GET", stage.installation.secret_path))
    assert isinstance(found, Bundle)
    assert_converged(stage, found, now)


def assert_converged(stage: Stage, found: Bundle, now: datetime) -> None:
    """Check that no step is due, that the stored leaf is served, and that exactly the stored CAs are trusted."""
    assert (stage.folder / "tls.crt").read_bytes() == found.leaf.certificate
    assert stage.installation.ca_bundles() == {found.ca_bundle()}
    assert signed_by(found.leaf.certificate, found.authority.certificate)
    assert next_step(found, [found.ca_bundle()], now, Policy(NAMES)).due > now
    assert not found.next_ca
    assert len(split(found.ca_bundle())) == len(found.retiring) + 1
