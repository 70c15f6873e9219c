"""The certificates that the API server trusts: made, kept and renewed. Knows nothing of who serves them.

    renewal        what is due, when and why: read this one first
    bundle         what the Secret holds, and how it is written down
    steps          what a step makes of a bundle (authority: issue and read certificates)
    names          by which a server is called, and chain: by which CA it is trusted
    rotate         a pass over all of it, and the keeper that makes one after another
    cluster        what it asks of an API server
    folder         the files that are served (serving: the TLS context that follows them)

`by_hand` is what a person asks for, `health` what a person is told.
"""
