"""Finding, resubmitting, moving and deleting messages without receiving them.

Owns the requests to a server and the progress of long operations. `MessagingFactory.create_message_inspector` is the
entrance.
"""
