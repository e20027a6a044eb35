"""Reports that paired clients send to this namespace, their secondary.

Owns: the latest report from each client, its format and limits, and the backlog queues as operators see them.
"""
