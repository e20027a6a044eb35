"""Messaging costs: explanations of bills, from the usage that servers counted, and predictions of bills.

Owns tariffs, both charge models, the join of usage with client journals, and the presentation. Prices are in dated
files, never in code. A prediction (`what_if`) needs neither Spark nor Java.
"""
