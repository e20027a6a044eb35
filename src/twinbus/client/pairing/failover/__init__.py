"""Failover: the health of each entity, fragment outages, outages of a whole namespace, and pings."""
