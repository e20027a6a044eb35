"""Web pages for operators: entities, messages, dead letters, the pair and its backlog, costs (planned).

Owns the pages and their actions. The portal uses the client and the HTTP API, and has no other access to the server.
"""
