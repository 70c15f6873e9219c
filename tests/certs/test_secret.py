"""Encoding and decoding of the Secret: a written bundle is read back, and a damaged field is reported."""

import base64
import json
import ssl
from copy import deepcopy
from datetime import timedelta

import pytest
from msgspec.structs import replace

from certs import secret as secrets
from certs.authority import Issued, issue, key_matches, split
from certs.authority import read as read_certificate
from certs.secret import ANNOTATION, Bundle, Cause, InvalidBundle, Retiring, read, written
from tests.support.authority import issue_ca, issue_leaf
from tests.support.fake_certificate_cluster import NAME, NAMES, NAMESPACE, secret
from tests.support.fake_clock import START

SERVING, OTHER, OLD = (issue(NAMES, START) for _ in range(3))
CA = issue_ca(START)
LEAF = issue_leaf(CA, NAMES, START)
SETTLED = Bundle(SERVING)
WITH_NEXT = replace(SETTLED, next=OTHER)
RENEWING = replace(
    WITH_NEXT,
    published=START + timedelta(microseconds=1),
    retiring=(Retiring(OLD.certificate.decode(), START + timedelta(days=3)),),
)
OF_A_CA = replace(RENEWING, serving=LEAF, ca=CA)


def stored(bundle=RENEWING):
    return written(bundle, secret())


def decoded(found):
    return {field: base64.b64decode(value) for field, value in found["data"].items()}


def changed(field, value):
    """The Secret with another value in one field; None removes the field."""
    found = stored()
    if value is None:
        del found["data"][field]
    else:
        found["data"][field] = base64.b64encode(value).decode()
    return found


@pytest.mark.parametrize(
    "bundle", [SETTLED, WITH_NEXT, RENEWING, OF_A_CA], ids=["settled", "next pair", "two renewals", "of a CA"]
)
def test_read_returns_the_bundle_that_was_written_and_its_repr_has_no_key(bundle):
    assert read(stored(bundle)) == bundle
    assert "PRIVATE" not in repr(bundle)


def test_a_bundle_is_written_beside_other_fields_and_replaces_an_earlier_one():
    before = stored()
    before["metadata"] |= {"resourceVersion": "7", "annotations": {"a": "b"}}
    before["data"]["mine"] = "eA=="
    unchanged = deepcopy(before)
    after = written(SETTLED, before)
    assert before == unchanged
    assert after["metadata"] == before["metadata"] | {"annotations": {"a": "b", ANNOTATION: "self"}}
    assert after == before | {"metadata": after["metadata"], "data": after["data"]}
    data = decoded(after)
    assert sorted(data) == ["ca.crt", "ca.key", "mine", "state.json", "tls.crt", "tls.key"]
    assert (data["tls.crt"], data["tls.key"], data["ca.crt"]) == (SERVING.certificate, SERVING.key, SERVING.certificate)


def test_the_ca_bundle_has_each_certificate_once_and_stays_the_same_when_the_next_one_is_served():
    assert sorted(split(RENEWING.ca_bundle())) == sorted([SERVING.certificate, OTHER.certificate, OLD.certificate])
    assert sorted(split(OF_A_CA.ca_bundle())) == sorted([CA.certificate, OTHER.certificate, OLD.certificate])
    assert decoded(stored())["ca.crt"] == RENEWING.ca_bundle()
    renewed = Bundle(OTHER, retiring=(Retiring(SERVING.certificate.decode(), START), *RENEWING.retiring * 2))
    assert renewed.ca_bundle() == RENEWING.ca_bundle()


def test_an_earlier_version_can_read_each_field():
    """It signs with `ca.key`, expects its certificate in `ca.crt`, and trusts only CAs."""
    data = decoded(stored())
    assert key_matches(Issued(data["tls.crt"], data["tls.key"]))
    assert data["ca.key"] == data["tls.key"]
    assert data["tls.crt"] in split(data["ca.crt"])
    assert key_matches(Issued(data["next-ca.crt"], data["next-ca.key"]))
    assert all(certificate.is_ca for certificate in map(read_certificate, split(data["ca.crt"])))
    state = json.loads(data["state.json"])
    assert [sorted(one) for one in (state, *state["retiring"])] == [["published", "retiring"], ["certificate", "until"]]


def test_an_empty_secret_is_read_as_missing():
    for data in ({}, {"data": None}, {"data": {}}, {"data": {"tls.crt": "", "tls.key": ""}}):
        found = read(secret() | data)
        text = f"Secret {NAMESPACE}/{NAME} is empty; the first replica fills it"
        assert (found.cause, str(found)) == (Cause.MISSING, text)


