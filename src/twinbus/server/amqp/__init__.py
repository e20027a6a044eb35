"""AMQP gateway: client connections, links, and the nodes `$cbs`, `$outage`, `$pairing` and `$management`."""
