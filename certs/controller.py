"""The controller of one replica: it repeats passes, sets the served pair, and records problems."""

import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from certs import secret as bundles
from certs.authority import split, valid_cas
from certs.cluster import ApiClient, CertificateObjects, ca_bundles, with_ca_bundle
from certs.files import Folder, InMemory
from certs.rotation import MAX_RETIRING, Change, PlannedStep, Step, apply_step, new_bundle, next_step, observe
from certs.secret import Bundle, Cause, CertificateError, InvalidBundle, Retiring

Clock = Callable[[], datetime]
# Seconds between passes, also after a failed one. An emptied caBundle is repaired after one interval; two GETs per
# interval cost little.
PASS_INTERVAL = 3.0
CONFLICT_RETRY = 0.5  # seconds
MAX_TRIES = 10  # of a command; a replica tries forever
# Seconds that a starting replica gives the API servers to see the caBundle that it has published.
PROPAGATION_DELAY = 1.0
# A longer rollout has failed (progressDeadlineSeconds). Until then, the API server may call a replica that uses another
# certificate source.
ROLLOUT_TIMEOUT = timedelta(minutes=10)
# The kubelets update a mounted Secret within about a minute and a half, each at its own time.
MOUNT_DELAY = timedelta(minutes=2)
NEVER = datetime.max.replace(tzinfo=UTC)
NOT_READ = "the caBundle is not read yet"

log = logging.getLogger("certs")


class PassResult(Struct, frozen=True):
    """The result of a pass."""

    bundle: Bundle  # what the Secret holds now
    taken: PlannedStep | None  # the step that was due, if there was one
    damaged: str  # why a damaged Secret was replaced; empty otherwise
    trusted: bool  # whether every webhook trusted this bundle already before the pass
    repaired: bool  # whether a webhook did not trust the certificate before the pass, and does now
    configuration_error: CertificateError | None  # why the bundle is in the Secret but could not be published


def run_pass(
    objects: CertificateObjects, names: tuple[str, ...], now: Clock, forced: Change | None = None
) -> PassResult:
    """Take the step that is due, or make the forced change, and publish the bundle. Raises CertificateError.

    A pass reads the configuration before the Secret. So a replica with an older bundle than the published one also has
    an older resource version of the configuration, and the API server rejects its write. If the Secret is empty or
    damaged, its new bundle also trusts the published CAs.
    """
    configuration = error = None
    try:
        configuration = objects.read_configuration()
    except CertificateError as unreadable:  # a leaf can be renewed without the configuration
        error = unreadable
    secret = objects.read_secret()
    time = now()
    stored = bundles.read(secret)
    published = tuple(ca_bundles(configuration or {}).values())
    if isinstance(stored, InvalidBundle):
        bundle, taken = _replacement(stored, published, time, names)
    else:
        bundle, taken = _changed(stored, None if error else published, time, names, forced)
    if bundle != stored:
        objects.write_secret(bundles.written(bundle, secret))
    is_published = all(one == bundle.ca_bundle() for one in published)
    if configuration and not is_published:
        try:
            objects.write_configuration(with_ca_bundle(configuration, bundle.ca_bundle()))
        except CertificateError as unpublished:
            error = unpublished
    # A different caBundle alone needs no repair: during a step, other replicas see the Secret before its caBundle.
    lacked_ca = isinstance(stored, Bundle) and any(stored.anchor.certificate not in one for one in published)
    return PassResult(
        bundle,
        taken,
        damaged=str(stored) if isinstance(stored, InvalidBundle) and stored.cause is Cause.DAMAGED else "",
        trusted=error is None and is_published,
        repaired=error is None and lacked_ca,
        configuration_error=error,
    )


