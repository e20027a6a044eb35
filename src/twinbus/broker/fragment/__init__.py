"""One fragment of an entity, in a store of this process.

Owns: the message table, the dispatcher with its read-ahead window, locks, settlement, sessions, schedule, deferral,
duplicate detection and forwarding of one fragment. The package must not know which entity a fragment belongs to.
"""
