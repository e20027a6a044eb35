"""AMQP as the client uses it: the connection to a namespace, links, requests, leases of exclusive links."""
