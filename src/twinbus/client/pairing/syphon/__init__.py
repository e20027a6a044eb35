"""The syphon: it brings parked messages back to the primary.

Owns: one pump for each backlog queue, the destinations of parked messages, and deferred, withheld and dead-lettered
messages of the backlog. It does not know senders that park messages.
"""
