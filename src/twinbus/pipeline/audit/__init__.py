"""The audit: the outcome of every message that was reported as sent.

Owns the rules for what each input proves, and the verdict on each message (`verdicts` has the table). The audit joins
client journals, captures, and the current contents of entities, backlog queues and dead-letter queues. If the inputs do
not suffice, the verdict is unknown. `docs/pipeline-audit.md` describes the guarantees.
"""
