"""Paired namespaces: sends park in the secondary while the primary is down, and come back by themselves.

Owns: when failover engages, which backlog queue is used, what a parked message looks like, pings, and the syphon.
Knows nothing of wires: it stands on the client, and both namespaces are ordinary ones to it.
"""
