"""Looking at messages that another process has.

Owns: the way there and back; what is seen is read by the owner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.ports.fragment import BrowseCursorPort, MessageBrowserPort
from twinbus.broker.ports.peer_protocol import (
    AttachBrowser,
    FindByEnqueuedTime,
    GetLogRange,
    Numbers,
    Peek,
    PeekedMessages,
)
from twinbus.broker.remote.credit_reservation import CreditReservation
from twinbus.model.callbacks import do_nothing
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.ports.consumer import Delivery, GatewayBrowseReader
    from twinbus.broker.ports.peer_protocol import Reply, Request
    from twinbus.broker.ports.read_limiter import ReadLimiter
    from twinbus.broker.remote.fragment import RemoteFragment


class RemoteMessageBrowser(MessageBrowserPort):
    """Looks into one fragment that another process has."""

    def __init__(self, fragment: RemoteFragment) -> None:
        """Made by its fragment."""
        self._fragment = fragment
        self._last_enqueued_ms = 0

    def peek(
        self,
        from_sequence: int,
        count: int,
        max_bytes: int,
        on_result: Callable[[list[bytes] | ServiceBusError], None],
        *,
        deferred_only: bool = False,
    ) -> None:
        """Messages from a sequence number on, as they are."""
        fragment = self._fragment

        def told(answer: Reply | ServiceBusError) -> None:
            if isinstance(answer, PeekedMessages):
                self._last_enqueued_ms = answer.last_enqueued_ms
                on_result(answer.messages)
            else:
                assert isinstance(answer, ServiceBusError)
                on_result(answer)

        # A number below that of its first message may be below those that can be told: it is the first then.
        start = max(from_sequence, 0)
        fragment.owner.send_request(Peek(fragment.address, start, count, max_bytes, deferred_only), told)

    def find_by_enqueued_time(self, enqueued_ms: int, on_result: Callable[[int | ServiceBusError], None]) -> None:
        """The first sequence number of a message that was not enqueued before a time; the next one if there is none."""

        def told(answer: Reply | ServiceBusError) -> None:
            if isinstance(answer, Numbers):
                on_result(answer.numbers[0])
            else:
                assert isinstance(answer, ServiceBusError)
                on_result(answer)

        self._fragment.owner.send_request(FindByEnqueuedTime(self._fragment.address, enqueued_ms), told)

    def find_sequence_range(self, on_result: Callable[[tuple[int, int] | ServiceBusError], None]) -> None:
        """Ask the owner from where to where there are messages."""

        def told(answer: Reply | ServiceBusError) -> None:
            if isinstance(answer, Numbers):
                on_result((answer.numbers[0], answer.numbers[1]))
            else:
                assert isinstance(answer, ServiceBusError)
                on_result(answer)

        self._fragment.owner.send_request(GetLogRange(self._fragment.address), told)

    @property
    def last_enqueued_ms(self) -> int:
        """When the last message was enqueued, as the owner said with the last page."""
        return self._last_enqueued_ms

    def browse(
        self,
        reader: GatewayBrowseReader,
        first_sequence: int,
        last_sequence: int,
        *,
        ends_at_last: bool,
        read_limiter: ReadLimiter,  # noqa: ARG002
    ) -> BrowseCursorPort:
        """Have the owner show active messages to a reader."""
        return RemoteBrowseCursor(
            _BrowseReservation(self._fragment, reader, first_sequence, last_sequence, is_bounded=ends_at_last)
        )


class RemoteBrowseCursor(BrowseCursorPort):
    """One reader's way through the log of a fragment that another process owns."""

    def __init__(self, reservation: _BrowseReservation) -> None:
        """Made by `RemoteBrowsing`."""
        self._reservation = reservation

    def advance(self) -> None:
        """Ask for more."""
        self._reservation.request_messages()

    def drain(self, on_drained: Callable[[], None]) -> None:
        """Ask for what there is now."""
        self._reservation.drain(on_drained)

    def close(self) -> None:
        """Ask for nothing more."""
        self._reservation.close()

    @property
    def has_reserved_credit(self) -> bool:
        """Whether the owner holds room of the reader."""
        return self._reservation.is_credit_granted


class _BrowseReservation(CreditReservation):
    """One way through the log of a fragment that another process has. What it is lent is room, as for a receiver."""

    def __init__(
        self,
        fragment: RemoteFragment,
        reader: GatewayBrowseReader,
        first_sequence: int,
        last_sequence: int,
        *,
        is_bounded: bool = False,
    ) -> None:
        """From one sequence number to another, both of which are seen. `ends`: it is told when that is over."""
        self._next_sequence = first_sequence
        self._last_sequence = last_sequence
        self._is_bounded = is_bounded
        self._was_returned = False
        super().__init__(fragment, reader, do_nothing)

    def _attach_request(self) -> Request:
        return AttachBrowser(
            self._consumer_id, self._fragment.address, self._next_sequence, self._last_sequence, self._is_bounded
        )

    def on_deliveries(self, deliveries: list[Delivery]) -> None:
        """Messages to be seen."""
        super().on_deliveries(deliveries)
        if not self._was_returned:
            self._next_sequence = int.from_bytes(deliveries[-1][1]) + 1
        self._was_returned = False

    def _return_messages(self, deliveries: list[Delivery]) -> None:
        """They were not seen: it goes on with the first of them."""
        self._was_returned = True
        self._next_sequence = int.from_bytes(deliveries[0][1])
        self.reattach()
