"""The broker's ports: interfaces that a gateway uses for fragments in this process and in other processes alike.

    callbacks                callbacks of asynchronous operations
    consumer                 receivers and browse readers, as fragments see them
    exclusive_receiver       exclusive receivers of an entity
    fragment                 a fragment: dispatch, settlement, browsing, management, transactions
    incoming_batch           incoming messages that are stored together
    multi_fragment_receiver  all fragments of an entity, as one receiver uses them
    outage                   rehearsed outages
    peer_protocol            messages between the processes of a namespace
    read_limiter             limit of concurrent reads by browsers
    settlement               dispositions of messages, and errors of settlement

Ports are base classes rather than protocols, because method calls on compiled classes are cheaper. `broker.fragment`
implements the ports for fragments in this process, `broker.remote` for fragments in other processes.
"""
