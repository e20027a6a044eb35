"""One fragment of an entity: message table, dispatcher, locks, settlement, sessions, schedule, forwarding."""
