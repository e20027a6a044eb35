"""The parts of `twinbus serve` that print the first steps and serve a pair.

Owns: the text about first steps, and the two processes of a pair. The command and its options are in `cli.serve`; the
servers themselves are in `server`.
"""
