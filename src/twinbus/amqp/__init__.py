"""AMQP 1.0, sans-IO, for both ends: types, codec, frames, and the states of connections, sessions and links.

Owns the protocol of parts 1 to 5 of the specification: takes bytes, returns events. The code that uses the engine, a
server or a client, is called the program. Must not know Service Bus. Only `aio`, the asyncio adapter shared by server
and client, and its helpers `listener` and `peer_input` know sockets and clocks.
"""
