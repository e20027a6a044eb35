"""Data model of a namespace: descriptions of entities, messages (BrokeredMessage), errors, limits.

Owns the properties of each object and the rules for valid values. An error has an AMQP condition, an HTTP status, a
failure class (unavailable, throttled or caller's fault), and says whether a retry may help. Must not know how a
namespace uses these objects: no fragments, stores, sockets or clocks.
"""
