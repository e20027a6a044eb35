"""What is not said while an entity is silent: an outage of that kind is being rehearsed (`broker.outage`).

Owns: that an answer waits for the end of the silence, and that nobody is answered who has gone. A client that waits too
long gives up by itself, as it would with a server that hangs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.ports.outage import SilentOutage

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.amqp.link import Link
    from twinbus.broker.clock import Clock
    from twinbus.model.errors import ServiceBusError


def send_error(owner: object, error: ServiceBusError, send: Callable[[], None]) -> None:
    """Answer with an error: at once, or when the silence is over if `owner` is still there then."""
    if isinstance(error, SilentOutage):
        error.outage.defer_reply(owner, send)
    else:
        send()


class UnansweredLink:
    """A link that is neither accepted nor refused while its entity is silent."""

    def __init__(self, link: Link, clock: Clock) -> None:
        """Nothing is done: that is what it is for."""
        self.link = link
        self.path = ""
        self.last_used_s = clock.monotonic_s()

    @property
    def is_busy(self) -> bool:
        """The client waits."""
        return True
