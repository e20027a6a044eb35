"""AMQP over WebSockets (RFC 6455), for clients that only get out on the ports of HTTP.

Owns: the handshake, the framing, and a socket that looks like any other to the AMQP side. Knows nothing of AMQP.
"""
