"""The catalogue of entities: the service that changes it, replicas of it in brokers, the administration interface."""
