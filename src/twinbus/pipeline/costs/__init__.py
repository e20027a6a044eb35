"""What messages cost: a bill explained afterwards, from what servers counted, and one predicted before.

Owns: tariffs, the two ways to count charges, the join of usage with the clients' journals, and what is shown of it all.
Prices are in dated files, never in code. A prediction (`what_if`) needs neither Spark nor Java.
"""
