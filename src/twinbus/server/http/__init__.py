"""Management over HTTP: entities as ATOM entries, as the administration clients of the Azure SDKs write and read them.

Owns: the listening socket, the routes, the XML. Asks an `Administration` for everything else, and whoever checks keys
whether a caller may. Knows nothing of stores, fragments or messages.
"""
