"""The caches that follow the cluster: its kinds, their readers and watches, and the tables that decisions read.

Read `kinds` first: each kind of object is one entry. `reflector` mirrors a kind into the `store`.
"""