def _replacement(
    invalid: InvalidBundle, published: Sequence[bytes], time: datetime, names: tuple[str, ...]
) -> tuple[Bundle, PlannedStep | None]:
    """Return a new bundle for a Secret without a usable one. Raises `invalid` if it must stay."""
    if invalid.cause is Cause.FOREIGN or not names:
        raise invalid
    # Replicas serve the old leaf until they read the new one. During a change of certificate source, the replica that
    # answers may still use the old source.
    cas = dict.fromkeys(ca.decode() for one in published for ca in valid_cas(one, time))
    retiring = (Retiring(ca, time + ROLLOUT_TIMEOUT) for ca in cas)
    return new_bundle(names, time, retiring), PlannedStep(Step.START, str(invalid), time)


def _changed(
    stored: Bundle, published: Sequence[bytes] | None, time: datetime, names: tuple[str, ...], forced: Change | None
) -> tuple[Bundle, PlannedStep | None]:
    """Return the bundle after the forced change, or after the step that is due, if there is one."""
    observed = observe(stored, published, time)
    if forced:
        return forced(observed, time), None
    planned = next_step(observed, time, names)
    if planned.due <= time:
        return apply_step(planned.step, observed, time, names), planned
    # An unreadable configuration alone does not start the wait of a rotation again.
    return stored if published is None else observed, None


def force(objects: CertificateObjects, change: Change, now: Clock, wait: Callable[[float], None]) -> PassResult:
    """Make a change before any step is due, and retry a few conflicts. Raises CertificateError."""
    for _ in range(MAX_TRIES):
        try:
            return run_pass(objects, (), now, change)
        except CertificateError as error:
            if error.cause is not Cause.CONFLICT:
                raise
            problem = error
        wait(CONFLICT_RETRY)
    advice = "find the client that writes it in its metadata.managedFields, and stop that client first"
    raise CertificateError(Cause.CONFLICT, f"{problem}, {MAX_TRIES} times in a row; {advice}")


def read_bundle(objects: CertificateObjects) -> Bundle:
    """Read the certificates of the Secret. Raises CertificateError if they aren't the webhook's own."""
    stored = bundles.read(objects.read_secret())
    if isinstance(stored, InvalidBundle):
        raise stored
    return stored


