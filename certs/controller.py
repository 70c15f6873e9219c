"""The controller of one replica: it repeats passes, writes the served files, and records problems."""

import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from certs import files
from certs import secret as bundles
from certs.authority import split, valid_cas
from certs.cluster import ApiClient, CertificateObjects, ca_bundles, with_ca_bundle
from certs.rotation import (
    FORCED,
    MAX_RETIRING,
    NEVER,
    ROLLOUT_TIMEOUT,
    PlannedStep,
    Step,
    apply_step,
    new_bundle,
    next_step,
)
from certs.secret import Bundle, Cause, CertificateError, InvalidBundle, JsonObject, RetiringCA

Clock = Callable[[], datetime]
# Seconds between passes, also after a failed one. An emptied caBundle is repaired after one interval; two GETs per
# interval cost little.
PASS_INTERVAL = 3.0
CONFLICT_RETRY = 0.5  # seconds
MAX_TRIES = 10  # of a command; a replica tries forever
# Seconds that a starting replica gives the API servers to see the caBundle that it has published.
PROPAGATION_DELAY = 1.0
# The kubelets update a mounted Secret within about a minute and a half, each at its own time.
MOUNT_DELAY = timedelta(minutes=2)
NOT_READ = "the caBundle is not read yet"

log = logging.getLogger("certs")


@dataclass(frozen=True, slots=True)
class PassResult:
    """The result of a pass.

    `taken` is None if no step changed the bundle. `damaged` says why a Secret was replaced, empty otherwise.
    `configuration_error` concerns the configuration only: the bundle is in the Secret regardless. `trusted` is true if
    every webhook trusted the bundle already before this pass. `repaired` is true if a webhook did not trust the signing
    CA before this pass, and does now.
    """

    bundle: Bundle
    taken: PlannedStep | None
    damaged: str
    trusted: bool
    repaired: bool
    configuration_error: CertificateError | None


