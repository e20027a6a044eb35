"""Queues, topics and subscriptions: parts, fan-out to subscriptions, transactions, cleanup of deleted entities."""
