"""The server process: start and stop, listeners, connection admission, stores, data directory, logs and reload."""
