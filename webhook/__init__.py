"""A mutating admission webhook that places KubeVirt VMs on the node of their Longhorn share-manager.

A review passes through four rooms. Each room imports only the rooms below it:

    commands    the command line; `serve` starts the server
    serving     server -> loop -> connection -> app -> reviewer -> review: bytes in, bytes out
    cluster     live: the caches that the decision reads, and the Events that report the decision
    placement   injector: eligible? -> its claims -> their node -> can the node run the pod? -> the patch

Start with `placement/injector.py`, which is the whole decision. Each room's docstring says what to read next.
"""

__version__ = "0.1.0"
