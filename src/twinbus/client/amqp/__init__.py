"""AMQP layer of the client.

Owns the connection to a namespace, its links, requests with responses, and leases of exclusive links. The package
knows nothing of senders, receivers or retries.
"""
