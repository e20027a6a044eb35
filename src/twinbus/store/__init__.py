"""Storage of fragments: a narrow store protocol and its implementations.

Owns atomic batches, and the guarantee that a batch is on disk when its commit is confirmed. Must not know queues or
messages: a store has keys, values and ranges of keys.
"""
