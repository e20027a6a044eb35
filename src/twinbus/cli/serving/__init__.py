"""What `twinbus serve` prints and starts, besides one server.

Owns: the text about first steps, and the two processes of a pair. The command and its options are in `cli.serve`; the
servers themselves are in `server`.
"""
