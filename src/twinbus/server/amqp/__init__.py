"""The AMQP gateway, between client connections and the broker.

Owns: one object for each connection and link of a client, the request nodes (`$cbs`, `$management`, `$outage`,
`$pairing`) and transactions. Uses the broker only through its ports.
"""
