"""The server: AMQP and HTTP listeners, authentication, `$management`, worker processes, metering.

Owns: connections, processes and the real clock. Creates the stores and passes them to the broker, which makes all
decisions about messages. Knows nothing of twinbus's own client.
"""
