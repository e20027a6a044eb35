"""The spool: messages on the local disk while both namespaces are unavailable.

Owns: the file format, the index of a spool in memory, and sending the messages on when a namespace accepts them again.
"""
