"""Evaluation of subscription rules: which messages a rule matches, and how the rule's action changes their copies.

Owns the language of filters and actions, and the index that finds the matching rules among thousands.
`rule.compile_rule` compiles a rule from its description, `message_view.MessageView` is a message as rules see it, and
`rule_index.RuleIndex` holds all rules of one topic. The code is pure and knows nothing of topics or subscriptions:
topics decide what happens to a message that matches a rule or fails its evaluation.
"""
