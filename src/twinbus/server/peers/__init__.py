"""The other processes of a namespace: what this one asks of their fragments, and what they ask of its own.

`channel` carries words over a socket, `desk` does what another process asks, `peers` knows the way to each.
"""
