"""Observing a pair: events, logs, status, alarms, metrics, and reports to the secondary."""
