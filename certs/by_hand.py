"""What a person asks for: how the certificates are doing, a new one now, another CA now, or what that would mean."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from certs import bundle as bundles
from certs.authority import BadCertificate, Certificate, Issued, fits, read, split
from certs.bundle import Bundle, Flaw
from certs.chain import anchor, sound
from certs.cluster import Cause, Place, Trouble, ca_bundles, hosts
from certs.renewal import Next, Policy, Step, next_step
from certs.rotate import AFTER_A_LOST_RACE, EVERY, Clock, Passed, one_pass
from certs.serving import CA, CERTIFICATE, KEY
from certs.steps import taken

# An API server that restarts is away for half a minute. Whoever calls `rotate-ca` a second time may begin a second one.
RESTARTED_AFTER = 60.0  # seconds
# A replica takes a step within seconds, and asks again after half a minute.
NEGLECTED = timedelta(minutes=5)
SIGNED = timedelta(days=1)  # the longest --tls-spread: how long a bundle spreads is a setting of the replicas

Wait = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Status:
    """What is in the Secret and what is published. `problem` is empty while all is well, `next` None for a foreign one.

    `webhooks` has for each webhook what its `caBundle` is, and whether that trusts the serving certificate.
    """

    certificates: list[tuple[str, Certificate]]
    webhooks: dict[str, tuple[str, bool]]
    next: Next | None
    problem: str


def status(place: Place, now: datetime, policy: Policy) -> Status:
    """Read the Secret, and the configuration if it is there. Raises Trouble."""
    try:
        configuration, problem = place.read_configuration() or {}, ""
    except Trouble as trouble:
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
    rows += [("coming CA", bundle.coming.certificate)] if bundle.coming else []
    rows += [("leaving CA", one.certificate) for one in bundle.leaving]
    return [(what, read(pem)) for what, pem in rows]


def _foreign_rows(leaf: bytes, ca_bundle: bytes) -> list[tuple[str, Certificate]]:
    rows = []
    for what, others, pem in (("serving certificate", "intermediate CA", leaf), ("CA", "CA", ca_bundle)):
        with suppress(BadCertificate):  # what is not there has no row
            rows += [(others if number else what, read(one)) for number, one in enumerate(split(pem))]
    return rows


def _neglected(step: Next, leaf: Certificate, now: datetime) -> str:
    if leaf.is_valid(now) and now - step.due < (SIGNED if step.step is Step.SIGN else NEGLECTED):
        return ""
    return f"no replica has done what is due: {step.step}, {step.why}; /readyz?verbose of each says why"


def _wrong_in(flaw: Flaw, leaf: bytes, key: bytes, now: datetime) -> str:
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


def renew(place: Place, policy: Policy, now: Clock, wait: Wait) -> Passed:
    """Issue a new serving certificate under the same CA. Raises Trouble."""
    _ours(place)
    while True:
        passed = _pass(place, policy, now, wait, Step.RENEW)
        if passed.step.step in (Step.RENEW, Step.START):
            return passed


def rotate(place: Place, policy: Policy, now: Clock, wait: Wait, *, drop_old: bool) -> Iterator[str]:
    """Begin a rotation, or go on with one that has begun, and tell each step and each wait. Raises Trouble.

    It ends when the new CA signs, with `drop_old` when the old one is trusted no more, and neither is one that was to
    follow it. It may be broken off at any time: how far it has come stands in the Secret, and the replicas go on from
    there.
    """
    bundle, told = _ours(place), ""
    place.read_configuration()  # raises before anything is written: else the replicas would go on with what is refused
    old = _old(bundle, drop_old=drop_old)
    while not _is_over(bundle, old, drop_old=drop_old):
        passed = _pass(place, policy, now, wait, _forced(bundle, old, drop_old=drop_old))
        bundle, step = passed.bundle, passed.step
        if passed.trouble and passed.trouble.cause not in (Cause.CONFLICT, Cause.UNREACHABLE):
            raise passed.trouble
        if passed.due and step.step is not Step.PUBLISH:
            yield f"{step.step}: {step.why}"
            continue
        if _is_over(bundle, old, drop_old=drop_old):  # a replica was faster, and what is next is no part of it
            break
        if told != step.step:
            told = step.step
            yield f"waiting for {step.step} until {step.due:%Y-%m-%d %H:%M:%S} UTC at least"
        wait(min(EVERY, max(AFTER_A_LOST_RACE, (step.due - now()).total_seconds())))
    yield from (f"trusted until {one.until:%Y-%m-%d %H:%M:%S} UTC: the CA that has left" for one in bundle.leaving)


def _old(bundle: Bundle, *, drop_old: bool) -> frozenset[bytes]:
    """Whoever has taken the key of the CA that signs has that of the coming one: both are in the Secret.

    One that comes in a hurry was made by this command, when it was called before.
    """
    coming = {bundle.coming.certificate} if drop_old and bundle.coming and not bundle.hurry else set()
    return frozenset({bundle.authority.certificate} | coming)


def _forced(bundle: Bundle, old: frozenset[bytes], *, drop_old: bool) -> Step | None:
    if bundle.authority.certificate not in old:
        return None
    if not bundle.coming:
        return Step.INTRODUCE
    if bundle.coming.certificate in old:
        return Step.REPLACE
    return Step.HURRY if drop_old and not bundle.hurry else None


def _is_over(bundle: Bundle, old: frozenset[bytes], *, drop_old: bool) -> bool:
    return bundle.authority.certificate not in old and not (drop_old and _still_trusts(bundle, old))


def _still_trusts(bundle: Bundle, old: frozenset[bytes]) -> bool:
    return any(one.certificate in old for one in bundle.leaving)


def plan(found: Bundle, now: datetime, policy: Policy, *, drop_old: bool) -> Iterator[Next]:
    """Yield each step of a rotation, with the time from which on it may be taken. Nothing is written."""
    bundle, old, time = found, _old(found, drop_old=drop_old), now
    while bundle.authority.certificate in old or _still_trusts(bundle, old):
        forced = _forced(bundle, old, drop_old=drop_old)
        step = next_step(bundle, [bundle.ca_bundle()], time, policy)
        if forced:
            step = Next(forced, "it was asked for", time)
        time = max(time, step.due)
        bundle = taken(step.step, bundle, time, policy)
        yield replace(step, due=time)


def planned(place: Place, now: datetime, policy: Policy, *, drop_old: bool) -> list[Next]:
    """Return the steps that a rotation would take from here. Raises Trouble."""
    return list(plan(_ours(place), now, policy, drop_old=drop_old))


def _ours(place: Place) -> Bundle:
    found = bundles.read(place.read_secret())
    if isinstance(found, Flaw):
        raise found
    return found


def _pass(place: Place, policy: Policy, now: Clock, wait: Wait, forced: Step | None) -> Passed:
    left = RESTARTED_AFTER
    while True:
        try:
            return one_pass(place, policy, now, forced)
        except Trouble as trouble:
            if trouble.cause is not Cause.CONFLICT and (trouble.cause is not Cause.UNREACHABLE or left <= 0):
                raise
            pause = AFTER_A_LOST_RACE if trouble.cause is Cause.CONFLICT else EVERY
        wait(pause)
        left -= pause
