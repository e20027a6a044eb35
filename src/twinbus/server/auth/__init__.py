"""Authentication and authorization of clients.

Owns: keys and where they are stored, shared access signatures, the grants of a connection, revocation, and the log of
failed logins. TLS is in `server.tls`.
"""
