"""AMQP 1.0, sans-IO, for both ends: types, codec, frames, and the states of connections, sessions and links.

Owns: the protocol of the specification's parts 1 to 5. Bytes in, events out. Knows nothing of Service Bus, and
nothing of sockets or clocks but in `aio`, the small adapter to asyncio that server and client share.
"""
