"""kill -9 before and after every write of every step: what goes on from there ends in a served, trusted certificate."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from certs import bundle as bundles
from certs.authority import Issued, issue_ca, issue_leaf, signed_by, split
from certs.bundle import Bundle, RetiringCA
from certs.by_hand import plan
from certs.renewal import Policy, Step, next_step
from tests.support.certificate_processes import Keepers
from tests.support.controlplane.plane import ControlPlane
from tests.support.installation import Installation, Replica, account
from tests.support.paths import EXAMPLES
from tests.support.webhook_process import NAMESPACE

pytestmark = pytest.mark.controlplane

NAME = "crashing"
DAY, MINUTE, SECOND = timedelta(days=1), timedelta(minutes=1), timedelta(seconds=1)
NAMES = (f"{NAME}.{NAMESPACE}.svc",)
ROUNDS = 3  # the API server is asked three times in each case, by a door that nobody has come by
PASSES = 6  # from the first step of a rotation to its last in 4, where no time has to pass


@dataclass(frozen=True, slots=True)
class Due:
    """What a step begins with: what is in the Secret, and the `caBundle` unless it is the bundle's own."""

    bundle: Bundle
    published: bytes | None = None
    by_hand: bool = False


def settled(now: datetime, leaf: timedelta = DAY, ca: timedelta = 30 * DAY, **more: Any) -> Bundle:
    """A bundle whose certificate and CA are so old."""
    authority = issue_ca(now - ca, NAMES)
    return Bundle(authority, issue_leaf(authority, NAMES, now - leaf), **more)


def another(now: datetime) -> Issued:
    return issue_ca(now - DAY, NAMES)


def due_to_renew(now: datetime) -> Due:
    return Due(settled(now, leaf=25 * DAY))


def due_to_introduce(now: datetime) -> Due:
    return Due(settled(now, ca=300 * DAY))


def due_to_be_published(now: datetime) -> Due:
    return Due(settled(now, coming=another(now)))


def due_to_be_withdrawn(now: datetime) -> Due:
    bundle = settled(now, coming=another(now), published=now - MINUTE)
    return Due(bundle, published=bundle.authority.certificate)


def due_to_sign(now: datetime) -> Due:
    return Due(settled(now, coming=another(now), published=now - 10 * MINUTE))


def due_to_drop(now: datetime) -> Due:
    return Due(settled(now, retiring=(RetiringCA(another(now).certificate, now - SECOND),)))


def due_to_hurry(now: datetime) -> Due:
    return Due(settled(now), by_hand=True)


def due_to_be_replaced(now: datetime) -> Due:
    return Due(settled(now, coming=another(now)), by_hand=True)


# What is written in each step: the Secret, and the configuration where other CAs are trusted afterwards.
STEPS: dict[str, tuple[Callable[[datetime], Due | None], int]] = {
    "start": (lambda _: None, 2),
    "renew": (due_to_renew, 1),
    "introduce": (due_to_introduce, 2),
    "published": (due_to_be_published, 1),
    "withdrawn": (due_to_be_withdrawn, 2),
    "sign": (due_to_sign, 1),
    "drop": (due_to_drop, 2),
    "hurry": (due_to_hurry, 3),  # the third: a CA is introduced before
    "replace": (due_to_be_replaced, 2),
}
POINTS = [(step, write + 1, done) for step, (_, writes) in STEPS.items() for write in range(writes) for done in (0, 1)]
DOORS = itertools.count()


