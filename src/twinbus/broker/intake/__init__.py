"""Processing of incoming messages before they are stored.

Owns validation, the encoding of messages as records, and the choice of a fragment of a partitioned entity. This package
stores nothing itself.
"""
