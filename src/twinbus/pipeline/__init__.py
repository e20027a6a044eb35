"""Spark jobs: a source and sink for entities, the syphon at scale, capture, costs, the audit that nothing was lost.

Owns: how the log of an entity becomes rows, and rows become messages.
Knows nothing of the server or the broker: it reaches a namespace through the client, as any application does.
"""
