"""Validate and normalize the DNS names and IP addresses of a serving certificate."""

import re
from collections.abc import Iterable
from ipaddress import ip_address

MAX_NAME_LENGTH = 253  # characters: RFC 1035 allows 255 bytes, of which the wire format takes two
MAX_QUOTED_LENGTH = 60  # characters

# Host names have no underscore, but some names that clients call do. The first label may be a wildcard.
_LABEL = "[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_DNS = re.compile(rf"(\*\.)?({_LABEL}\.)*(?![0-9]+$){_LABEL}")  # a numeric last label means a malformed IP address


class BadName(ValueError):
    """A name that a certificate can't hold, or that no client can call. The message is one line."""


def canonical(name: str) -> str:
    """Return a DNS name or an IP address in the form that a certificate holds. Raises BadName for anything else."""
    try:
        address = ip_address(name)
    except ValueError:
        lower = name.lower()
        if not name.isascii() or len(name) > MAX_NAME_LENGTH or not _DNS.fullmatch(lower):
            raise _bad_name(name) from None
        return lower
    if "%" in name:  # the zone of an IPv6 address is valid on one machine only
        raise _bad_name(name)
    return str(address)


def service_domains(names: Iterable[str]) -> tuple[str, ...]:
    """Return the namespace domains of Service names. Returns nothing if one name is not a Service's.

    `a.ns.svc` gives `ns.svc`, `a.ns.svc.cluster.local` gives `ns.svc.cluster.local`.
    """
    labels = [name.split(".") for name in names]
    if not all(len(parts) >= 3 and parts[2] == "svc" for parts in labels):
        return ()
    return tuple(dict.fromkeys(".".join(parts[1:]) for parts in labels))


def _bad_name(name: str) -> BadName:
    shown = (
        ascii(name)
        if len(name) <= MAX_QUOTED_LENGTH
        else f"{name[:MAX_QUOTED_LENGTH]!a} and {len(name) - MAX_QUOTED_LENGTH} more characters"
    )
    return BadName(
        f"{shown} is neither a DNS name nor an IP address; omit scheme, port and path, for example webhook.shop.svc, "
        "10.0.0.1 or ::1"
    )
