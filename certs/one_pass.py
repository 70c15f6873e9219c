"""Run one pass over the Secret and the `caBundle`: take the step that is due, and publish the bundle."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from certs import bundle as bundles
from certs.authority import BadCertificate
from certs.bundle import Bundle, InvalidBundle, RetiringCA
from certs.chain import valid_cas
from certs.cluster import Cause, CertificateError, CertificateObjects, JsonObject, ca_bundles, with_ca_bundle
from certs.renewal import PlannedStep, Policy, Step, next_step
from certs.steps import READ_BY_ALL, ROLLOUT_TIMEOUT, apply_step

Clock = Callable[[], datetime]


@dataclass(frozen=True, slots=True)
class PassResult:
    """The result of a pass.

    `configuration_error` concerns the configuration only: the bundle is in the Secret regardless. `trusted` is true if
    every webhook trusted the bundle already before this pass. `repaired` is true if a webhook did not trust the signing
    CA before this pass, and does now.
    """

    bundle: Bundle
    step: PlannedStep
    due: bool
    invalid: InvalidBundle | None
    trusted: bool
    repaired: bool
    configuration_error: CertificateError | None


def run_pass(
    objects: CertificateObjects,
    policy: Policy,
    now: Clock,
    forced: Step | None = None,
    served_ca: bytes | None = None,
) -> PassResult:
    """Take the step that is due, or the forced one, and publish the bundle. Raises CertificateError.

    A pass reads the configuration before the Secret. So a replica with an older bundle than the published one also has
    an older resource version of the configuration, and the API server rejects its write. `served_ca` is the CA of the
    certificate that this replica serves. A new bundle for an invalid Secret also trusts `served_ca`, and all published
    CAs if the Secret was empty.
    """
    configuration, error = _read_configuration(objects)
    secret = objects.read_secret()
    time, found = now(), bundles.read(secret)
    invalid = found if isinstance(found, InvalidBundle) else None
    if invalid and (invalid.cause is Cause.FOREIGN or not policy.names):
        raise invalid
    published = None if error else tuple(ca_bundles(configuration or {}).values())
    step = next_step(found, published, time, policy)
    if forced and _may_be_forced(forced, found, step.step):
        step = PlannedStep(forced, "requested by a command", time)
    retiring = {served_ca: time + READ_BY_ALL} if served_ca else {}
    # During a change of certificate source, the replica that answers may still use the old source.
    if invalid and invalid.cause is Cause.MISSING:
        retiring |= {ca: time + ROLLOUT_TIMEOUT for one in published or () for ca in valid_cas(one, time)}
    step, bundle = _take_step(step, found, time, policy, tuple(RetiringCA(*one) for one in retiring.items()))
    if bundle is not found:
        objects.write_secret(bundles.written(bundle, secret))
    # A different caBundle alone is no repair: during a step, other replicas see the Secret before its caBundle.
    repaired = isinstance(found, Bundle) and any(found.authority.certificate not in one for one in published or ())
    error = error or _publish(objects, configuration, bundle.ca_bundle())
    trusted = error is None and all(one == bundle.ca_bundle() for one in published or ())
    return PassResult(bundle, step, step.is_due(time), invalid, trusted, repaired and not error, error)


def _may_be_forced(forced: Step, found: Bundle | InvalidBundle, due: Step) -> bool:
    if isinstance(found, InvalidBundle) or due in (Step.START, Step.WITHDRAWN):
        return False
    return not (forced is Step.INTRODUCE and found.next_ca)  # another replica has introduced a CA first


def _read_configuration(objects: CertificateObjects) -> tuple[JsonObject | None, CertificateError | None]:
    try:
        return objects.read_configuration(), None
    except CertificateError as error:  # a leaf can be renewed without the configuration
        return None, error


def _take_step(
    step: PlannedStep, found: Bundle | InvalidBundle, now: datetime, policy: Policy, served_cas: tuple[RetiringCA, ...]
) -> tuple[PlannedStep, Bundle]:
    if isinstance(found, Bundle) and not step.is_due(now):
        return step, found
    try:
        return step, apply_step(step.step, found, now, policy, served_cas)
    except BadCertificate as error:  # for example, the CA in the Secret has an RSA key
        return PlannedStep(Step.START, str(error), now), apply_step(Step.START, found, now, policy)


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
