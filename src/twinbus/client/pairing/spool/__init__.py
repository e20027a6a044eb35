"""The spool: messages on the local disk while both namespaces are down, and how they are sent from there."""
