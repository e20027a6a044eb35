"""TLS: certificates, and when plaintext is allowed.

Owns: the certificate of the server, development certificates, and the rules for connections without TLS.
"""
