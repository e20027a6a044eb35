"""AMQP as the client uses it.

Owns: the connection to a namespace, its links, requests with replies, and leases of exclusive links. It does not know
senders, receivers or retries.
"""