class CertificateController:
    """Reconciles Secret, pair and `caBundle`. One thread calls `run`; any thread may read the attributes."""

    def __init__(  # noqa: PLR0913 (each is a choice of the installation)
        self,
        api: ApiClient,
        *,
        # Namespace and name, if the pair is in memory. Without it, nothing renews that pair.
        secret: tuple[str, str] | None,
        # The name of the MutatingWebhookConfiguration. Without one, nothing is published.
        configuration: str | None,
        # The names of the serving certificate, in canonical form.
        names: tuple[str, ...],
        # The served pair: of the Secret, or of a folder that another source fills, and whose `ca.crt` is published.
        served: InMemory | Folder,
        now: Clock = lambda: datetime.now(UTC),
    ) -> None:
        """Store the settings; send no request."""
        self._objects = CertificateObjects(api, secret, configuration)
        self._names = names
        self._served = served
        self._now = now
        # Since when a `caBundle` lacks a provided CA, although it trusts the provided certificate.
        self._stale_since = NEVER
        self._last_logged = ""
        # Counters of steps, failed passes and repaired caBundles.
        self.steps: Counter[Step] = Counter()
        self.failures: Counter[Cause] = Counter()
        self.repairs = 0
        # The current error message; empty without an error.
        self.problem = ""
        # Why API servers may reject the certificate of a starting replica. Empty from the first pass that publishes
        # nothing or fails.
        self.untrusted = NOT_READ if configuration else ""
        self.first_pass = threading.Event()

    def run(self, stop: threading.Event) -> None:
        """Run passes until stopped."""
        seconds = self.run_pass()
        self.first_pass.set()
        while not stop.wait(seconds):
            seconds = self.run_pass()

    def run_pass(self) -> float:
        """Run a pass and return the seconds until the next one. Raises nothing: errors are logged and counted."""
        try:
            if isinstance(self._served, Folder):
                published = self._publish_provided_ca(self._served)
            else:
                published = self._reconcile_secret(self._served)
        except CertificateError as error:
            return self._record_failure(error)
        except Exception as unexpected:  # noqa: BLE001 (logged and counted: without this thread, nothing is renewed)
            return self._record_failure(
                CertificateError(Cause.INTERNAL, f"unexpected error ({type(unexpected).__name__})"), unexpected
            )
        if self.problem:
            log.info("certificate passes succeed again")
        self.problem = ""
        self._last_logged = ""
        if published and self.untrusted == NOT_READ:
            self.untrusted = "API servers may not have seen the new caBundle yet"
            return PROPAGATION_DELAY
        self.untrusted = ""
        return PASS_INTERVAL * random.uniform(0.8, 1.2)  # noqa: S311 (jitter)

    def _reconcile_secret(self, served: InMemory) -> bool:
        """Run one pass, and return whether a caBundle had to be published."""
        if not self._objects.secret:  # nothing renews the pair of one run
            return False
        passed = run_pass(self._objects, self._names, self._now)
        if passed.damaged:
            self.failures[Cause.DAMAGED] += 1
            log.warning("damaged Secret replaced", extra={"reason": passed.damaged})
        if taken := passed.taken:
            self.steps[taken.step] += 1
            log.info("certificate step taken", extra={"step": taken.step, "reason": taken.why})
        if passed.repaired:
            self._record_repair()
        # API servers don't trust a new certificate before it is published, and see it a little later. So the old one is
        # served until then.
        if passed.trusted or not served.has_another_valid_certificate(passed.bundle, self._now()):
            served.bundle = passed.bundle
        if passed.configuration_error:
            raise passed.configuration_error
        return not passed.trusted

    def _publish_provided_ca(self, provided: Folder) -> bool:
        configuration = self._objects.read_configuration()
        if configuration is None:
            return False
        ca_bundle = provided.ca_bundle()
        published = set(ca_bundles(configuration).values())
        if all(one == ca_bundle for one in published):
            self._stale_since = NEVER
            return False
        if all(published) and not provided.has_matching_key():  # the served, older pair may need the old CA
            return False
        # Replicas whose kubelets have not all updated the mounted Secret would overwrite each other's caBundle.
        if all(map(provided.trust_anchor_in, published)):
            self._stale_since = min(self._stale_since, self._now())
            if self._now() - self._stale_since < MOUNT_DELAY:
                return False
        else:  # publish the new CA now, and keep the published ones for the same delay
            others = {ca for one in published for ca in valid_cas(one, self._now())} - set(split(ca_bundle))
            ca_bundle += b"".join(sorted(others)[:MAX_RETIRING])
        self._objects.write_configuration(with_ca_bundle(configuration, ca_bundle))
        self._stale_since = NEVER
        self._record_repair()
        return True

    def _record_repair(self) -> None:
        self.repairs += 1
        log.info("caBundle repaired", extra={"configuration": self._objects.configuration})

    def _record_failure(self, error: CertificateError, unexpected: Exception | None = None) -> float:
        self.failures[error.cause] += 1
        if error.cause is Cause.CONFLICT:  # another replica wrote first, which is expected
            return CONFLICT_RETRY * random.uniform(0.5, 1)  # noqa: S311 (jitter)
        # The message of a connection error varies between attempts, so compare only its cause.
        to_log = error.cause if error.cause is Cause.UNREACHABLE else str(error)
        self.problem = str(error)
        self.untrusted = ""  # an unready replica would not help
        if to_log != self._last_logged:
            self._last_logged = to_log
            log.warning(
                "certificate pass failed", extra={"cause": error.cause, "reason": self.problem}, exc_info=unexpected
            )
        return PASS_INTERVAL * random.uniform(0.5, 1)  # noqa: S311 (jitter)
