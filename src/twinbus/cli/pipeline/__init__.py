"""The commands `twinbus pipeline ...`: Spark jobs.

Each command is in the file of its name, and importing the file registers the command. `app` has the parts that all
commands share: `--master` and error reporting. Commands import Spark and other slow modules only when they run.
"""
