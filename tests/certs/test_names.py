"""Names of a server: taken as a certificate holds them, or refused in one line."""

import pytest

from certs.authority import issue_ca, issue_leaf, read
from certs.names import LONGEST, BadName, canonical, namespaces
from tests.support.fake_certificate_cluster import NAMES, START

LABEL = "a" * 63
LONG = ".".join([LABEL] * 3 + ["a" * 61])

TAKEN = {
    "Webhook.NS.svc": "webhook.ns.svc",
    "webhook": "webhook",
    "_a.b_c.x-y.1a": "_a.b_c.x-y.1a",
    "*.ns.svc": "*.ns.svc",
    "1.ns.svc": "1.ns.svc",
    "127.0.0.1": "127.0.0.1",
    "0:0:0:0:0:0:0:1": "::1",
    LONG: LONG,
}


@pytest.mark.parametrize(("name", "written"), TAKEN.items(), ids=TAKEN)
def test_a_name_is_written_as_a_certificate_holds_it(name, written):
    assert canonical(name) == written
    assert read(issue_leaf(issue_ca(START), [name], START).certificate).names == (written,)


REFUSED = {
    "nothing": "",
    "a URL": "https://webhook.ns.svc",
    "a port": "webhook.ns.svc:443",
    "an address in brackets": "[::1]",
    "an address with a zone": "fe80::1%eth0",
    "a network": "10.0.0.0/8",
    "no address any more": "10.0.0.256",
    "a blank in it": "web hook.ns.svc",
    "a blank after it": "webhook.ns.svc ",
    "a line's end": "webhook.ns.svc\n",
    "two in one": "a.ns.svc,b.ns.svc",
    "a dot at the end": "webhook.ns.svc.",
    "an empty label": "webhook..svc",
    "a hyphen first": "-webhook.ns.svc",
    "a hyphen last": "webhook-.ns.svc",
    "a star inside": "a.*.svc",
    "a star alone": "*",
    "letters of other alphabets": "b\u00fccher.example",
    "a letter that is written small as k": "\u212aube.svc",
    "a label of 64 characters": f"{LABEL}a.svc",
    "over 253 characters": f"{LONG}a",
}


@pytest.mark.parametrize("name", REFUSED.values(), ids=REFUSED)
def test_what_is_neither_a_dns_name_nor_an_address_is_refused_in_one_line(name):
    with pytest.raises(BadName) as refused:
        canonical(name)
    assert "is neither a DNS name nor an IP address; write it alone" in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
    assert len(str(refused.value)) < 250


def test_the_longest_name_is_one_character_shorter_than_the_first_that_is_refused():
    assert len(LONG) == LONGEST == len(REFUSED["over 253 characters"]) - 1


SERVICES = {
    "of one namespace": (NAMES, ("kubevirt-scheduler.svc", "kubevirt-scheduler.svc.cluster.local")),
    "of two": (("a.x.svc", "b.y.svc", "c.x.svc"), ("x.svc", "y.svc")),
    "and a name beside them": (("a.x.svc", "example.com"), ()),
    "and an address beside them": (("a.x.svc", "10.0.0.1"), ()),
    "none": ((), ()),
}


@pytest.mark.parametrize(("names", "domains"), SERVICES.values(), ids=SERVICES)
def test_services_give_the_domains_of_their_namespaces(names, domains):
    assert namespaces(names) == domains
