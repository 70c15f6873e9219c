"""The next step with its due time and reason, and what each step changes in a bundle."""

from datetime import timedelta
from functools import partial

import pytest
from msgspec.structs import replace

from certs.authority import issue, read
from certs.rotation import Step, apply_step, drop_old, next_step, observe, plan
from certs.secret import Bundle, Retiring
from tests.support.authority import issue_ca, issue_leaf
from tests.support.fake_certificate_cluster import NAMES
from tests.support.fake_clock import START

DAY, MINUTE, TICK = timedelta(days=1), timedelta(minutes=1), timedelta(seconds=1)
HOUR = timedelta(hours=1)

SERVING, NEXT, OLD = (issue(NAMES, START) for _ in range(3))
CA = issue_ca(START)

SETTLED = Bundle(SERVING)
WITH_NEXT = replace(SETTLED, next=NEXT)
PUBLISHED = replace(WITH_NEXT, published=START)
WITH_RETIRING = replace(SETTLED, retiring=(Retiring(OLD.certificate.decode(), START + DAY),))
RENEWING = replace(PUBLISHED, retiring=WITH_RETIRING.retiring)

END, RENEWAL_TIME = START + 30 * DAY, START + 20 * DAY
LATER, SERVE_TIME = START + MINUTE, START + 5 * MINUTE


def issued_at(now, names=NAMES):
    return Bundle(issue(names, now))


NAMES_OF_ANOTHER_NAMESPACE = ("webhook.restored.svc",)
NO_NAMES, ONE_NAME_LESS = (), NAMES[1:2]
ONE_NAME_MORE = (*NAMES, "other.kubevirt-scheduler.svc")
FUTURE = issued_at(START + 61 * DAY)
EXPIRED_NEXT = replace(WITH_NEXT, next=issue(NAMES, START - 40 * DAY))
HIDDEN = replace(SETTLED, retiring=(Retiring(OLD.certificate.decode(), START + 91 * DAY),))
# As an earlier version leaves it: a CA signed the certificate, and the next CA has no names.
OF_A_CA = Bundle(issue_leaf(CA, NAMES, START), ca=CA)
WITH_NEXT_CA = replace(OF_A_CA, next=issue_ca(START), published=START)
OF_ANOTHER_CA = replace(OF_A_CA, ca=issue_ca(START))
OF_AN_EXPIRED_CA = Bundle(issue_leaf(CA, NAMES, START), ca=issue_ca(START - 366 * DAY))

A_THIRD = "a third of the certificate's lifetime is left"
SPREAD_IS_OVER = "every API server has had time to read the next certificate"
# The observed bundle, what differs from START and NAMES, the step, its due time, and words of its reason.
TABLE = {
    # The lifetime of a bundle.
    "new bundle": (SETTLED, {}, "start", RENEWAL_TIME, A_THIRD),
    "a third is left": (SETTLED, {"now": RENEWAL_TIME}, "start", RENEWAL_TIME, A_THIRD),
    "expired": (SETTLED, {"now": END}, "start", END, "the certificate has expired"),
    # The renewal.
    "next is not published": (WITH_NEXT, {"now": LATER}, "renew", LATER + 5 * MINUTE, SPREAD_IS_OVER),
    "next is published": (PUBLISHED, {"now": LATER}, "renew", SERVE_TIME, SPREAD_IS_OVER),
    "next has expired": (EXPIRED_NEXT, {}, "start", START, "the next certificate has expired"),
    "an old one is hidden": (HIDDEN, {}, "drop", START, "is trusted longer than any can live"),
    "an old one is left": (WITH_RETIRING, {}, "drop", START + DAY, "the old certificate has expired"),
    # Unexpected states.
    "not yet valid": (FUTURE, {}, "start", START, "the certificate is not valid yet: the clock was set back"),
    "of another CA": (OF_ANOTHER_CA, {}, "start", START, "the trusted certificate did not sign the serving one"),
    "of an expired CA": (OF_AN_EXPIRED_CA, {}, "start", START, "the certificate has expired"),
    # Earlier versions.
    "of a CA": (OF_A_CA, {}, "start", START, "a CA signed the certificate, as in earlier versions"),
    "with a next CA": (WITH_NEXT_CA, {}, "start", START, f"the next certificate lacks {', '.join(NAMES)}"),
    # Names.
    "lacks a name": (SETTLED, {"names": ONE_NAME_MORE}, "start", START, f"lacks {ONE_NAME_MORE[-1]}"),
    "next lacks a name": (PUBLISHED, {"names": ONE_NAME_MORE}, "start", START, "the next certificate lacks other."),
    "has an extra name": (SETTLED, {"names": ONE_NAME_LESS}, "start", RENEWAL_TIME, A_THIRD),
    "no names": (SETTLED, {"names": NO_NAMES}, "start", RENEWAL_TIME, A_THIRD),
    "restored in another namespace": (SETTLED, {"names": NAMES_OF_ANOTHER_NAMESPACE}, "start", START, "lacks"),
}


@pytest.mark.parametrize(("bundle", "changes", "expected", "due", "why"), TABLE.values(), ids=TABLE)
def test_next_step_returns_the_step_its_due_time_and_the_reason(bundle, changes, expected, due, why):
    found = next_step(bundle, **{"now": START, "names": NAMES} | changes)
    assert (found.step, found.due) == (expected, due)
    assert why in found.why


