"""The backlog queues of the secondary.

Owns: their creation and rotation, their contents, and how messages are rewritten for them and back.
"""
