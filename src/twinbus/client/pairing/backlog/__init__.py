"""The backlog queues of the secondary: creation, rotation, contents, and how messages are rewritten for them."""
