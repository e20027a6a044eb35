"""Rules at work: which messages a rule is true for, and what its action makes of them.

Owns: the language of filters and actions, and finding the rules that match among thousands. `rule.compile_rule` makes
a rule of its description, `view.View` is a message as rules see it, `index.RuleIndex` holds all rules of one topic.
Pure, and knows nothing of topics or subscriptions: what becomes of a message that matches, or fails, is theirs to say.
"""
