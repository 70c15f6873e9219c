"""Encoding and decoding of the Secret: a written bundle is read back, and a damaged field is reported."""

import base64
import json
import ssl
from copy import deepcopy
from datetime import timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from msgspec.structs import replace

from certs import authority
from certs import secret as secrets
from certs.authority import Issued, issue_ca, issue_leaf, split
from certs.secret import ANNOTATION, Bundle, Cause, InvalidBundle, RetiringCA, read, written
from tests.support.fake_certificate_cluster import NAME, NAMES, NAMESPACE, secret
from tests.support.fake_clock import START

CA, OTHER, OLD = (issue_ca(START) for _ in range(3))
LEAF = issue_leaf(CA, NAMES, START)
SETTLED = Bundle(CA, LEAF)
WITH_NEXT_CA = replace(SETTLED, next_ca=OTHER)
ROTATING = replace(
    WITH_NEXT_CA,
    published=START + timedelta(microseconds=1),
    retiring=(RetiringCA(OLD.certificate.decode(), START + timedelta(days=3)),),
)


def stored(bundle=ROTATING):
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


@pytest.mark.parametrize("bundle", [SETTLED, WITH_NEXT_CA, ROTATING], ids=["settled", "next CA", "two rotations"])
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
    assert (data["tls.crt"], data["tls.key"], data["ca.crt"]) == (LEAF.certificate, LEAF.key, CA.certificate)


def test_the_ca_bundle_has_each_ca_once_and_stays_the_same_when_the_next_ca_starts_to_sign():
    assert sorted(split(ROTATING.ca_bundle())) == sorted([CA.certificate, OTHER.certificate, OLD.certificate])
    assert decoded(stored())["ca.crt"] == ROTATING.ca_bundle()
    signing = Bundle(OTHER, LEAF, retiring=(RetiringCA(CA.certificate.decode(), START), *ROTATING.retiring * 2))
    assert signing.ca_bundle() == ROTATING.ca_bundle()


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
NO_MATCH = "the key of a CA does not match its certificate"
# The changed field, its content, and the error message.
DAMAGED = {
    **{f"no {field}": (field, None, f"'{field}' is missing") for field in decoded(stored())},
    "an empty field": ("tls.crt", b"", "'tls.crt' is missing"),
    **{
        f"garbage in {field}": (field, b"garbage", "contains no")
        for field in decoded(stored())
        if field != "state.json"
    },
    "the tls.key of another certificate": ("tls.key", CA.key, "tls.key does not match tls.crt"),
    "the next-ca.key of another certificate": ("next-ca.key", CA.key, NO_MATCH),
    "the ca.key of another certificate": ("ca.key", LEAF.key, NO_MATCH),
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
    "a CA": (Bundle(CENTURY_CA, issue_leaf(CENTURY_CA, NAMES, START)), 365),
    "a next CA": (replace(SETTLED, next_ca=CENTURY_CA), 365),
    "a retiring CA": (replace(SETTLED, retiring=(RetiringCA(CENTURY_CA.certificate.decode(), START),)), 365),
    "a leaf": (Bundle(CA, issue_leaf(CA, NAMES, START, timedelta(days=31))), 30),
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


def test_a_pair_that_can_not_be_a_ca_is_reported():
    leaf = issue_leaf(CA, NAMES, START)
    for bundle in replace(SETTLED, authority=leaf), replace(SETTLED, next_ca=leaf):
        assert str(read(stored(bundle))).endswith("contains a certificate that is not a CA's")


def test_a_ca_whose_key_can_not_sign_a_serving_certificate_is_reported():
    key = ed25519.Ed25519PrivateKey.generate()
    builder = authority.x509.CertificateBuilder(*[authority.x509.Name([])] * 2, key.public_key(), 7, START, START)
    builder = builder.add_extension(authority.x509.BasicConstraints(ca=True, path_length=0), critical=True)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    other = Issued(builder.sign(key, None).public_bytes(Encoding.PEM), pem)
    for bundle in replace(SETTLED, authority=other), replace(SETTLED, next_ca=other):
        assert str(read(stored(bundle))).endswith("the CA's key is not an elliptic-curve key")


def test_a_certificate_with_any_flipped_bit_is_read_or_reported_as_damaged():
    found, der = stored(WITH_NEXT_CA), ssl.PEM_cert_to_DER_cert(OTHER.certificate.decode())
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
    assert found == replace(WITH_NEXT_CA, published=START)


def test_a_field_in_base64_is_decoded():
    assert secrets.decoded({"tls.crt": "eA=="}, "tls.crt") == b"x"
    damaged = {"tls.crt": "!"}
    assert [secrets.decoded(one, "tls.crt") for one in ({}, None, damaged)] == [b""] * 3
    assert str(read(stored() | {"data": damaged})).endswith("is damaged: Only base64 data is allowed")
