"""The broker's ports: what a gateway may use of a broker, whether a fragment belongs to this process or to another one.

    fragment     a fragment: dispatch, settlement, browsing, management
    consumer     a gateway's receivers and readers, as fragments know them
    gathering    all fragments of an entity, as one receiver takes messages from them
    incoming     messages on their way into the broker
    settlement   ways to settle messages, and their errors
    transaction  the part of a transaction that the owner of a fragment carries out
    removal      messages to be deleted in bulk
    reads        reads of browsers that are under way
    outage       rehearsed outages
    numbers      which fragment a sequence number or a lock token names

A port is a base class, because calls of a compiled class's methods are cheap, and those of a protocol's are not. The
classes behind the ports are in `broker` (fragments of this process) and in `broker.remote` (fragments of others).
"""
