"""From a key to a fragment, as `model.hashing` has it: clients look at it, too."""

from twinbus.model.hashing import fragment_of

__all__ = ["fragment_of"]
