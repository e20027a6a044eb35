"""The server: AMQP and HTTP listeners, authentication, `$management`, worker processes, metering.

Owns: connections, processes and the real clock. Creates the stores and passes them to the broker.
Decides nothing about messages: the broker does. Knows nothing of twinbus's own client.
"""
