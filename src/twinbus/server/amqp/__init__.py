"""The AMQP gateway: from connections of clients to the broker.

Owns: one object for each connection and link of a client, the request nodes (`$cbs`, `$management`, `$outage`,
`$pairing`) and transactions. It uses the broker by its ports alone.
"""
