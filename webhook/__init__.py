"""A mutating admission webhook that places KubeVirt VMs on the node of their Longhorn share-manager.

Seven rooms. Each imports only the rooms below it; `serving` and `reading` don't import each other:

    commands    the command line of the tool; `serve` starts the webhook
    serving     worker -> loop -> connection -> app -> reviewer: bytes in, bytes out
    reading     one-shot reads for the tool: files, snapshots, lists
    cluster     the watches, the Events that report a decision, and the release
    catalog     the kinds of objects, and what is kept of them in memory
    fleet       all VMs: their state, their next pod, the plan of a relocation
    placement   injector: eligible? -> its claims -> their node -> can the node run the pod? -> the patch

Start with `placement/injector.py`, which is the whole decision. Each room's docstring says what to read next.
"""

__version__ = "0.1.0"
