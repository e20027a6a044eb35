"""A server process, from startup to exit.

Owns: the data directory, stores, listeners, connection limits, clocks, logs, the ready file, and reloading settings.
"""
