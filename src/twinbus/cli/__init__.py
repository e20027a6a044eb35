"""The commands: serve a namespace, look into one, repair it, pair it.

Owns: arguments, output and exit codes. A command calls the server or the client and does nothing itself.
Nothing imports this package.
"""
