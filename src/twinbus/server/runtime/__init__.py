"""A server process: from its start to its end.

Owns: the data directory, stores, listeners, limits of connections, clocks, logs, the ready file, and reloading of
settings.
"""
