"""Data model of a namespace: descriptions of entities, messages (BrokeredMessage), errors, limits.

Owns the properties of each object and the rules for valid values. An error carries its AMQP condition, its HTTP status,
whether to retry, and its failure class: unavailable, throttled or caller's fault. Must not know how a namespace uses
these objects: no fragments, stores, sockets or clocks.
"""
