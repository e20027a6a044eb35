"""Several processes that serve one namespace.

Owns: the supervisor and its workers, the protocol between them, and the connections over which a process uses the
fragments of another process.
"""
