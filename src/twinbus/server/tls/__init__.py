"""TLS of the listeners: certificates, development certificates, and which connections may be plaintext."""
