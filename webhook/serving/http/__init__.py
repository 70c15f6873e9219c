"""Bytes in, bytes out: sockets, TLS, HTTP/1.1, and the event loop that serves all connections of a port.

Read `loop` first, then follow a request: `connection`, `tls_channel`, `parser`, `messages`. `peer_accounts` shares the
server fairly.
"""
