"""The caches that follow the cluster: the watches, and the tables that decisions read.

Read `store` first: `reflector` mirrors each kind of object into it.
"""
