"""A namespace that several processes serve.

The *supervisor* has the data directory, the catalogue and the listening sockets, and starts *workers*: each has some of
the stores, and serves clients of the whole namespace. `supervisor` and `worker` are the two kinds of process; `words`
is what they say to each other over `control`.
"""
