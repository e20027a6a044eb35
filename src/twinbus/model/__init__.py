"""What things are: descriptions of entities, BrokeredMessage, errors, limits.

Owns: the nouns of a namespace and what is valid about each. An error carries its AMQP condition, its HTTP status,
whether to retry, and which class of failure it is: unavailable, throttled or the caller's fault.
Knows nothing of what a namespace does with them: no fragments, stores, sockets or clocks.
"""
