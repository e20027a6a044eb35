"""`twinbus pipeline`: the jobs on Spark.

Owns: the list of these commands; what they have in common is in `app`: `--master`, and that a failure is a sentence and
exit code 1. What a command takes and prints is in the file of its name. Importing one makes it a command; each is to
import Spark, and whatever else takes its time, only where it is called.
"""
