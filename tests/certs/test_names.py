"""Names of a server: valid names are normalized, and invalid names raise a one-line error."""

import pytest

from certs.authority import BadCertificate, canonical, issue_ca, issue_leaf, read, service_domains
from tests.support.fake_certificate_cluster import NAMES
from tests.support.fake_clock import START

LABEL = "a" * 63
LONG = ".".join([LABEL] * 3 + ["a" * 61])

ACCEPTED = {
    "Webhook.NS.svc": "webhook.ns.svc",
    "webhook": "webhook",
    "_a.b_c.x-y.1a": "_a.b_c.x-y.1a",
    "*.ns.svc": "*.ns.svc",
    "1.ns.svc": "1.ns.svc",
    "127.0.0.1": "127.0.0.1",
    "0:0:0:0:0:0:0:1": "::1",
    LONG: LONG,  # 253 characters
}


@pytest.mark.parametrize(("name", "normalized"), ACCEPTED.items(), ids=ACCEPTED)
def test_a_valid_name_is_normalized_to_the_form_in_a_certificate(name, normalized):
    assert canonical(name) == normalized
    assert read(issue_leaf(issue_ca(START), [name], START).certificate).names == (normalized,)


REFUSED = {
    "a URL": "https://webhook.ns.svc",
    "a port": "webhook.ns.svc:443",
    "an address with a zone": "fe80::1%eth0",
    "a network": "10.0.0.0/8",
    "an IPv4 address out of range": "10.0.0.256",
    "a trailing space": "webhook.ns.svc ",
    "a trailing newline": "webhook.ns.svc\n",
    "a trailing dot": "webhook.ns.svc.",
    "an empty label": "webhook..svc",
    "a trailing hyphen": "webhook-.ns.svc",
    "a wildcard inside": "a.*.svc",
    "a non-ASCII letter": "b\u00fccher.example",
    "a non-ASCII letter whose lower case is k": "\u212aube.svc",
    "a label of 64 characters": f"{LABEL}a.svc",
    "more than 253 characters": f"{LONG}a",
}


@pytest.mark.parametrize("name", REFUSED.values(), ids=REFUSED)
def test_an_invalid_name_raises_a_one_line_error(name):
    with pytest.raises(BadCertificate) as raised:
        canonical(name)
    assert "is neither a DNS name nor an IP address; omit scheme, port and path" in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1
    assert len(str(raised.value)) < 250


SERVICES = {
    "Services of one namespace": (NAMES, ("kubevirt-scheduler.svc", "kubevirt-scheduler.svc.cluster.local")),
    "Services of two namespaces": (("a.x.svc", "b.y.svc", "c.x.svc"), ("x.svc", "y.svc")),
    "a Service and another DNS name": (("a.x.svc", "example.com"), ()),
    "a Service and an IP address": (("a.x.svc", "10.0.0.1"), ()),
    "no names": ((), ()),
}


@pytest.mark.parametrize(("names", "domains"), SERVICES.values(), ids=SERVICES)
def test_service_domains_returns_the_domains_of_the_namespaces(names, domains):
    assert service_domains(names) == domains
