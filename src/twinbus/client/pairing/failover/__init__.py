"""Failover of entities of the primary.

Owns: the health of each entity as a table of states, outages of fragments and of whole namespaces, and pings.
"""