@pytest.mark.parametrize("annotations", [{}, {ANNOTATION: "Self"}], ids=str)
def test_a_secret_without_the_annotation_is_read_as_foreign(annotations):
    found = stored()
    found["metadata"]["annotations"] = annotations
    result = read(found)
    assert result.cause is Cause.FOREIGN
    assert f"Secret {NAMESPACE}/{NAME} contains ca.crt, ca.key, " in str(result)
    assert ANNOTATION in str(result)


def state(**content):
    return json.dumps({"published": None, "retiring": []} | content).encode()


RETIRING = {"certificate": OLD.certificate.decode(), "until": START.isoformat()}
NAIVE = "2026-11-21T12:00:00"
NO_MATCH = "a key does not match its certificate"
# The changed field, its content, and the error message.
DAMAGED = {
    **{f"no {field}": (field, None, f"'{field}' is missing") for field in decoded(stored())},
    "an empty field": ("tls.crt", b"", "'tls.crt' is missing"),
    **{
        f"garbage in {field}": (field, b"garbage", "contains no")
        for field in decoded(stored())
        if field != "state.json"
    },
    "the tls.key of another certificate": ("tls.key", OLD.key, "tls.key does not match tls.crt"),
    "the next-ca.key of another certificate": ("next-ca.key", OLD.key, NO_MATCH),
    "the ca.key of another certificate": ("ca.key", CA.key, NO_MATCH),
    "the ca.crt of another key": ("ca.crt", OLD.certificate, NO_MATCH),
    "not JSON": ("state.json", b"{", "Input data was truncated"),
    "deeply nested JSON": ("state.json", b'{"x":' * 100_000, "maximum recursion depth"),
    "a list": ("state.json", b"[]", "Expected `object`"),
    "a time without a time zone": ("state.json", state(published=NAIVE), "Expected `datetime` with a time"),
    "a leaf that retires": (
        "state.json",
        state(retiring=[RETIRING | {"certificate": LEAF.certificate.decode()}]),
        "contains a certificate that is not a CA's",
    ),
}


CENTURY_CA = issue_ca(START, timedelta(days=36500))
TOO_LONG = {
    "serving": (Bundle(issue(NAMES, START, timedelta(days=31))), 30),
    "next": (replace(SETTLED, next=CENTURY_CA), 365),
    "a CA": (Bundle(issue_leaf(CENTURY_CA, NAMES, START), ca=CENTURY_CA), 365),
}


@pytest.mark.parametrize(("bundle", "days"), TOO_LONG.values(), ids=TOO_LONG)
def test_a_certificate_that_lives_longer_than_those_of_the_webhook_is_reported_as_damage(bundle, days):
    """A thief of the token could have it trusted for a century."""
    result = read(stored(bundle))
    assert result.cause is Cause.DAMAGED
    assert f"lives longer than {days} days, so the webhook did not issue it" in str(result)


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize(("field", "value", "message"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_field_is_reported_but_its_content_is_not_quoted(field, value, message):
    result = read(changed(field, value))
    assert result.cause is Cause.DAMAGED
    assert str(result).startswith(f"Secret {NAMESPACE}/{NAME} is damaged: {message}")
    assert "\n" not in str(result)
    assert "garbage" not in str(result)


def test_a_certificate_that_can_not_be_trusted_directly_is_reported():
    for bundle in Bundle(LEAF), replace(SETTLED, next=LEAF):
        assert str(read(stored(bundle))).endswith("contains a certificate that is not a CA's")


def test_a_certificate_with_any_flipped_bit_is_read_or_reported_as_damaged():
    found, der = stored(WITH_NEXT), ssl.PEM_cert_to_DER_cert(OTHER.certificate.decode())
    invalid_bundles = 0
    for offset in range(len(der)):
        bad = ssl.DER_cert_to_PEM_cert(bytes([*der[:offset], der[offset] ^ 1, *der[offset + 1 :]]))
        found["data"]["next-ca.crt"] = base64.b64encode(bad.encode()).decode()
        result = read(found)
        invalid_bundles += isinstance(result, InvalidBundle)
        assert isinstance(result, Bundle) or (result.cause, "\n" in str(result)) == (Cause.DAMAGED, False)
    assert invalid_bundles > 100


def test_unknown_keys_of_the_state_are_ignored():
    found = read(changed("state.json", state(more=1, published=START.isoformat())))
    assert found == replace(WITH_NEXT, published=START)


def test_a_field_in_base64_is_decoded():
    assert secrets.decoded({"tls.crt": "eA=="}, "tls.crt") == b"x"
    damaged = {"tls.crt": "!"}
    assert [secrets.decoded(one, "tls.crt") for one in ({}, None, damaged)] == [b""] * 3
    assert str(read(stored() | {"data": damaged})).endswith("is damaged: Only base64 data is allowed")
