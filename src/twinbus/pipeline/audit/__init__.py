"""The audit: what became of every message that was reported sent.

Owns: which inputs prove what, and the verdict on each message (`verdicts` is the table). It joins what clients wrote
down (journals), what was captured, and what is in entities, backlog queues and dead-letter queues now. What it cannot
know it calls unknown. `docs/pipeline-audit.md` says what holds.
"""
