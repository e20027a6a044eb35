"""AMQP 1.0 codec: encodes values, composites, frames and message sections as bytes, and decodes them.

Must not know connections, sessions, links, or any other protocol state.
"""
