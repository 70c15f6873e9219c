"""Random events on three replicas that share a Secret: served leaves stay trusted, and the replicas converge.

API servers may see a new `caBundle` as late as `SPREAD` allows; until then they use the previous one.
"""

from contextlib import suppress
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from certs import ApiError
from certs import secret as bundles
from certs.authority import read, signed_by, split
from certs.cluster import CertificateObjects
from certs.controller import CertificateController, run_pass
from certs.rotation import SPREAD, Step, apply_step
from certs.secret import CertificateError
from tests.support.fake_certificate_cluster import CONFIGURATION, NAME, NAMES, NAMESPACE, Crash, FakeCertificateCluster
from tests.support.fake_clock import CertificateClock

REPLICAS = 3
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)

REPLICA = st.integers(0, REPLICAS - 1)
REQUEST = st.integers(0, 3)  # a pass sends four at most
DURATION = st.sampled_from([4 * MINUTE, 6 * MINUTE, 6 * MINUTE, DAY, 11 * DAY, 21 * DAY, 100 * DAY])
FREQUENT = [
    st.tuples(st.just("run_replica"), REPLICA),
    st.tuples(st.just("race"), REPLICA, REPLICA | st.just("operator"), REQUEST),
    st.tuples(st.just("advance"), DURATION),
    st.tuples(st.just("rotate")),
]
RARE = [
    st.tuples(st.just("crash"), REPLICA, REQUEST, st.booleans(), st.booleans()),
    st.tuples(st.just("fail_request"), REPLICA, REQUEST, st.booleans(), st.sampled_from([0, 403, 409, 500])),
    st.tuples(st.just("set_clock_back"), st.sampled_from([MINUTE, 2 * DAY / 24, 3 * DAY])),
    st.tuples(st.just("empty_ca_bundles")),
    st.tuples(st.just("restore_ca_bundles")),
]
EVENTS = st.one_of(*FREQUENT, *FREQUENT, *RARE)


@cache
def trusts(ca_bundle, leaf):
    return any(signed_by(leaf, ca) for ca in split(ca_bundle))


