"""What `$management` does, operation by operation.

Owns: reading what is asked and writing what is answered. What it means is the broker's affair.
"""
