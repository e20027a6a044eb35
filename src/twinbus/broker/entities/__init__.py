"""Queues, topics and subscriptions.

Owns: the parts of an entity, the fan-out from topics to subscriptions, transactions, resubmission of dead letters,
and the cleanup of deleted entities. The package `broker.fragment` handles messages within one fragment.
"""
