"""What the Secret holds is read back as it was written, and what is no longer so is told by its field."""

import base64
import json
import ssl
from copy import deepcopy
from dataclasses import replace
from datetime import timedelta

import pytest

from certs.authority import issue_ca, issue_leaf, split
from certs.bundle import ANNOTATION, Bundle, InvalidBundle, RetiringCA, content, read, written
from certs.cluster import Cause
from tests.support.fake_certificate_cluster import NAME, NAMES, NAMESPACE, START, secret

CA, OTHER, OLD = (issue_ca(START, NAMES) for _ in range(3))
LEAF = issue_leaf(CA, NAMES, START)
PLAIN = Bundle(CA, LEAF)
COMING = replace(PLAIN, next_ca=OTHER)
FULL = replace(
    COMING,
    published=START + timedelta(microseconds=1),
    retiring=(RetiringCA(OLD.certificate, START + timedelta(days=3)),),
    hurry=True,
)
BUNDLES = {"plain": PLAIN, "with a coming CA": COMING, "in the middle of two rotations": FULL}


def stored(bundle=FULL):
    return written(bundle, secret())


def decoded(found):
    return {field: base64.b64decode(value) for field, value in found["data"].items()}


def changed(field, value):
    """The Secret with another content in one field; None takes it away."""
    found = stored()
    if value is None:
        del found["data"][field]
    else:
        found["data"][field] = base64.b64encode(value).decode()
    return found


@pytest.mark.parametrize("bundle", BUNDLES.values(), ids=BUNDLES)
def test_a_bundle_is_read_back_as_it_was_written(bundle):
    assert read(stored(bundle)) == bundle


def test_a_secret_that_is_written_keeps_all_else():
    before = secret()
    before["metadata"] |= {"resourceVersion": "7", "annotations": {"a": "b"}}
    before["data"] = {"mine": "eA=="}
    kept = deepcopy(before)
    after = written(PLAIN, before)
    assert before == kept
    assert after["metadata"]["annotations"] == {"a": "b", ANNOTATION: "self"}
    assert after["metadata"]["resourceVersion"] == "7"
    assert after["data"]["mine"] == "eA=="
    assert {key: value for key, value in after.items() if key not in ("metadata", "data")} == {
        key: value for key, value in before.items() if key not in ("metadata", "data")
    }


def test_a_coming_ca_goes_when_it_is_no_longer_there():
    after = written(PLAIN, stored())
    assert sorted(after["data"]) == ["ca.crt", "ca.key", "state.json", "tls.crt", "tls.key"]
    assert read(after) == PLAIN


def test_a_person_may_mount_the_secret():
    data = decoded(stored())
    assert data["tls.crt"] == LEAF.certificate
    assert data["tls.key"] == LEAF.key
    assert data["ca.crt"] == FULL.ca_bundle()


def test_the_ca_bundle_holds_each_ca_once_and_no_key():
    assert sorted(split(FULL.ca_bundle())) == sorted([CA.certificate, OTHER.certificate, OLD.certificate])
    assert b"PRIVATE" not in FULL.ca_bundle()
    twice = replace(FULL, retiring=FULL.retiring * 2)
    assert twice.ca_bundle() == FULL.ca_bundle()


def test_the_ca_bundle_stays_the_same_when_the_coming_ca_takes_over():
    after = Bundle(OTHER, LEAF, retiring=(RetiringCA(CA.certificate, START), *FULL.retiring))
    assert after.ca_bundle() == FULL.ca_bundle()


@pytest.mark.parametrize("bundle", BUNDLES.values(), ids=BUNDLES)
def test_no_key_shows_when_a_bundle_is_printed(bundle):
    assert "PRIVATE" not in repr(bundle)


def test_an_empty_secret_is_to_be_filled():
    for data in ({}, {"data": None}, {"data": {}}, {"data": {"tls.crt": "", "tls.key": ""}}):
        found = read(secret() | data)
        assert isinstance(found, InvalidBundle)
        assert (found.cause, str(found)) == (
            Cause.MISSING,
            f"Secret {NAMESPACE}/{NAME}: it is empty; the first replica fills it",
        )


@pytest.mark.parametrize("annotation", [None, "cert-manager", "Self"])
def test_a_secret_without_our_annotation_is_foreign_whatever_it_holds(annotation):
    found = stored()
    found["metadata"]["annotations"] = {} if annotation is None else {ANNOTATION: annotation}
    flaw = read(found)
    assert (flaw.cause, flaw.field) == (Cause.FOREIGN, "metadata")
    assert f"Secret {NAMESPACE}/{NAME}: it holds ca.crt, ca.key, " in str(flaw)
    assert ANNOTATION in str(flaw)


def state(**content):
    return json.dumps({"published": None, "leaving": [], "hurry": False} | content).encode()


