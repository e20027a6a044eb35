"""From sockets to the broker: the AMQP listener, HTTP, authentication, $management, worker processes, metering.

Owns: connections, processes and the real clock; it makes the stores and hands them to the broker.
Decides nothing about messages: what a namespace does is asked of the broker. Knows nothing of our own client.
"""
