"""The commands of twinbus: serve a namespace, inspect and drain a pair, manage keys, run Spark jobs.

Owns arguments, output and exit codes. The work is done by the server, the client and the pipeline. Nothing imports this
package.
"""
