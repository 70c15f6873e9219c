"""The decision: a pure function of (request, catalog, settings).

Read `injector` first; it calls the other modules in the order of the decision. `catalog` declares what the decision
asks about the cluster, `decision` what the answer is, and `wording` how the answer reads.

A module here imports no clock, environment, logger, thread, socket or client, and nothing from another room.
"""
