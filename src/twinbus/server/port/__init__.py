"""Ports for clients: recognising the protocol of each connection, and refusing protocols that a port does not serve.

Owns connections until a listener gets them. Knows which protocols a port serves, but handles none of them: that is the
work of the listeners in `amqp`, `http` and `websocket`.
"""
