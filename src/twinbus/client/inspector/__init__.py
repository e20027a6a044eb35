"""Finding, resubmitting, moving and deleting messages without receiving them.

Owns the requests to a server and the progress of long operations. Applications create an inspector with
`MessagingFactory.create_message_inspector`.
"""
