"""The listening sockets, bound before anything else starts."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

BACKLOG = 1024


class CannotListen(OSError):
    """The server can't listen on an address. The message is one line that names the address."""


@dataclass(frozen=True, slots=True)
class Listeners:
    """Both listening sockets. They are bound first, so that a port in use is reported immediately."""

    https: socket.socket
    http: socket.socket


@contextmanager
def listening(host: str, https_port: int, http_port: int) -> Iterator[Listeners]:
    """Bind both ports and close them at the end; port 0 picks a free port. Raises CannotListen."""
    with _listen(host, https_port) as https, _listen(host, http_port) as http:
        yield Listeners(https, http)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with ExitStack() as cleanup:
            listener = cleanup.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted sockets inherit it
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
