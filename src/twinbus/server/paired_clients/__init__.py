"""What paired clients report to this namespace, their secondary.

Owns: the latest report of each client, its format and limits, and the view of the backlog queues that operators see.
"""
