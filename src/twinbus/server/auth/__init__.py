"""Authentication and authorization of clients.

Owns: keys and where they are stored, shared access signatures, connection grants, revocation, and the log of failed
logins. TLS is in `server.tls`.
"""
