"""Browse links without a connection, as a client would see them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from twinbus.server.amqp.browse_link import BrowseLink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinbus.amqp.aio import Peer
    from twinbus.amqp.sender import Sender
    from twinbus.broker.ports.consumer import Delivery
    from twinbus.broker.ports.fragment import FragmentPort

PEER = cast("Peer", SimpleNamespace(is_writable=True, connection=SimpleNamespace(queued_bytes=0)))


class FakeClientLink:
    """The part of an AMQP sender that a link of the server uses."""

    def __init__(self, on_delivery: Callable[[Delivery], object]) -> None:
        self.remote_attach = SimpleNamespace(source=None, properties=None)
        self.credit = 0
        self.drain_requested = False
        self.drains = 0
        self.is_attached = True
        self.errors: list[Any] = []
        self.session = SimpleNamespace(send_queue=SimpleNamespace(has_queued=lambda _link: False))
        self._on_delivery = on_delivery

    @property
    def sendable(self) -> int:
        return self.credit

    def accept(self, **_details: object) -> None:
        pass

    def send_many(self, deliveries: list[Delivery], *, settled: bool) -> None:
        assert settled
        assert len(deliveries) <= self.credit
        self.credit -= len(deliveries)
        for delivery in deliveries:
            self._on_delivery(delivery)

    def drained(self) -> None:
        self.drain_requested = False
        self.credit = 0
        self.drains += 1

    def detach(self, error: object) -> None:
        self.errors.append(error)

    refuse = detach


def attach_browser(
    on_delivery: Callable[[Delivery], object],
    fragments: Sequence[FragmentPort],
    soon: Callable[[Callable[[], None]], object],
    limits: dict[str, int] | None = None,
) -> tuple[FakeClientLink, BrowseLink]:
    """Attach a browser of all messages of some fragments, or of a range of one that reports the end of the range."""
    link = FakeClientLink(on_delivery)
    if limits is not None:
        properties = {"twinbus:ends-with-range": True}
        link.remote_attach = SimpleNamespace(source=SimpleNamespace(filter=limits), properties=properties)
    return link, BrowseLink(cast("Sender", link), PEER, "orders", fragments, 7, soon)