@dataclass(frozen=True, slots=True)
class Stage:
    """An installation, a replica that lives through all of it, and the one that dies."""

    installation: Installation
    keepers: Keepers
    kubeconfig: Path
    folder: Path

    def begin(self, due: Due | None) -> None:
        """Set the Secret and the configuration, and have the replica that lives serve it."""
        plane, secret = self.installation.plane, self.installation.secret
        metadata = {"name": f"{NAME}-tls", "namespace": NAMESPACE}
        empty = {"metadata": metadata, "type": "Opaque"}
        plane.request("PUT", secret, bundles.written(due.bundle, empty) if due else empty)
        published = (due.published or due.bundle.ca_bundle()) if due else b""
        self.installation.publish(*[published] * self.installation.doors)
        if due:
            write(self.folder, due.bundle.leaf)
            self.call()

    def ended(self, folder: Path, **more: Any) -> int:
        """Run a keeper until it has made its passes, or dies; return how it ended."""
        order = {"kubeconfig": str(self.kubeconfig), "name": NAME, "names": NAMES, "folder": str(folder)}
        (ended,) = self.keepers.run(order | {"passes": PASSES} | more)
        assert not ended.get("problem")
        return int(ended["status"])

    def call(self) -> None:
        """Wait until the API server has called over a new connection."""
        door = next(DOORS)
        self.installation.plane.wait(lambda: not self.installation.create(door), 20, "a pod, by a new connection")


def write(folder: Path, leaf: Issued) -> None:
    (folder / "tls.crt").write_bytes(leaf.certificate)
    (folder / "tls.key").write_bytes(leaf.key)


@pytest.fixture(scope="module")
def stage(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("served")
    now = datetime.now(UTC)
    write(folder, settled(now).leaf)
    (folder / "ca.crt").write_bytes(another(now).certificate)
    installation = Installation(plane, NAME, ROUNDS * len(POINTS)).make().open()
    snapshot = EXAMPLES / "cluster.yaml"
    replica = Replica(plane, f"{NAME}-0", Path("none"), f"--snapshot={snapshot}", f"--tls-dir={folder}")
    try:
        with replica, Keepers(plane.folder / "keepers.log") as keepers:
            installation.call(replica.address)
            yield Stage(installation, keepers, account(plane, NAME, NAME), folder)
    finally:
        installation.unmake()
        installation.close()


def test_the_table_has_each_step_that_writes() -> None:
    assert set(STEPS) == set(Step) - {Step.NOTHING, Step.PUBLISH}


@pytest.mark.parametrize(
    ("step", "number", "done"),
    POINTS,
    ids=[f"{step}, {'after' if done else 'before'} write {number}" for step, number, done in POINTS],
)
def test_a_replica_that_is_killed_leaves_what_another_goes_on_with(
    stage: Stage, tmp_path: Path, step: str, number: int, done: int
) -> None:
    now = datetime.now(UTC)
    due = STEPS[step][0](now)
    if due and due.by_hand:
        assert step in {one.step for one in plan(due.bundle, now, Policy(spread=timedelta(0)), drop_old=True)}
    elif due:
        published = [due.published or due.bundle.ca_bundle()]
        assert next_step(due.bundle, published, now, Policy(NAMES)).step == step
    stage.begin(due)
    by_hand = bool(due and due.by_hand)
    assert stage.ended(tmp_path, die=(number, bool(done)), by_hand=by_hand) == -signal.SIGKILL
    if due:
        stage.call()  # the replica that lives, with the certificate that it had
    assert stage.ended(stage.folder) == 0
    stage.call()
    found = bundles.read(stage.installation.plane.request("GET", stage.installation.secret))
    assert isinstance(found, Bundle)
    look_at_the_end(stage, found, now)


def look_at_the_end(stage: Stage, found: Bundle, now: datetime) -> None:
    """Nothing is left to do now; what is served is what is kept, and trusted, and so is nothing else."""
    assert (stage.folder / "tls.crt").read_bytes() == found.leaf.certificate
    assert stage.installation.published() == {found.ca_bundle()}
    assert signed_by(found.leaf.certificate, found.authority.certificate)
    assert next_step(found, [found.ca_bundle()], now, Policy(NAMES)).due > now
    assert not found.coming
    assert len(split(found.ca_bundle())) == len(found.retiring) + 1
