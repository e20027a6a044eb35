"""The broker core: fragments, locks, sessions, schedules, duplicate detection, subscription rules, transactions.

Owns: every decision about a message between its arrival and its settlement.
The package is pure: clocks, randomness and the store are parameters. It does not use sockets, asyncio or the system
clock, so that a test can run, stop and replay a whole namespace.
"""
