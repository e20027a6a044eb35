"""ATOM: how a namespace and its entities are described over HTTP, for the side that serves and the side that asks.

Owns: envelopes, the elements of every description, and what their texts mean; both ways. A form is a table, so that
what one side writes is what the other reads. Knows nothing of sockets, requests or tokens, and parses nothing that has
a document type or entities in it.
"""
