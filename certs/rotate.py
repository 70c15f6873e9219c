"""Look after the certificates: one pass looks, decides, writes and publishes, and the next one goes on from there."""

import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import structlog

from certs import bundle as bundles
from certs import folder as files
from certs.authority import BadCertificate, split
from certs.bundle import Bundle, InvalidBundle, RetiringCA
from certs.chain import sound
from certs.cluster import ApiClient, Cause, CertificateError, CertificateObjects, JsonObject, ca_bundles, with_ca_bundle
from certs.renewal import NEVER, PlannedStep, Policy, Step, next_step
from certs.steps import LEAVING_AT_MOST, READ_BY_ALL, REPLACED, apply_step

# Seconds. A caBundle that somebody emptied is repaired after one of these; two GETs in three seconds cost nobody much.
EVERY = 3.0
AFTER_A_LOST_RACE = 0.5
FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0
# The kubelets bring a changed Secret into the mounted folders within about a minute and a half, each at its own time.
MOUNTED = timedelta(minutes=2)

Clock = Callable[[], datetime]

log = structlog.get_logger("certs")


@dataclass(frozen=True, slots=True)
class PassResult:
    """What a pass saw and did.

    `trouble` is with the configuration alone: the bundle is in the Secret all the same. `trusted` says that every
    webhook of the configuration was seen to trust the bundle, and not only since this pass; `repaired` that one did not
    trust the CA that signs, and does now.
    """

    bundle: Bundle
    step: PlannedStep
    due: bool
    flaw: InvalidBundle | None
    trusted: bool
    repaired: bool
    trouble: CertificateError | None


def run_pass(
    place: CertificateObjects, policy: Policy, now: Clock, forced: Step | None = None, served: bytes | None = None
) -> PassResult:
    """Take the step that is due, or the one that is asked for, and publish the bundle. Raises Trouble.

    The configuration is read before the Secret: whoever comes with an older bundle than the one that was published
    also comes with an older resource version, and is refused. `served` is the CA by which the replicas are trusted: a
    Secret that does not say so is filled with another one beside it, an empty one with all that are published.
    """
    configuration, trouble = _configuration(place)
    secret = place.read_secret()
    time, found = now(), bundles.read(secret)
    flaw = found if isinstance(found, InvalidBundle) else None
    if flaw and (flaw.cause is Cause.FOREIGN or not policy.names):
        raise flaw
    published = None if trouble else tuple(ca_bundles(configuration or {}).values())
    step = next_step(found, published, time, policy)
    if forced and _may_be_forced(forced, found, step.step):
        step = PlannedStep(forced, "it was asked for", time)
    retiring = {served: time + READ_BY_ALL} if served else {}
    if flaw and flaw.cause is Cause.MISSING:  # whoever is called now may have its certificate from another source
        retiring |= {ca: time + REPLACED for one in published or () for ca in sound(one, time)}
    step, bundle = _taken(step, found, time, policy, tuple(RetiringCA(*one) for one in retiring.items()))
    if bundle is not found:
        place.write_secret(bundles.written(bundle, secret))
    # Not merely another one: while a step is taken, the others see the Secret before its caBundle.
    repaired = isinstance(found, Bundle) and any(found.authority.certificate not in one for one in published or ())
    trouble = trouble or _published(place, configuration, bundle.ca_bundle())
    trusted = trouble is None and all(one == bundle.ca_bundle() for one in published or ())
    return PassResult(bundle, step, step.is_due(time), flaw, trusted, repaired and not trouble, trouble)


def _may_be_forced(forced: Step, found: Bundle | InvalidBundle, due: Step) -> bool:
    if isinstance(found, InvalidBundle) or due in (Step.START, Step.WITHDRAWN):
        return False
    return not (forced is Step.INTRODUCE and found.next_ca)  # somebody was faster


def _configuration(place: CertificateObjects) -> tuple[JsonObject | None, CertificateError | None]:
    try:
        return place.read_configuration(), None
    except CertificateError as trouble:  # a certificate can be renewed all the same
        return None, trouble


def _taken(
    step: PlannedStep, found: Bundle | InvalidBundle, now: datetime, policy: Policy, served: tuple[RetiringCA, ...]
) -> tuple[PlannedStep, Bundle]:
    if isinstance(found, Bundle) and not step.is_due(now):
        return step, found
    try:
        return step, apply_step(step.step, found, now, policy, served)
    except BadCertificate as error:  # somebody put a CA with another kind of key into it
        return PlannedStep(Step.START, str(error), now), apply_step(Step.START, found, now, policy)


def _published(
    place: CertificateObjects, configuration: JsonObject | None, ca_bundle: bytes
) -> CertificateError | None:
    if configuration is None:
        return None
    wanted = with_ca_bundle(configuration, ca_bundle)
    try:
        if wanted != configuration:
            place.write_configuration(wanted)
    except CertificateError as trouble:
        return trouble
    return None


