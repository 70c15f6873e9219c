"""Decide where to place a pod: a pure function of (request, catalog, settings).

Read `injector` first: it calls the other modules in the order of the decision. `catalog` declares the queries on the
cluster, `reasons` the result, and `wording` the sentences that operators read. `objects` reads Kubernetes objects, and
`guard` checks that the node can run the pod.
"""
