"""The operations of `<entity>/$management`: peek, schedule, renew, settle, sessions, rules, deletion.

Owns: reading the arguments of a request and writing its response. The broker carries out the operation.
"""
