"""Read what `certs status` and `doctor` report: the certificates, their trust, the next step and problems."""

from contextlib import suppress
from datetime import datetime, timedelta

from msgspec import Struct

from certs import secret as bundles
from certs.authority import BadCertificate, Certificate, Issued, key_matches, read, split, trust_anchor, valid_cas
from certs.cluster import CertificateObjects, ca_bundles, hosts
from certs.rotation import PlannedStep, next_step, observe
from certs.secret import CA, CERTIFICATE, KEY, Bundle, Cause, CertificateError, InvalidBundle, JsonObject

OLD = "old certificate"  # it may expire
OVERDUE = timedelta(minutes=5)  # a replica takes a due step within seconds


class Status(Struct, frozen=True):
    """The content of the Secret, and the published certificates."""

    certificates: list[tuple[str, Certificate]]  # the role of each certificate in the Secret, and the certificate
    webhooks: dict[str, bool]  # the name of each webhook, and whether its `caBundle` trusts the serving certificate
    next: PlannedStep | None  # the next step of the replicas; None if the Secret isn't the webhook's own
    problem: str  # what is wrong, and what to do; empty without a problem
    difference: str  # which webhooks trust other certificates than the Secret, and what to do; empty without any


def read_status(objects: CertificateObjects, now: datetime) -> Status:
    """Read the Secret, and the configuration if possible. Raises CertificateError if the Secret can't be read."""
    problem = ""
    configuration = JsonObject()
    try:
        configuration = objects.read_configuration() or {}
    except CertificateError as error:
        problem = str(error)
    published = ca_bundles(configuration)
    stored = bundles.read(secret := objects.read_secret())
    leaf, key, ca_bundle = (bundles.decoded(secret.get("data"), field) for field in (CERTIFICATE, KEY, CA))
    if isinstance(stored, Bundle):
        rows = _rows(stored)
        step = next_step(observe(stored, None if problem else tuple(published.values()), now), now)
        secret_problem = _overdue_problem(step, read(leaf), now)
    else:
        rows = _foreign_rows(leaf, ca_bundle)
        step = None
        secret_problem = _invalid_problem(stored, leaf, key, now)
    webhooks = {name: _trusts(one, leaf, now) for name, one in published.items()}
    difference = _difference(published, ca_bundle, now, exact=isinstance(stored, Bundle))
    problems = filter(None, (problem, secret_problem, _names_problem(hosts(configuration), leaf)))
    return Status(rows, webhooks, step, "; ".join(problems), difference)


def _rows(bundle: Bundle) -> list[tuple[str, Certificate]]:
    rows = [("serving certificate", bundle.serving.certificate)]
    rows += [("CA", bundle.ca.certificate)] if bundle.ca else []
    rows += [("next certificate", bundle.next.certificate)] if bundle.next else []
    rows += [(OLD, one.certificate.encode()) for one in bundle.retiring]
    return [(what, read(pem)) for what, pem in rows]


def _foreign_rows(leaf: bytes, ca_bundle: bytes) -> list[tuple[str, Certificate]]:
    rows = []
    for what, others, pem in (("serving certificate", "intermediate CA", leaf), ("CA", "CA", ca_bundle)):
        with suppress(BadCertificate):  # a missing certificate has no row
            rows += [(others if number else what, read(one)) for number, one in enumerate(split(pem))]
    return rows


def _overdue_problem(step: PlannedStep, leaf: Certificate, now: datetime) -> str:
    if leaf.is_valid(now) and now - step.due < OVERDUE:
        return ""
    return f"step {step.step} is overdue ({step.why}); /readyz?verbose of each replica shows the cause"


def _invalid_problem(invalid: InvalidBundle, leaf: bytes, key: bytes, now: datetime) -> str:
    if invalid.cause is not Cause.FOREIGN:
        return str(invalid)
    try:
        if not key_matches(Issued(leaf, key)):
            return f"{KEY}: does not match {CERTIFICATE}"
        return "" if read(leaf).is_valid(now) else f"{CERTIFICATE}: expired or not valid yet; renew it"
    except BadCertificate as error:
        return f"{CERTIFICATE} or {KEY}: {error}"


def _names_problem(webhook_hosts: set[str], leaf: bytes) -> str:
    with suppress(BadCertificate):
        names = {name.lower() for name in read(leaf).names}
        missing = sorted(host for host in webhook_hosts if not names & {host, f"*.{host.partition('.')[2]}"})
        return f"{CERTIFICATE}: lacks {', '.join(missing)}, the name that the API server calls" if missing else ""
    return ""


def _difference(published: dict[str, bytes], ca_bundle: bytes, now: datetime, *, exact: bool) -> str:
    """Compare each caBundle with the Secret. Unless `exact`, more CAs are fine: cert-manager's injector keeps them."""
    expected = set(valid_cas(ca_bundle, now))
    cas = {name: set(valid_cas(one, now)) for name, one in published.items()}
    if names := [name for name, valid in cas.items() if not expected <= valid or (exact and valid != expected)]:
        advice = "if this lasts for minutes, check /readyz?verbose of each replica, or the injector's log"
        return f"the caBundle of {', '.join(names)} differs from {CA} in the Secret; {advice}"
    return ""


def _trusts(published: bytes, leaf: bytes, now: datetime) -> bool:
    with suppress(BadCertificate):
        return read(leaf).is_valid(now) and bool(trust_anchor(leaf, b"".join(valid_cas(published, now))))
    return False