class Installation:
    """Three replicas, whose served leaves are checked before each request and after each event."""

    def __init__(self, folder: Path) -> None:
        self.api, self.clock = FakeCertificateCluster(), CertificateClock()
        self.folder, self.folder_count = folder, 0
        self.objects = CertificateObjects(self.api, (NAMESPACE, NAME), CONFIGURATION)
        self.controllers = [self.controller(self.new_folder()) for _ in range(REPLICAS)]
        self.not_updated: set[int] = set()
        # `seen`: published bundles, and until when API servers may see each. `history`: every bundle of the Secret.
        self.seen, self.history = [], []
        self.bundle, self.replacement_ca, self.version = None, b"", self.api.secret["metadata"]["resourceVersion"]
        self.api.on_request = self.check

    def new_folder(self):
        self.folder_count += 1
        folder = self.folder / str(self.folder_count)
        folder.mkdir()
        return folder

    def controller(self, folder):
        return CertificateController(
            self.api,
            secret=(NAMESPACE, NAME),
            configuration=CONFIGURATION,
            names=NAMES,
            folder=folder,
            now=self.clock,
        )

    def check(self, *_):
        """Check the invariants that must hold at any time."""
        if self.api.secret["metadata"]["resourceVersion"] != self.version:
            self.version = self.api.secret["metadata"]["resourceVersion"]
            self.record_bundle(bundles.read(self.api.secret))
        published = [one for one in set(self.api.ca_bundles()) if one]
        assert len(published) <= 1
        self.record_published(published)
        for number, controller in enumerate(self.controllers):
            file = controller._folder / "tls.crt"
            leaf = file.read_bytes() if file.exists() else b""
            if leaf and number not in self.not_updated and read(leaf).is_valid(self.clock()):
                for ca_bundle in [ca_bundle for ca_bundle, until in self.seen if until > self.clock()]:
                    assert trusts(ca_bundle, leaf), "served but not trusted"

    def record_bundle(self, found):
        if found.ca_bundle() not in self.history:
            self.history.append(found.ca_bundle())
        if self.bundle and found.authority not in (self.bundle.authority, self.bundle.next_ca):
            self.replacement_ca = found.authority.certificate
        self.bundle = found

    def record_published(self, published):
        for ca_bundle in published:
            if self.replacement_ca and self.replacement_ca in ca_bundle:
                self.replacement_ca, self.seen = b"", []  # published at once, because the old CA was unusable
            if self.seen and self.seen[-1][0] == ca_bundle:
                self.seen.pop()
            elif self.seen:
                before = self.seen[-1][0]
                assert self.history.index(ca_bundle) > self.history.index(before), "an older bundle is published"
                self.seen[-1] = before, self.clock() + SPREAD
            self.seen.append((ca_bundle, self.clock() + 10_000 * DAY))

    def perform(self, action, *details):
        getattr(self, action)(*details)
        self.api.fail_before, self.api.fail_after, self.api.on_request = {}, {}, self.check
        self.check()

    def run_replica(self, number):
        controller = self.controllers[number]
        failures = controller.failures.total()
        controller.run_pass()
        if controller.failures.total() == failures:
            self.not_updated.discard(number)

    def race(self, slow, fast, request):
        target = len(self.api.calls) + request

        def on_request(*_):
            self.check()
            if len(self.api.calls) == target:
                self.api.on_request = self.check
                self.rotate() if fast == "operator" else self.run_replica(fast)

        self.api.on_request = on_request
        self.run_replica(slow)

    def crash(self, number, request, after_request, new_pod):
        (self.api.fail_after if after_request else self.api.fail_before)[len(self.api.calls) + request] = Crash()
        with suppress(Crash):
            self.run_replica(number)
        self.controllers[number] = self.controller(self.new_folder() if new_pod else self.controllers[number]._folder)

    def fail_request(self, number, request, after_request, code):
        (self.api.fail_after if after_request else self.api.fail_before)[len(self.api.calls) + request] = ApiError(
            code, "no"
        )
        self.run_replica(number)

    def advance(self, by):
        self.clock.advance(by)

    def set_clock_back(self, by):
        self.clock.advance(-by)
        self.not_updated, self.seen = set(range(REPLICAS)), []

    def empty_ca_bundles(self):
        if any(self.api.ca_bundles()):
            self.api.publish(b"")

    def restore_ca_bundles(self):
        """Let another client restore the CAs from before the rotation, during its wait."""
        if self.bundle and self.bundle.next_ca and self.seen and self.seen[-1][0] == self.bundle.ca_bundle():
            before = replace(self.bundle, next_ca=None).ca_bundle()
            self.history.insert(0, before)
            self.seen[-1] = self.seen[-1][0], self.clock() + SPREAD
            self.seen.append((before, self.clock() + 10_000 * DAY))
            self.api.publish(before)

    def rotate(self):
        with suppress(CertificateError):
            run_pass(self.objects, (), self.clock, partial(apply_step, Step.START))

    def settle(self):
        """Run passes and let time pass until only one CA is left and all replicas serve the same leaf."""
        for _ in range(40):
            for number in range(REPLICAS):
                self.perform("run_replica", number)
            found = bundles.read(self.api.secret)
            if not found.next_ca and not found.retiring and len(set(map(self.served, range(REPLICAS)))) == 1:
                return found
            self.clock.advance(6 * MINUTE if found.next_ca else 3 * DAY)
        raise AssertionError("the replicas do not converge")

    def served(self, number):
        return (self.controllers[number]._folder / "tls.crt").read_bytes()


@settings(deadline=None, max_examples=30)
@given(st.lists(EVENTS, min_size=10, max_size=40))
def test_served_leaves_stay_trusted_and_replicas_converge_on_one_ca(events):
    with TemporaryDirectory() as folder:
        installation = Installation(Path(folder))
        for action, *details in [("run_replica", 0), ("run_replica", 1), *events]:
            installation.perform(action, *details)
        found = installation.settle()
        writes = len(installation.api.writes)
        for number in range(REPLICAS):
            installation.perform("run_replica", number)
            assert installation.served(number) == found.leaf.certificate
        assert len(installation.api.writes) == writes
        assert installation.api.ca_bundles() == [found.authority.certificate] * 2
