"""Fragments that another process has: to the rest of the broker they are like those that it has itself.

A part of an entity whose store belongs to another process is made here as a *remote part*: what is sent to it, received
from it or asked of it is carried to its owner. How calls get there is for whoever connects an `Owner` to say.
"""
