"""twinbus: a Service Bus you run yourself, that goes on accepting messages when it is down.

Each package says in its first lines what it owns and what it must not know; docs/design.md shows how they fit together.
"""

from typing import Final

__version__: Final = "0.1.0.dev0"
