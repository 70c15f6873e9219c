"""Put KubeVirt VMs on the node that serves their storage.

A request walks through the files in this order:

    server         gunicorn around it, and the probes beside it (listeners: the addresses of both)
      loop           every connection, in one thread (connection, channel: one of them; exchange: HTTP)
      deciding       and beside it what may have to wait, or is large
    app, reviewer  POST /mutate, bytes in and bytes out; what goes wrong is answered too
    review         an AdmissionReview in, an AdmissionReview out (wire: the shapes that are read)
    injector       the whole decision: read this one first
      eligibility    is the pod ours?
      claims         which claims does it mount?
      resolve        which node serves them?
      consumers      or, for a share-manager pod: where are its VMs?
      feasibility    could that node take the pod? (selectors, resources, podaffinity: the scheduler's rules)
      mutation       what the pod becomes (affinity: pin and prefer one node)
      patch          the difference, proven to apply
    wording, events, metrics, logs    what is said of it, and to whom (outlet: the end of the log)

What it asks is declared in `catalog` and answered by `store` (tables, objects: what is kept of each object), which
`snapshot` fills from files, `live` keeps like the cluster (reflector, kinds, cluster), and `ondemand` fills by asking.
`cli` is the command line; `explain` tells the same walk to a person (walk, narration).
"""

__version__ = "0.1.0"
