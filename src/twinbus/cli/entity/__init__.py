"""The commands `twinbus entity ...`: manage queues, topics, subscriptions and rules.

Each command is in the file of its name, and importing the file registers the command. `app` has the parts that all
commands share. Commands import the client only when they run.
"""
