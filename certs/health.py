"""How the certificates are doing: what is there, who trusts it, what comes next, and what is wrong."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from certs import bundle as bundles
from certs.authority import BadCertificate, Certificate, Issued, fits, read, split
from certs.bundle import Bundle, InvalidBundle
from certs.chain import anchor, sound
from certs.cluster import Cause, CertificateError, CertificateObjects, ca_bundles, hosts
from certs.renewal import PlannedStep, Policy, Step, next_step
from certs.serving import CA, CERTIFICATE, KEY

# A replica takes a step within seconds, and asks again after half a minute.
NEGLECTED = timedelta(minutes=5)
SIGNED = timedelta(days=1)  # the longest --tls-spread: how long a bundle spreads is a setting of the replicas


@dataclass(frozen=True, slots=True)
class Status:
    """What is in the Secret and what is published. `problem` is empty while all is well, `next` None for a foreign one.

    `webhooks` has for each webhook what its `caBundle` is, and whether that trusts the serving certificate.
    """

    certificates: list[tuple[str, Certificate]]
    webhooks: dict[str, tuple[str, bool]]
    next: PlannedStep | None
    problem: str


def status(place: CertificateObjects, now: datetime, policy: Policy) -> Status:
    """Read the Secret, and the configuration if it is there. Raises Trouble."""
    try:
        configuration, problem = place.read_configuration() or {}, ""
    except CertificateError as trouble:
        configuration, problem = {}, str(trouble)
    published = ca_bundles(configuration)
    secret = place.read_secret()
    found = bundles.read(secret)
    leaf, wanted = bundles.content(secret, CERTIFICATE), bundles.content(secret, CA)
    if isinstance(found, Bundle):
        wanted, rows = found.ca_bundle(), _rows(found)
        step = next_step(found, None if problem else tuple(published.values()), now, policy)
        wrong = _neglected(step, read(leaf), now)
    else:
        rows, step = _foreign_rows(leaf, wanted), None
        wrong = _wrong_in(found, leaf, bundles.content(secret, KEY), now)
    webhooks = {name: _compared(one, wanted, leaf, now) for name, one in published.items()}
    problems = filter(None, (problem, wrong, _not_for(hosts(configuration), leaf)))
    return Status(rows, webhooks, step, "; ".join(problems))


def _rows(bundle: Bundle) -> list[tuple[str, Certificate]]:
    rows = [("serving certificate", bundle.leaf.certificate), ("CA", bundle.authority.certificate)]
    rows += [("coming CA", bundle.next_ca.certificate)] if bundle.next_ca else []
    rows += [("leaving CA", one.certificate) for one in bundle.retiring]
    return [(what, read(pem)) for what, pem in rows]


def _foreign_rows(leaf: bytes, ca_bundle: bytes) -> list[tuple[str, Certificate]]:
    rows = []
    for what, others, pem in (("serving certificate", "intermediate CA", leaf), ("CA", "CA", ca_bundle)):
        with suppress(BadCertificate):  # what is not there has no row
            rows += [(others if number else what, read(one)) for number, one in enumerate(split(pem))]
    return rows


def _neglected(step: PlannedStep, leaf: Certificate, now: datetime) -> str:
    if leaf.is_valid(now) and now - step.due < (SIGNED if step.step is Step.SIGN else NEGLECTED):
        return ""
    return f"no replica has done what is due: {step.step}, {step.why}; /readyz?verbose of each says why"


def _wrong_in(flaw: InvalidBundle, leaf: bytes, key: bytes, now: datetime) -> str:
    if flaw.cause is not Cause.FOREIGN:
        return str(flaw)
    try:
        if not fits(Issued(leaf, key)):
            return f"{KEY}: is not the key of {CERTIFICATE}"
        return "" if read(leaf).is_valid(now) else f"{CERTIFICATE}: has expired, or is not valid yet; renew it"
    except BadCertificate as error:
        return f"{CERTIFICATE} or {KEY}: {error}"


def _not_for(called: set[str], leaf: bytes) -> str:
    with suppress(BadCertificate):
        names = {name.lower() for name in read(leaf).names}
        missing = sorted(host for host in called if not names & {host, f"*.{host.partition('.')[2]}"})
        return f"{CERTIFICATE}: is not for {', '.join(missing)}, by which the API server calls" if missing else ""
    return ""


def _compared(published: bytes, wanted: bytes, leaf: bytes, now: datetime) -> tuple[str, bool]:
    try:
        trusts = read(leaf).is_valid(now) and bool(anchor(leaf, b"".join(sound(published, now))))
    except BadCertificate:
        trusts = False
    if not published:
        return "empty", trusts
    same = published == wanted or _certificates(published) == _certificates(wanted) != b""
    return ("as in the Secret" if same else "not as in the Secret"), trusts


def _certificates(pem: bytes) -> bytes:
    with suppress(BadCertificate):
        return b"".join(split(pem))
    return b""
