"""The spool: messages on the local disk while both namespaces are unavailable.

Owns: the file format, the in-memory index of a spool, and sending spooled messages when a namespace accepts them again.
"""
