"""The catalogue of entities.

Owns: the service that validates and stores changes, the replica of the catalogue in each broker process, and the
interface for administering entities.
"""
