"""The operations of `<entity>/$management`: peek, schedule, renew, settle, sessions, rules, deletion.

Owns: parsing the arguments of a request and encoding its response. The broker executes the operation.
"""
