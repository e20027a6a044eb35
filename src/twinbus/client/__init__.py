"""What applications use: MessagingFactory, QueueClient, TopicClient, NamespaceManager.

Owns: connections to a namespace, retries and time-outs, and the object model applications are written against.
Knows nothing of the server's insides: it speaks AMQP and HTTP to any namespace, twinbus or Azure alike.
"""
