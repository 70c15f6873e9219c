"""The threads of this process that a test may count as its own work's, whatever else runs here in a whole session."""

import threading

# What socketserver runs for each connection: of the control plane's proxy, say, which come and go as they like.
A_CONNECTION = "process_request_thread"


def threads() -> set[threading.Thread]:
    """All threads but those that serve one connection of a fake or of the proxy."""
    return {thread for thread in threading.enumerate() if A_CONNECTION not in thread.name}
