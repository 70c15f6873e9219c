"""What the webhook and the tool know of a cluster, without I/O: the kinds of objects, and the tables of their facts.

Read `kinds` first: each kind of object is one entry. Then `store`, which answers the queries of `placement.catalog`.
`inventory` joins the objects of each VM.
"""
