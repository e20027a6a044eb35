"""AMQP 1.0, sans-IO, for clients and servers: types, codec, frames, and the states of connections, sessions and links.

Owns the protocol of parts 1 to 5 of the specification. The engine takes bytes and returns events. The code that uses
the engine, a server or a client, is called the program. Must not know Service Bus. Only `aio`, the asyncio adapter that
server and client share, and its helpers `listener` and `peer_input` know sockets and clocks.
"""