class CertificateController:
    """Keeps a folder, a Secret and a `caBundle` as they should be. One thread calls `run`, any may read what it says.

    Without `secret` the folder is somebody else's, and its `ca.crt` is published. Without `configuration` nothing is.
    `steps`, `failures` and `repairs` count; `problem` is in words, and empty while all is well.
    """

    def __init__(  # noqa: PLR0913 (each is a choice of the installation)
        self,
        api: ApiClient,
        *,
        secret: tuple[str, str] | None,
        configuration: str | None,
        policy: Policy,
        folder: Path,
        now: Clock = lambda: datetime.now(UTC),
    ) -> None:
        """Touch nothing yet. Raises BadCertificate where a Secret is to be filled and no name is wanted."""
        if secret and not policy.names:
            raise BadCertificate("a serving certificate needs a name")
        self._place = CertificateObjects(api, secret, configuration)
        self._policy, self._folder, self._now = policy, folder, now
        self._wait, self._stale_since = FIRST_WAIT, NEVER
        self.steps: Counter[Step] = Counter()
        self.failures: Counter[Cause] = Counter()
        self.repairs = 0
        self.problem = self._told = ""

    def run(self, stop: threading.Event) -> None:
        """Pass after pass until it is told to stop."""
        while not stop.wait(self.run_pass()):
            pass

    def run_pass(self) -> float:
        """Do what is due now, and return the seconds until the next pass. Raises nothing: it is told and counted."""
        try:
            if self._place.secret:
                self._look_after()
            elif self._place.configuration:
                self._publish()
        except CertificateError as trouble:
            return self._failed(trouble)
        except Exception as error:  # noqa: BLE001 (a surprise is told; without the thread nothing would be renewed)
            return self._failed(CertificateError(Cause.INTERNAL, f"a surprise inside ({type(error).__name__})"), error)
        if self.problem:
            log.info("the certificates are looked after again")
        self.problem, self._told, self._wait = "", "", FIRST_WAIT
        return EVERY * random.uniform(0.8, 1.2)  # noqa: S311 (jitter)

    def _look_after(self) -> None:
        own = files.own_authority(self._folder, self._now())
        passed = run_pass(self._place, self._policy, self._now, served=own)
        if passed.flaw and passed.flaw.cause is Cause.DAMAGED:
            self.failures[Cause.DAMAGED] += 1
            log.warning("the Secret was filled anew: it was damaged", reason=str(passed.flaw))
        if passed.due and passed.step.step not in (Step.NOTHING, Step.PUBLISH):
            self.steps[passed.step.step] += 1
            log.info("a step was taken", step=passed.step.step, reason=passed.step.why)
        if passed.repaired:
            self._repaired()
        # A new CA that is not published is trusted by nobody, nor for a moment one that has just been: API servers hear
        # of it a little later. The old one still is.
        if passed.trusted or not files.keeps(self._folder, passed.bundle, self._now()):
            files.write(self._folder, passed.bundle)
        if passed.trouble:
            raise passed.trouble

    def _publish(self) -> None:
        configuration = self._place.read_configuration() or {}
        ca_bundle, published = files.authorities(self._folder), set(ca_bundles(configuration).values())
        if all(one == ca_bundle for one in published):
            self._stale_since = NEVER
            return
        if all(published) and not files.is_a_pair(self._folder):  # what is served may be trusted by what is there
            return
        # Two replicas whose folders are not of one age would overwrite each other's.
        if all(files.issuer(self._folder, one) for one in published):
            self._stale_since = min(self._stale_since, self._now())
            if self._now() - self._stale_since < MOUNTED:
                return
        else:  # those that are to be replaced are trusted for as long
            others = {ca for one in published for ca in sound(one, self._now())} - set(split(ca_bundle))
            ca_bundle += b"".join(sorted(others)[:LEAVING_AT_MOST])
        self._place.write_configuration(with_ca_bundle(configuration, ca_bundle))
        self._stale_since = NEVER
        self._repaired()

    def _repaired(self) -> None:
        self.repairs += 1
        log.info("the caBundle was repaired", configuration=self._place.configuration)

    def _failed(self, trouble: CertificateError, surprise: Exception | None = None) -> float:
        self.failures[trouble.cause] += 1
        if trouble.cause is Cause.CONFLICT:  # somebody was faster, which is no trouble
            return AFTER_A_LOST_RACE * random.uniform(0.5, 1)  # noqa: S311 (jitter)
        # How a connection fails differs from time to time: that is no news.
        told = trouble.cause if trouble.cause is Cause.UNREACHABLE else str(trouble)
        self.problem = str(trouble)
        if told != self._told:
            self._told = told
            log.warning(
                "the certificates can't be looked after", cause=trouble.cause, reason=self.problem, exc_info=surprise
            )
        # A Secret that is made anew gets another CA: a replica that sees it later is trusted later.
        wait = min(self._wait, EVERY) if trouble.cause is Cause.MISSING else self._wait
        self._wait = min(self._wait * 2, LONGEST_WAIT)
        return wait * random.uniform(0.5, 1)  # noqa: S311 (jitter)
