"""Failover of the primary's entities.

Owns: the health of each entity as a state table, outages of fragments and of whole namespaces, and pings.
"""
