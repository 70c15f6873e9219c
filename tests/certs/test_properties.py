"""Whatever happens to three replicas that share a Secret: what is served is trusted, and they agree in the end.

API servers may be as late as the policy allows: for so long they still see what was published before.
"""

from contextlib import suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from certs import bundle as bundles
from certs.authority import read, signed_by, split
from certs.cluster import ApiError, CertificateError, CertificateObjects
from certs.renewal import Policy, Step
from certs.rotate import CertificateController, run_pass
from tests.support.fake_certificate_cluster import CONFIGURATION, NAME, NAMES, NAMESPACE, Clock, Crash, TwoObjects

POLICY = Policy(NAMES)
REPLICAS = 3
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)

replicas = st.integers(0, REPLICAS - 1)
calls = st.integers(0, 3)  # a pass makes four at the most
times = st.sampled_from([4 * MINUTE, 6 * MINUTE, 6 * MINUTE, DAY, 11 * DAY, 21 * DAY, 100 * DAY])
OFTEN = [
    st.tuples(st.just("pass_"), replicas),
    st.tuples(st.just("race"), replicas, replicas | st.just("a person"), calls),
    st.tuples(st.just("turn"), times),
    st.tuples(st.just("rotate")),
]
SELDOM = [
    st.tuples(st.just("crash"), replicas, calls, st.booleans(), st.booleans()),
    st.tuples(st.just("refuse"), replicas, calls, st.booleans(), st.sampled_from([0, 403, 409, 500])),
    st.tuples(st.just("back"), st.sampled_from([MINUTE, 2 * DAY / 24, 3 * DAY])),
    st.tuples(st.just("empty")),
]
EVENTS = st.one_of(*OFTEN, *OFTEN, *SELDOM)


@cache
def trusts(ca_bundle, leaf):
    return any(signed_by(leaf, ca) for ca in split(ca_bundle))


class Installation:
    """Three replicas, and after each call a look at what they serve."""

    def __init__(self, folder: Path) -> None:
        self.api, self.clock = TwoObjects(), Clock()
        self.folder, self.pods = folder, 0
        self.place = CertificateObjects(self.api, (NAMESPACE, NAME), CONFIGURATION)
        self.keepers = [self.keeper(self.empty_folder()) for _ in range(REPLICAS)]
        self.stale: set[int] = set()
        self.seen, self.order = [], []  # what was published and until when it may be seen; every bundle of the Secret
        self.bundle, self.fresh, self.version = None, b"", self.api.secret["metadata"]["resourceVersion"]
        self.api.between = self.look

    def empty_folder(self):
        self.pods += 1
        folder = self.folder / str(self.pods)
        folder.mkdir()
        return folder

    def keeper(self, folder):
        return CertificateController(
            self.api,
            secret=(NAMESPACE, NAME),
            configuration=CONFIGURATION,
            policy=POLICY,
            folder=folder,
            now=self.clock,
        )

    def look(self, *_):
        """What must hold at every moment."""
        if self.api.secret["metadata"]["resourceVersion"] != self.version:
            self.version = self.api.secret["metadata"]["resourceVersion"]
            self.remember_kept(bundles.read(self.api.secret))
        published = [one for one in set(self.api.ca_bundles()) if one]
        assert len(published) <= 1
        self.remember_published(published)
        for number, keeper in enumerate(self.keepers):
            file = keeper._folder / "tls.crt"
            leaf = file.read_bytes() if file.exists() else b""
            if leaf and number not in self.stale and read(leaf).is_valid(self.clock()):
                for ca_bundle in [ca_bundle for ca_bundle, until in self.seen if until > self.clock()]:
                    assert trusts(ca_bundle, leaf), "served and not trusted"

    def remember_kept(self, found):
        if found.ca_bundle() not in self.order:
            self.order.append(found.ca_bundle())
        if self.bundle and found.authority not in (self.bundle.authority, self.bundle.next_ca):
            self.fresh = found.authority.certificate
        self.bundle = found

    def remember_published(self, published):
        for ca_bundle in published:
            if self.fresh and self.fresh in ca_bundle:
                self.fresh, self.seen = b"", []  # a new CA at once, because the old one was worth nothing
            if self.seen and self.seen[-1][0] == ca_bundle:
                self.seen.pop()
            elif self.seen:
                before = self.seen[-1][0]
                assert self.order.index(ca_bundle) > self.order.index(before), "an older bundle over a newer one"
                self.seen[-1] = before, self.clock() + POLICY.spread
            self.seen.append((ca_bundle, self.clock() + 10_000 * DAY))

    def event(self, what, *details):
        getattr(self, what)(*details)
        self.api.before, self.api.after, self.api.between = {}, {}, self.look
        self.look()

    def pass_(self, number):
        keeper = self.keepers[number]
        failures = keeper.failures.total()
        keeper.run_pass()
        if keeper.failures.total() == failures:
            self.stale.discard(number)

    def race(self, slow, fast, call):
        at = len(self.api.calls) + call

        def between(*_):
            self.look()
            if len(self.api.calls) == at:
                self.api.between = self.look
                self.rotate() if fast == "a person" else self.pass_(fast)

        self.api.between = between
        self.pass_(slow)

    def crash(self, number, call, afterwards, elsewhere):
        (self.api.after if afterwards else self.api.before)[len(self.api.calls) + call] = Crash()
        with suppress(Crash):
            self.pass_(number)
        self.keepers[number] = self.keeper(self.empty_folder() if elsewhere else self.keepers[number]._folder)

    def refuse(self, number, call, afterwards, code):
        (self.api.after if afterwards else self.api.before)[len(self.api.calls) + call] = ApiError(code, "no")
        self.pass_(number)

    def turn(self, by):
        self.clock.turn(by)

    def back(self, by):
        self.clock.turn(-by)
        self.stale, self.seen = set(range(REPLICAS)), []

    def empty(self):
        if any(self.api.ca_bundles()):
            self.api.publish(b"")

    def rotate(self):
        with suppress(CertificateError):
            run_pass(self.place, Policy(), self.clock, Step.INTRODUCE)

    def settle(self):
        """Let time pass until there is one CA, and then one round more."""
        for _ in range(40):
            for number in range(REPLICAS):
                self.event("pass_", number)
            found = bundles.read(self.api.secret)
            if not found.next_ca and not found.retiring and len(set(map(self.served, range(REPLICAS)))) == 1:
                return found
            self.clock.turn(6 * MINUTE if found.next_ca else 3 * DAY)
        raise AssertionError("it does not settle")

    def served(self, number):
        return (self.keepers[number]._folder / "tls.crt").read_bytes()


@settings(deadline=None, max_examples=30)
@given(st.lists(EVENTS, min_size=10, max_size=40))
def test_what_is_served_is_trusted_and_one_ca_is_left(events):
    with TemporaryDirectory() as folder:
        installation = Installation(Path(folder))
        for what, *details in [("pass_", 0), ("pass_", 1), *events]:
            installation.event(what, *details)
        found = installation.settle()
        writes = len(installation.api.writes)
        for number in range(REPLICAS):
            installation.event("pass_", number)
            assert installation.served(number) == found.leaf.certificate
        assert len(installation.api.writes) == writes
        assert installation.api.ca_bundles() == [found.authority.certificate] * 2
