"""Backlog queues in the secondary.

Owns: the creation, rotation and inspection of backlog queues, and the rewriting of messages that are parked and
restored.
"""
