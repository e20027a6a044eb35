"""The rules of partitioned entities: which part a message goes to, and what holds for messages of several parts.

They apply to entities whose policy is `is_partitioned`; a plain entity has one part, and none of these rules. What
happens to a message in a part is the same for both.
"""
