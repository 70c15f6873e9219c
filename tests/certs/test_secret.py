"""Encoding and decoding of the Secret: a written bundle is read back, and a damaged field is named."""

import base64
import json
import ssl
from copy import deepcopy
from dataclasses import replace
from datetime import timedelta

import pytest

from certs.authority import issue_ca, issue_leaf, split
from certs.secret import ANNOTATION, Bundle, Cause, InvalidBundle, RetiringCA, content, read, written
from tests.support.fake_certificate_cluster import NAME, NAMES, NAMESPACE, secret
from tests.support.fake_clock import START

CA, OTHER, OLD = (issue_ca(START, NAMES) for _ in range(3))
LEAF = issue_leaf(CA, NAMES, START)
SETTLED = Bundle(CA, LEAF)
WITH_NEXT_CA = replace(SETTLED, next_ca=OTHER)
ROTATING = replace(
    WITH_NEXT_CA,
    published=START + timedelta(microseconds=1),
    retiring=(RetiringCA(OLD.certificate, START + timedelta(days=3)),),
    drop_old_early=True,
)
BUNDLES = {"settled": SETTLED, "with a next CA": WITH_NEXT_CA, "during two rotations": ROTATING}


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


@pytest.mark.parametrize("bundle", BUNDLES.values(), ids=BUNDLES)
def test_read_returns_the_bundle_that_was_written(bundle):
    assert read(stored(bundle)) == bundle


def test_writing_a_bundle_preserves_other_fields_and_annotations():
    before = secret()
    before["metadata"] |= {"resourceVersion": "7", "annotations": {"a": "b"}}
    before["data"] = {"mine": "eA=="}
    unchanged = deepcopy(before)
    after = written(SETTLED, before)
    assert before == unchanged
    assert after["metadata"]["annotations"] == {"a": "b", ANNOTATION: "self"}
    assert after["metadata"]["resourceVersion"] == "7"
    assert after["data"]["mine"] == "eA=="
    assert {key: value for key, value in after.items() if key not in ("metadata", "data")} == {
        key: value for key, value in before.items() if key not in ("metadata", "data")
    }


def test_writing_a_bundle_without_next_ca_removes_the_fields_of_the_next_ca():
    after = written(SETTLED, stored())
    assert sorted(after["data"]) == ["ca.crt", "ca.key", "state.json", "tls.crt", "tls.key"]
    assert read(after) == SETTLED


def test_the_secret_has_the_three_fields_that_an_operator_mounts():
    data = decoded(stored())
    assert data["tls.crt"] == LEAF.certificate
    assert data["tls.key"] == LEAF.key
    assert data["ca.crt"] == ROTATING.ca_bundle()


def test_the_ca_bundle_has_each_ca_once_and_no_key():
    assert sorted(split(ROTATING.ca_bundle())) == sorted([CA.certificate, OTHER.certificate, OLD.certificate])
    assert b"PRIVATE" not in ROTATING.ca_bundle()
    twice = replace(ROTATING, retiring=ROTATING.retiring * 2)
    assert twice.ca_bundle() == ROTATING.ca_bundle()


def test_the_ca_bundle_stays_the_same_when_the_next_ca_starts_to_sign():
    after = Bundle(OTHER, LEAF, retiring=(RetiringCA(CA.certificate, START), *ROTATING.retiring))
    assert after.ca_bundle() == ROTATING.ca_bundle()


@pytest.mark.parametrize("bundle", BUNDLES.values(), ids=BUNDLES)
def test_repr_of_a_bundle_hides_all_keys(bundle):
    assert "PRIVATE" not in repr(bundle)


def test_an_empty_secret_is_read_as_missing():
    for data in ({}, {"data": None}, {"data": {}}, {"data": {"tls.crt": "", "tls.key": ""}}):
        found = read(secret() | data)
        assert isinstance(found, InvalidBundle)
        assert (found.cause, str(found)) == (
            Cause.MISSING,
            f"Secret {NAMESPACE}/{NAME} is empty; the first replica fills it",
        )


@pytest.mark.parametrize("annotation", [None, "cert-manager", "Self"])
def test_a_secret_without_the_annotation_is_read_as_foreign(annotation):
    found = stored()
    found["metadata"]["annotations"] = {} if annotation is None else {ANNOTATION: annotation}
    result = read(found)
    assert (result.cause, result.field) == (Cause.FOREIGN, "metadata")
    assert f"Secret {NAMESPACE}/{NAME} contains ca.crt, ca.key, " in str(result)
    assert ANNOTATION in str(result)


def state(**content):
    return json.dumps({"published": None, "leaving": [], "hurry": False} | content).encode()


