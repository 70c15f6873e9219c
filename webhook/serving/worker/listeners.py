"""The listening sockets, bound before anything else starts."""

import socket
from contextlib import ExitStack

BACKLOG = 1024
AUTO = "auto"  # IPv6 and IPv4, or IPv4 alone on a node without IPv6


class CannotListen(OSError):
    """The server can't listen on an address. The message is one line that names the address."""


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 picks a free port. Raises CannotListen."""
    if host == AUTO:
        try:
            return listen("::", port)
        except CannotListen:
            return listen("0.0.0.0", port)  # noqa: S104 (a pod's address)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with ExitStack() as cleanup:
            listener = cleanup.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted sockets inherit it
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # whatever net.ipv6.bindv6only is
            listener.bind(address)
            listener.listen(BACKLOG)
            cleanup.pop_all()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "no address"
        raise CannotListen(f"cannot listen on {_host_port(host, port)}: {reason}") from None
    return listener


def _host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def address_of(listener: socket.socket) -> str:
    """Return a listener's address in URL form: `127.0.0.1:8443`, `[::1]:8443`."""
    return _host_port(*listener.getsockname()[:2])
