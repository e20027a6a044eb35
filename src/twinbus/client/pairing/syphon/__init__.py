"""The syphon: pumps that move parked messages from the backlog queues to the primary, and the same by hand."""
