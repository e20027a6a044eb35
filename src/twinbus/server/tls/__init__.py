"""TLS: certificates, and the rules for plaintext connections.

Owns: the server's certificate, development certificates, and which connections count as confidential.
"""