# The bundle, the caBundles that were read at LATER, and the time since which every webhook trusts the next pair.
OBSERVED = {
    "no next pair": (SETTLED, (SETTLED.ca_bundle(),), None),
    "every caBundle has it": (WITH_NEXT, (WITH_NEXT.ca_bundle(),) * 2, LATER),
    "no webhooks": (WITH_NEXT, (), LATER),
    "observed before": (PUBLISHED, (PUBLISHED.ca_bundle(),) * 2, START),
    "one of two webhooks": (PUBLISHED, (WITH_NEXT.ca_bundle(), SETTLED.ca_bundle()), None),
    "one caBundle emptied": (PUBLISHED, (PUBLISHED.ca_bundle(), b""), None),
    "configuration unreadable": (PUBLISHED, None, None),
    "an hour in the future": (replace(WITH_NEXT, published=LATER + HOUR), (), LATER + HOUR),
    "over an hour in the future": (replace(WITH_NEXT, published=LATER + HOUR + TICK), (), LATER),
}


@pytest.mark.parametrize(("bundle", "published", "since"), OBSERVED.values(), ids=OBSERVED)
def test_observe_records_since_when_every_webhook_trusts_the_next_pair(bundle, published, since):
    assert observe(bundle, published, LATER) == replace(bundle, published=since)


# Steps


def names_of(issued):
    return read(issued.certificate).names


def test_a_renewal_trusts_one_certificate_then_two_then_one():
    started = apply_step(Step.START, PUBLISHED, START, NAMES)
    assert started.next not in (None, NEXT)
    assert replace(started, next=None) == SETTLED
    published = replace(started, published=START)
    renewed = apply_step(Step.RENEW, published, SERVE_TIME)
    assert renewed == Bundle(started.next, retiring=(Retiring(SERVING.certificate.decode(), END),))
    assert renewed.ca_bundle() == published.ca_bundle()
    assert apply_step(Step.DROP, renewed, END - TICK, NAMES) == renewed
    assert apply_step(Step.DROP, renewed, END, NAMES) == Bundle(started.next)


@pytest.mark.parametrize("bundle", [OF_A_CA, WITH_NEXT_CA], ids=["settled", "rotating"])
def test_the_ca_of_an_earlier_version_is_trusted_until_its_last_certificate_has_expired(bundle):
    started = apply_step(Step.START, bundle, START, NAMES)
    assert (started.serving, started.ca) == (OF_A_CA.serving, CA)
    assert names_of(started.next) == NAMES
    renewed = apply_step(Step.RENEW, started, SERVE_TIME)
    assert renewed == Bundle(started.next, retiring=(Retiring(CA.certificate.decode(), END),))


def test_a_new_certificate_has_the_given_names_or_those_of_the_old_one():
    for names, expected in ((ONE_NAME_MORE, ONE_NAME_MORE), (NO_NAMES, NAMES)):
        assert names_of(apply_step(Step.START, SETTLED, START, names).next) == expected
        assert names_of(apply_step(Step.START, SETTLED, END, names).serving) == expected


def drop_old_at(now):
    return drop_old(RENEWING, now)


def start_over_at(now):
    """As when the certificate is not valid yet, because the clock was set back."""
    return apply_step(Step.START, replace(FUTURE, retiring=RENEWING.retiring), now, NAMES)


def start_in_another_namespace_at(now):
    return replace(apply_step(Step.START, RENEWING, now, NAMES_OF_ANOTHER_NAMESPACE), serving=issue(NAMES, now))


# Nobody can tell when a certificate of the future expires.
@pytest.mark.parametrize(
    ("change", "retiring"),
    [
        (start_over_at, {OLD: START + DAY}),
        (drop_old_at, {OLD: START + MINUTE, SERVING: START + MINUTE}),
        (start_in_another_namespace_at, {OLD: START + DAY, SERVING: END}),
    ],
    ids=["start over", "drop old", "another namespace"],
)
def test_a_new_pair_is_served_at_once_and_the_old_one_retires_if_it_was_served(change, retiring):
    result = change(START)
    assert result.serving not in (SERVING, NEXT, FUTURE.serving)
    assert (result.next, result.published) == (None, None)
    assert result.retiring == tuple(Retiring(old.certificate.decode(), until) for old, until in retiring.items())
    assert names_of(result.serving) == NAMES


def test_no_step_keeps_a_certificate_that_somebody_has_hidden_among_the_retiring_ones():
    """A thief of the token could have certificates of his own trusted until 2099."""
    started = apply_step(Step.START, HIDDEN, START)
    for bundle in HIDDEN, started:
        assert OLD.certificate not in apply_step(Step.DROP, bundle, START).ca_bundle()
    assert OLD.certificate not in apply_step(Step.RENEW, started, START).ca_bundle()


@pytest.mark.parametrize("what", [Step.START, Step.RENEW])
def test_with_an_expired_certificate_each_step_starts_over_and_trusts_no_expired_one(what):
    result = apply_step(what, RENEWING, END)
    assert result.serving not in (SERVING, NEXT)
    assert result == Bundle(result.serving)


def test_after_many_renewals_only_the_latest_old_certificates_stay_trusted():
    dropping, renewing = [SETTLED], [SETTLED]
    for _ in range(10):
        dropping.append(drop_old(dropping[-1], START))
        renewing.append(apply_step(Step.RENEW, replace(renewing[-1], next=issue(NAMES, START)), START))
    for results in dropping, renewing:
        last = [each.serving.certificate.decode() for each in results[-1 - 8 : -1]]
        assert [each.certificate for each in results[-1].retiring] == last


def test_a_plan_has_each_step_until_the_old_certificate_is_dropped():
    steps = [(each.step, each.due) for each in plan(SETTLED, partial(apply_step, Step.START), START)]
    assert steps == [(Step.START, START), (Step.RENEW, SERVE_TIME), (Step.DROP, END)]
    assert [each.step for each in plan(RENEWING, None, START)] == [Step.RENEW, Step.DROP, Step.DROP]
    assert list(plan(SETTLED, None, START)) == []
