"""The names by which a server is called: DNS names and IP addresses, written as a certificate holds them."""

import re
from collections.abc import Iterable
from ipaddress import ip_address

LONGEST = 253  # characters: RFC 1035 allows 255 bytes, of which the wire takes two
QUOTED = 60  # characters

# The underscore is in no host's name, but in some that are called; the first label may stand for any.
_LABEL = "[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_DNS = re.compile(rf"(\*\.)?({_LABEL}\.)*(?![0-9]+$){_LABEL}")  # what ends in a number is a broken address


class BadName(ValueError):
    """A name that no certificate can hold, or that nobody is called by. Its text is one line."""


def canonical(name: str) -> str:
    """Return a DNS name or an IP address as a certificate holds it. Raises BadName where it is neither."""
    try:
        address = ip_address(name)
    except ValueError:
        lower = name.lower()
        if not name.isascii() or len(name) > LONGEST or not _DNS.fullmatch(lower):
            raise _bad(name) from None
        return lower
    if "%" in name:  # the zone of an IPv6 address means something on one machine alone
        raise _bad(name)
    return str(address)


def namespaces(names: Iterable[str]) -> tuple[str, ...]:
    """Return the domains of the namespaces whose Services these are; none where one is another kind of name.

    `a.ns.svc` gives `ns.svc`, `a.ns.svc.cluster.local` gives `ns.svc.cluster.local`.
    """
    labels = [name.split(".") for name in names]
    if not all(len(parts) >= 3 and parts[2] == "svc" for parts in labels):
        return ()
    return tuple(dict.fromkeys(".".join(parts[1:]) for parts in labels))


def _bad(name: str) -> BadName:
    shown = ascii(name) if len(name) <= QUOTED else f"{name[:QUOTED]!a} and {len(name) - QUOTED} characters more"
    return BadName(
        f"{shown} is neither a DNS name nor an IP address; write it alone, as webhook.shop.svc, 10.0.0.1 or ::1"
    )
