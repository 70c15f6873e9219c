"""Decide where to place a pod: a pure function of (request, catalog, settings).

Read `injector` first: it calls the other modules in the order of the decision. `catalog` declares the queries on the
cluster, `decision` the result, and `wording` the sentences that operators read.

The modules import no clock, environment, logger, thread, socket or client, and no other package of the project.
"""
