"""Reports of paired clients to their secondary namespace, and the contents of backlog queues."""
