"""The web pages: entities, messages, dead letters, the pair and its backlog, costs.

Owns: what an operator sees and may press.
Knows nothing that a client could not: it uses the client and the HTTP API, and has no door of its own.
"""
