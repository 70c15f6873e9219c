"""The server: its parts in this process, and `serve` in a process of its own, over real sockets."""
