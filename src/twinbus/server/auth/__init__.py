"""Authentication and authorization of clients: keys, shared access signatures, grants and revocation."""
