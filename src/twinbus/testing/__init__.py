"""For tests, ours and our users': a namespace in memory, a clock that is set by hand, a switch for outages.

Owns: nothing that runs in production, and no second version of what does: it wires up the real broker, store, server
and client. Nothing in twinbus imports this package.
"""
