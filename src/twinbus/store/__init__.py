"""Where fragments keep their records: one narrow protocol, and the stores behind it.

Owns: batches that are on disk whole or not at all, and the moment after which they are.
Knows nothing of queues or messages: a store sees keys, values and ranges of keys.
"""
