"""Put KubeVirt VMs on the node that serves their storage.

A request walks through the files in this order:

    app        POST /mutate, bytes
    review     an AdmissionReview in, an AdmissionReview out
    injector   the whole decision: read this one first
      eligibility   is the pod ours?
      claims        which claims does it mount?
      resolve       which node serves them?           (asks the catalog)
      feasibility   could that node take the pod?     (asks the catalog)
      consumers     for a share-manager pod: where are its VMs?
      affinity      pin and prefer one node
      patch         the difference, proven to apply

`store` is the catalog, `snapshot` fills it from files. `server` is gunicorn around `app`, `cli` the command line.
"""

__version__ = "0.1.0"
