"""AMQP over WebSockets (RFC 6455), for clients whose firewall only allows HTTP ports.

Owns: the handshake, the framing, and a transport that the AMQP engine uses like any other transport. Knows nothing of
AMQP.
"""
