"""The syphon: moves parked messages from the backlog queues to the primary.

Owns: one pump for each backlog queue, the destinations of parked messages, and the deferred, withheld and dead-lettered
messages of the backlog. Knows nothing of the senders that park messages.
"""