def run_pass(objects: CertificateObjects, names: tuple[str, ...], now: Clock, forced: Step | None = None) -> PassResult:
    """Take the step that is due, or the forced one, and publish the bundle. Raises CertificateError.

    A pass reads the configuration before the Secret. So a replica with an older bundle than the published one also has
    an older resource version of the configuration, and the API server rejects its write. If the Secret is empty or
    damaged, its new bundle also trusts the published CAs.
    """
    configuration, error = _read_configuration(objects)
    secret = objects.read_secret()
    time, found = now(), bundles.read(secret)
    published = None if error else tuple(ca_bundles(configuration or {}).values())
    if isinstance(found, InvalidBundle):
        bundle, taken = _replacement(found, published or (), time, names)
    else:
        bundle, taken = _after_due_step(found, published, time, names, forced)
    if taken:
        objects.write_secret(bundles.written(bundle, secret))
    error = error or _publish(objects, configuration, bundle.ca_bundle())
    return PassResult(
        bundle,
        taken,
        damaged=str(found) if isinstance(found, InvalidBundle) and found.cause is Cause.DAMAGED else "",
        trusted=error is None and all(one == bundle.ca_bundle() for one in published or ()),
        repaired=error is None and isinstance(found, Bundle) and not _trust_signing_ca(published or (), found),
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
    retiring = tuple(RetiringCA(ca, time + ROLLOUT_TIMEOUT) for ca in cas)[:MAX_RETIRING]
    return new_bundle(names, time, retiring), PlannedStep(Step.START, str(invalid), time)


def _after_due_step(
    found: Bundle, published: Sequence[bytes] | None, time: datetime, names: tuple[str, ...], forced: Step | None
) -> tuple[Bundle, PlannedStep | None]:
    """Return the bundle after the step that is due, or the forced one. Without such a step, return it unchanged."""
    step = next_step(found, published, time, names)
    if forced and step.step not in (Step.START, Step.WITHDRAWN):
        step = PlannedStep(forced, FORCED, time)
    bundle = apply_step(step.step, found, time, names) if step.due <= time else found
    return bundle, None if bundle is found else step


def _trust_signing_ca(published: Sequence[bytes], found: Bundle) -> bool:
    # A different caBundle alone needs no repair: during a step, other replicas see the Secret before its caBundle.
    return all(found.authority.certificate in one for one in published)


def force(objects: CertificateObjects, step: Step, now: Clock, wait: Callable[[float], None]) -> PassResult:
    """Take a step before it is due, or START if that is due; retry a few conflicts. Raises CertificateError."""
    problem = "another step comes first"
    for _ in range(MAX_TRIES):
        try:
            passed = run_pass(objects, (), now, step)
            if passed.taken and passed.taken.step in (step, Step.START):
                return passed
        except CertificateError as error:
            if error.cause is not Cause.CONFLICT:
                raise
            problem = str(error)
        wait(CONFLICT_RETRY)
    advice = "find the client that writes it in its metadata.managedFields, and stop that client first"
    raise CertificateError(Cause.CONFLICT, f"{problem}, {MAX_TRIES} times in a row; {advice}")


def read_bundle(objects: CertificateObjects) -> Bundle:
    """Read the certificates of the Secret. Raises CertificateError if they aren't the webhook's own."""
    found = bundles.read(objects.read_secret())
    if isinstance(found, InvalidBundle):
        raise found
    return found


def _read_configuration(objects: CertificateObjects) -> tuple[JsonObject | None, CertificateError | None]:
    try:
        return objects.read_configuration(), None
    except CertificateError as error:  # a leaf can be renewed without the configuration
        return None, error


def _publish(
    objects: CertificateObjects, configuration: JsonObject | None, ca_bundle: bytes
) -> CertificateError | None:
    if configuration is None:
        return None
    updated = with_ca_bundle(configuration, ca_bundle)
    try:
        if updated != configuration:
            objects.write_configuration(updated)
    except CertificateError as error:
        return error
    return None


class CertificateController:
    """Reconciles a folder, a Secret and a `caBundle`. One thread calls `run`; any thread may read the attributes.

    `names` are in canonical form. Without `secret`, another source fills the folder, and the controller publishes its
    `ca.crt`. Without `configuration`, the controller publishes nothing. `steps`, `failures` and `repairs` are counters.
    `problem` is the current error message, empty without an error. `untrusted` is the reason why API servers may reject
    the certificate of a starting replica. It is empty from the first pass that publishes nothing or fails.
    """

    def __init__(  # noqa: PLR0913 (each is a choice of the installation)
        self,
        api: ApiClient,
        *,
        secret: tuple[str, str] | None,
        configuration: str | None,
        names: tuple[str, ...],
        folder: Path,
        now: Clock = lambda: datetime.now(UTC),
    ) -> None:
        """Store the settings; send no request."""
        self._objects = CertificateObjects(api, secret, configuration)
        self._names, self._folder, self._now = names, folder, now
        self._stale_since = NEVER
        self.steps: Counter[Step] = Counter()
        self.failures: Counter[Cause] = Counter()
        self.repairs = 0
        self.problem = self._last_logged = ""
        self.untrusted = NOT_READ if configuration else ""

    def run(self, stop: threading.Event) -> None:
        """Run passes until stopped."""
        while not stop.wait(self.run_pass()):
            pass

    def run_pass(self) -> float:
        """Run a pass and return the seconds until the next one. Raises nothing: errors are logged and counted."""
        try:
            published = self._reconcile()
        except CertificateError as error:
            return self._record_failure(error)
        except Exception as unexpected:  # noqa: BLE001 (logged and counted: without this thread, nothing is renewed)
            return self._record_failure(
                CertificateError(Cause.INTERNAL, f"unexpected error ({type(unexpected).__name__})"), unexpected
            )
        if self.problem:
            log.info("certificate passes succeed again")
        self.problem, self._last_logged = "", ""
        if published and self.untrusted == NOT_READ:
            self.untrusted = "API servers may not have seen the new caBundle yet"
            return PROPAGATION_DELAY
        self.untrusted = ""
        return PASS_INTERVAL * random.uniform(0.8, 1.2)  # noqa: S311 (jitter)

    def _reconcile(self) -> bool:
        """Run one pass, and return whether a caBundle had to be published."""
        if self._objects.secret:
            return self._reconcile_secret()
        return self._objects.configuration is not None and self._publish_provided_ca()

    def _reconcile_secret(self) -> bool:
        passed = run_pass(self._objects, self._names, self._now)
        if passed.damaged:
            self.failures[Cause.DAMAGED] += 1
            log.warning("damaged Secret replaced", extra={"reason": passed.damaged})
        if taken := passed.taken:
            self.steps[taken.step] += 1
            log.info("certificate step taken", extra={"step": taken.step, "reason": taken.why})
        if passed.repaired:
            self._record_repair()
        # API servers don't trust a new CA before it is published, and see it a little later. They still trust the old
        # CA, so its leaf is served until then.
        if passed.trusted or not files.has_valid_leaf_of_another_ca(self._folder, passed.bundle, self._now()):
            files.write(self._folder, passed.bundle)
        if passed.configuration_error:
            raise passed.configuration_error
        return not passed.trusted

    def _publish_provided_ca(self) -> bool:
        configuration = self._objects.read_configuration() or {}
        ca_bundle, published = files.ca_certificates(self._folder), set(ca_bundles(configuration).values())
        if all(one == ca_bundle for one in published):
            self._stale_since = NEVER
            return False
        if all(published) and not files.has_matching_key(self._folder):  # the served, older pair may need the old CA
            return False
        # Replicas whose kubelets have not all updated the mounted Secret would overwrite each other's caBundle.
        if all(files.trust_anchor_in(self._folder, one) for one in published):
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
        self.problem, self.untrusted = str(error), ""  # an unready replica would not help
        if to_log != self._last_logged:
            self._last_logged = to_log
            log.warning(
                "certificate pass failed", extra={"cause": error.cause, "reason": self.problem}, exc_info=unexpected
            )
        return PASS_INTERVAL * random.uniform(0.5, 1)  # noqa: S311 (jitter)
