"""The commands `twinbus message ...`: send, receive, find, resubmit, move and delete messages.

Owns the arguments and the output. The work is done by the client. `app` lists the commands; each group of commands has
a file of its own.
"""
