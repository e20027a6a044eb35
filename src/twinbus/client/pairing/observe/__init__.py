"""Observing a pair.

Owns: the events of a pair, and the logs, status, alarms, metrics and reports to the secondary that are based on events.
"""
