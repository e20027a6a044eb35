"""Partitioned entities: queues and topics made of sixteen fragments, over several stores.

Each fragment of one is a plain queue, topic or subscription of its own (a *part*), with its dead letters, its schedule,
its duplicates and its forwarding; they have a path in common. What is here is what lies between that path and its
parts.

Owns: which part a message goes to, and what all parts together are. What becomes of a message in a part is told where
it is told of plain entities.
"""
