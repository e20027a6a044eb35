"""Observing a pair.

Owns: the events of a pair and everything that is made of them: logs, status, alarms, metrics, and reports to the
secondary.
"""
