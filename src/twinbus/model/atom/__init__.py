"""ATOM: XML representation of namespaces and entities over HTTP, for both the server and the client.

Owns the envelopes, the elements of every description, and their text formats, in both directions. Each description is
defined by a table, so that each side reads exactly what the other side writes. Must not know sockets, requests or
tokens. XML documents with a document type or with XML entities are refused.
"""
