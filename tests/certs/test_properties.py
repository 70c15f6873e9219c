"""Random events on three replicas that share a Secret: served certificates stay trusted, and the replicas converge.

API servers may see a new `caBundle` as late as `SPREAD` allows; until then they use the previous one.
"""

from contextlib import suppress
from datetime import timedelta
from functools import cache, partial

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from certs import ApiError
from certs import secret as bundles
from certs.authority import read, signed_by, split
from certs.cluster import CertificateObjects
from certs.controller import CertificateController, run_pass
from certs.files import InMemory
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
    st.tuples(st.just("renew")),
]
RARE = [
    st.tuples(st.just("crash"), REPLICA, REQUEST, st.booleans()),
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
    """Three replicas, whose served certificates are checked before each request and after each event."""

    def __init__(self) -> None:
        self.api, self.clock = FakeCertificateCluster(), CertificateClock()
        self.objects = CertificateObjects(self.api, (NAMESPACE, NAME), CONFIGURATION)
        self.controllers = [self.controller(InMemory()) for _ in range(REPLICAS)]
        self.not_updated: set[int] = set()
        # `seen`: published bundles, and until when API servers may see each. `history`: every bundle of the Secret.
        self.seen, self.history = [], []
        self.bundle, self.replacement, self.version = None, b"", self.api.secret["metadata"]["resourceVersion"]
        self.api.on_request = self.check

    def controller(self, served):
        return CertificateController(
            self.api,
            secret=(NAMESPACE, NAME),
            configuration=CONFIGURATION,
            names=NAMES,
            served=served,
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
        for number in range(REPLICAS):
            leaf = self.served(number)
            if leaf in (b"", self.replacement):  # it serves the replacement at once, because no other one is valid
                continue
            if number not in self.not_updated and read(leaf).is_valid(self.clock()):
                for ca_bundle in [ca_bundle for ca_bundle, until in self.seen if until > self.clock()]:
                    assert trusts(ca_bundle, leaf), "served but not trusted"

    def record_bundle(self, found):
        if found.ca_bundle() not in self.history:
            self.history.append(found.ca_bundle())
        if self.bundle and found.serving not in (self.bundle.serving, self.bundle.next):
            self.replacement = found.serving.certificate
        self.bundle = found

    def record_published(self, published):
        for ca_bundle in published:
            if self.replacement and self.replacement in ca_bundle:
                self.replacement, self.seen = b"", []  # published at once, because the old one was unusable
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
                self.renew() if fast == "operator" else self.run_replica(fast)

        self.api.on_request = on_request
        self.run_replica(slow)

    def crash(self, number, request, after_request):
        (self.api.fail_after if after_request else self.api.fail_before)[len(self.api.calls) + request] = Crash()
        with suppress(Crash):
            self.run_replica(number)
        self.controllers[number] = self.controller(InMemory())

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
        """Let another client restore the certificates from before the renewal, during its wait."""
        if self.bundle and self.bundle.next and self.seen and self.seen[-1][0] == self.bundle.ca_bundle():
            before = replace(self.bundle, next=None).ca_bundle()
            self.history.insert(0, before)
            self.seen[-1] = self.seen[-1][0], self.clock() + SPREAD
            self.seen.append((before, self.clock() + 10_000 * DAY))
            self.api.publish(before)

    def renew(self):
        with suppress(CertificateError):
            run_pass(self.objects, (), self.clock, partial(apply_step, Step.START))

    def settle(self):
        """Run passes and let time pass until one certificate is left, which all replicas serve."""
        for _ in range(40):
            for number in range(REPLICAS):
                self.perform("run_replica", number)
            found = bundles.read(self.api.secret)
            if not found.next and not found.retiring and len(set(map(self.served, range(REPLICAS)))) == 1:
                return found
            self.clock.advance(6 * MINUTE if found.next else 3 * DAY)
        raise AssertionError("the replicas do not converge")

    def served(self, number):
        served = self.controllers[number]._served
        return served.pair().certificate if served.bundle else b""


@settings(deadline=None, max_examples=30)
@given(st.lists(EVENTS, min_size=10, max_size=40))
def test_served_certificates_stay_trusted_and_replicas_converge_on_one(events):
    installation = Installation()
    for action, *details in [("run_replica", 0), ("run_replica", 1), *events]:
        installation.perform(action, *details)
    found = installation.settle()
    writes = len(installation.api.writes)
    for number in range(REPLICAS):
        installation.perform("run_replica", number)
        assert installation.served(number) == found.serving.certificate
    assert len(installation.api.writes) == writes
    assert installation.api.ca_bundles() == [found.serving.certificate] * 2