LEFT = {"certificate": OLD.certificate.decode(), "until": START.isoformat()}
DAMAGED = {
    **{f"no {field}": (field, None, field, "is missing") for field in decoded(stored())},
    **{f"an empty {field}": (field, b"", field, "is missing") for field in ("tls.crt", "ca.key", "state.json")},
    **{
        f"garbage in {field}": (field, b"garbage", field, "in PEM")
        for field in decoded(stored())
        if "json" not in field
    },
    "another's tls.key": ("tls.key", CA.key, "tls.key", "is not the key of tls.crt"),
    "another's next-ca.key": ("next-ca.key", CA.key, "next-ca.key", "is not the key of next-ca.crt"),
    "another's ca.key": ("ca.key", LEAF.key, "ca.key", "is the key of no certificate in ca.crt"),
    "another's ca.crt": ("ca.crt", OLD.certificate, "ca.key", "is the key of no certificate in ca.crt"),
    "a state that is no JSON": ("state.json", b"{", "state.json", "is no JSON"),
    "a deep state": ("state.json", b"[" * 100_000, "state.json", "is no JSON"),
    "a state that is a list": ("state.json", b"[]", "state.json", "has another shape"),
    "leaving that is a number": ("state.json", state(leaving=1), "state.json", "has another shape"),
    "leaving that holds words": ("state.json", state(leaving=["x"]), "state.json", "has another shape"),
    "a time that is a word": ("state.json", state(published="soon"), "state.json", "holds a time that is none"),
    "a time that is a number": (
        "state.json",
        state(leaving=[LEFT | {"until": 7}]),
        "state.json",
        "a time that is none",
    ),
    "a time of no zone": ("state.json", state(published="2026-11-21T12:00:00"), "state.json", "without its zone"),
    "a leaf that leaves": (
        "state.json",
        state(leaving=[LEFT | {"certificate": LEAF.certificate.decode()}]),
        "state.json",
        "is no CA's certificate",
    ),
    "no certificate that leaves": ("state.json", state(leaving=[{}]), "state.json", "holds no certificate in PEM"),
}


@pytest.mark.parametrize(("field", "value", "named", "what"), DAMAGED.values(), ids=DAMAGED)
def test_what_is_damaged_is_told_by_its_field_and_never_by_its_content(field, value, named, what):
    flaw = read(changed(field, value))
    assert isinstance(flaw, InvalidBundle)
    assert (flaw.cause, flaw.field) == (Cause.DAMAGED, named)
    assert str(flaw).startswith(f"Secret {NAMESPACE}/{NAME}: {named}: ")
    assert what in str(flaw)
    assert "\n" not in str(flaw)
    assert "garbage" not in str(flaw)


@pytest.mark.parametrize("field", ["tls.crt", "ca.crt", "next-ca.crt"])
def test_a_certificate_with_a_wrong_bit_in_any_place_is_still_read_or_told_by_its_field(field):
    found = stored(COMING)
    good = {"tls.crt": LEAF, "ca.crt": CA, "next-ca.crt": OTHER}[field].certificate.decode()
    told = 0
    for place in range(len(der := ssl.PEM_cert_to_DER_cert(good))):
        bad = ssl.DER_cert_to_PEM_cert(bytes([*der[:place], der[place] ^ 1, *der[place + 1 :]]))
        found["data"][field] = base64.b64encode(bad.encode()).decode()
        flaw = read(found)
        told += isinstance(flaw, InvalidBundle)
        assert isinstance(flaw, Bundle) or (flaw.cause, "\n" in str(flaw)) == (Cause.DAMAGED, False)
    assert told > 100


def test_a_leaf_in_the_place_of_a_ca_is_told():
    leaf = issue_leaf(CA, NAMES, START)
    found = stored(replace(PLAIN, authority=leaf))
    assert str(read(found)).endswith("ca.crt: is no CA's certificate")
    found = stored(replace(COMING, next_ca=leaf))
    assert str(read(found)).endswith("next-ca.crt: is no CA's certificate")


def test_what_is_no_base64_is_told():
    found = stored()
    found["data"]["tls.crt"] = "!"
    assert str(read(found)).endswith("tls.crt: is no base64")


def test_a_later_version_may_add_to_the_state():
    assert read(changed("state.json", state(more=1, published=START.isoformat()))) == replace(COMING, published=START)


def test_what_a_rotation_noted_is_nothing_without_a_coming_ca():
    found = stored(PLAIN)
    found["data"]["state.json"] = base64.b64encode(state(published=START.isoformat(), hurry=True)).decode()
    assert read(found) == PLAIN


def test_a_field_of_any_secret_can_be_read():
    assert content({"data": {"tls.crt": "eA=="}}, "tls.crt") == b"x"
    assert [content(one, "tls.crt") for one in ({}, {"data": None}, {"data": {"tls.crt": "!"}})] == [b""] * 3
