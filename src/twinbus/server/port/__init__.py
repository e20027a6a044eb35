"""Ports: recognising the protocol of each connection, and refusing protocols that a port does not serve."""
