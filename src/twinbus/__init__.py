"""twinbus: a self-hosted Service Bus with paired namespaces, so that senders keep sending while a namespace is down.

The docstring of each package says what the package owns and must not know; docs/design.md shows how they fit together.
"""

import importlib.util
from typing import Final

__version__: Final = "0.1.0.dev0"


def version_and_build() -> str:
    """Return the version and whether the performance-critical modules are compiled, for example `0.1.0 (compiled)`."""
    spec = importlib.util.find_spec("twinbus.amqp.codec.delivery_frames")
    is_compiled = spec is not None and spec.origin is not None and not spec.origin.endswith(".py")
    return f"{__version__} ({'compiled' if is_compiled else 'pure Python'})"
