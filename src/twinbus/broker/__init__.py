"""What a namespace does: fragments, locks, sessions, schedules, duplicates, rules, transactions.

Owns: every decision about a message between its arrival and its settlement.
Pure: clocks, randomness and the store are handed in. Knows nothing of sockets, asyncio or the time of day, so that a
whole namespace can be run, stopped and replayed inside a test.
"""
