"""Issue, store, publish and rotate the webhook's TLS certificates. Does not know the server that uses them.

    renewal        decide which step is due, when and why: read this module first
    bundle         the content of the Secret and its encoding
    steps          apply a step to a bundle (authority: issue and read certificates)
    names          names in a certificate (chain: the CA that a certificate chains to)
    one_pass       one pass over the Secret and the caBundle
    rotate         the controller that repeats passes and writes the served files
    cluster        read and write the Secret and the MutatingWebhookConfiguration
    folder         the served files (serving: the TLS context that reloads them)

`by_hand` implements `certs renew` and `certs rotate-ca`, `health` implements `certs status`.
"""
