"""Lists the threads of this process, without those of fake servers that run in the whole test session."""

import threading

# socketserver's thread for one connection, for example of the control plane's proxy. They start and end at any time.
SERVER_CONNECTION = "process_request_thread"


def own_threads() -> set[threading.Thread]:
    """All threads except those that serve one connection of a fake server or of the proxy."""
    return {thread for thread in threading.enumerate() if SERVER_CONNECTION not in thread.name}
