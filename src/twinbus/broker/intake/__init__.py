"""Messages on their way in: validation, encoding as records, and the choice of a fragment in partitioned entities."""
