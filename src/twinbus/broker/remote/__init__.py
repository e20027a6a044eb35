"""Fragments owned by other processes, behind the same ports as local fragments.

A fragment of an entity whose store belongs to another process is represented by a *remote part*, which passes sends,
receives and other requests to the owner. The caller that connects a `PeerClient` decides how requests are transmitted.
"""
