"""Administration as ATOM over HTTP, for the administration clients of the Azure SDKs, and messages over HTTP.

Owns: the HTTP listener, the routes, and the bodies of requests and responses. An `Administration` carries out changes
to entities, and `authorise` checks tokens. Knows nothing of stores.
"""