RETIRING = {"certificate": OLD.certificate.decode(), "until": START.isoformat()}
DAMAGED = {
    **{f"no {field}": (field, None, field, "missing") for field in decoded(stored())},
    **{f"an empty {field}": (field, b"", field, "missing") for field in ("tls.crt", "ca.key", "state.json")},
    **{f"garbage in {field}": (field, b"garbage", field, "PEM") for field in decoded(stored()) if "json" not in field},
    "the tls.key of another certificate": ("tls.key", CA.key, "tls.key", "does not match tls.crt"),
    "the next-ca.key of another certificate": ("next-ca.key", CA.key, "next-ca.key", "does not match next-ca.crt"),
    "the ca.key of another certificate": ("ca.key", LEAF.key, "ca.key", "does not match any certificate in ca.crt"),
    "the ca.crt of another key": ("ca.crt", OLD.certificate, "ca.key", "does not match any certificate in ca.crt"),
    "a state that is not JSON": ("state.json", b"{", "state.json", "invalid JSON"),
    "a deeply nested state": ("state.json", b"[" * 100_000, "state.json", "invalid JSON"),
    "a state that is a list": ("state.json", b"[]", "state.json", "unexpected structure"),
    "leaving that is a number": ("state.json", state(leaving=1), "state.json", "unexpected structure"),
    "leaving that holds a string": ("state.json", state(leaving=["x"]), "state.json", "unexpected structure"),
    "a time that is not a date": ("state.json", state(published="soon"), "state.json", "invalid time"),
    "a time that is a number": (
        "state.json",
        state(leaving=[RETIRING | {"until": 7}]),
        "state.json",
        "invalid time",
    ),
    "a time without a time zone": (
        "state.json",
        state(published="2026-11-21T12:00:00"),
        "state.json",
        "time without a time zone",
    ),
    "a leaf in leaving": (
        "state.json",
        state(leaving=[RETIRING | {"certificate": LEAF.certificate.decode()}]),
        "state.json",
        "not a CA certificate",
    ),
    "an entry without a certificate in leaving": (
        "state.json",
        state(leaving=[{}]),
        "state.json",
        "contains no PEM certificate",
    ),
}


@pytest.mark.parametrize(("field", "value", "named", "what"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_field_is_named_but_its_content_is_not_quoted(field, value, named, what):
    result = read(changed(field, value))
    assert isinstance(result, InvalidBundle)
    assert (result.cause, result.field) == (Cause.DAMAGED, named)
    assert str(result).startswith(f"Secret {NAMESPACE}/{NAME}: {named}: ")
    assert what in str(result)
    assert "\n" not in str(result)
    assert "garbage" not in str(result)


@pytest.mark.parametrize("field", ["tls.crt", "ca.crt", "next-ca.crt"])
def test_a_certificate_with_any_flipped_bit_is_read_or_reported_as_damaged(field):
    found = stored(WITH_NEXT_CA)
    good = {"tls.crt": LEAF, "ca.crt": CA, "next-ca.crt": OTHER}[field].certificate.decode()
    invalid_bundles = 0
    for offset in range(len(der := ssl.PEM_cert_to_DER_cert(good))):
        bad = ssl.DER_cert_to_PEM_cert(bytes([*der[:offset], der[offset] ^ 1, *der[offset + 1 :]]))
        found["data"][field] = base64.b64encode(bad.encode()).decode()
        result = read(found)
        invalid_bundles += isinstance(result, InvalidBundle)
        assert isinstance(result, Bundle) or (result.cause, "\n" in str(result)) == (Cause.DAMAGED, False)
    assert invalid_bundles > 100


def test_a_leaf_instead_of_a_ca_is_reported():
    leaf = issue_leaf(CA, NAMES, START)
    found = stored(replace(SETTLED, authority=leaf))
    assert str(read(found)).endswith("ca.crt: not a CA certificate")
    found = stored(replace(WITH_NEXT_CA, next_ca=leaf))
    assert str(read(found)).endswith("next-ca.crt: not a CA certificate")


def test_invalid_base64_is_reported():
    found = stored()
    found["data"]["tls.crt"] = "!"
    assert str(read(found)).endswith("tls.crt: invalid base64")


def test_unknown_keys_of_the_state_are_ignored():
    assert read(changed("state.json", state(more=1, published=START.isoformat()))) == replace(
        WITH_NEXT_CA, published=START
    )


def test_the_state_of_a_rotation_is_ignored_without_a_next_ca():
    found = stored(SETTLED)
    found["data"]["state.json"] = base64.b64encode(state(published=START.isoformat(), hurry=True)).decode()
    assert read(found) == SETTLED


def test_content_decodes_a_field_of_any_secret():
    assert content({"data": {"tls.crt": "eA=="}}, "tls.crt") == b"x"
    assert [content(one, "tls.crt") for one in ({}, {"data": None}, {"data": {"tls.crt": "!"}})] == [b""] * 3
