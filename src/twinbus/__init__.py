"""twinbus: a Service Bus you run yourself, that goes on accepting messages when it is down.

Each package says in its first lines what it owns and what it must not know; docs/design.md shows how they fit together.
"""

import importlib.util
from typing import Final

__version__: Final = "0.1.0.dev0"


def version_and_build() -> str:
    """Return the version, and whether the hot files of this installation are compiled: `0.1.0 (compiled)`."""
    hot = importlib.util.find_spec("twinbus.amqp.delivery_frames")
    is_compiled = hot is not None and hot.origin is not None and not hot.origin.endswith(".py")
    return f"{__version__} ({'compiled' if is_compiled else 'pure Python'})"
