"""Queues, topics and subscriptions.

Owns: the parts of an entity, the fan-out from topics to subscriptions, transactions, resubmission of dead letters,
and the cleanup of deleted entities. What happens to a message within one fragment is in `broker.fragment`.
"""
