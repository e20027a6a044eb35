"""Peeking and browsing messages that another process owns.

Owns the requests to the owner, which reads the messages.
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
    """Browser for one fragment in another process."""

    def __init__(self, fragment: RemoteFragment) -> None:
        """Create a browser for a remote fragment."""
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
        """Ask the owner to peek messages, starting at a sequence number."""
        fragment = self._fragment

        def handle_reply(reply: Reply | ServiceBusError) -> None:
            if isinstance(reply, PeekedMessages):
                self._last_enqueued_ms = reply.last_enqueued_ms
                on_result(reply.messages)
            else:
                assert isinstance(reply, ServiceBusError)
                on_result(reply)

        # The peer protocol cannot encode every negative number; any negative number means the first message.
        start = max(from_sequence, 0)
        fragment.owner.send_request(Peek(fragment.address, start, count, max_bytes, deferred_only), handle_reply)

    def find_by_enqueued_time(self, enqueued_ms: int, on_result: Callable[[int | ServiceBusError], None]) -> None:
        """Ask the owner for the first message enqueued at or after a time, or else for the next sequence number."""

        def handle_reply(reply: Reply | ServiceBusError) -> None:
            if isinstance(reply, Numbers):
                on_result(reply.numbers[0])
            else:
                assert isinstance(reply, ServiceBusError)
                on_result(reply)

        self._fragment.owner.send_request(FindByEnqueuedTime(self._fragment.address, enqueued_ms), handle_reply)

    def find_sequence_range(self, on_result: Callable[[tuple[int, int] | ServiceBusError], None]) -> None:
        """Ask the owner for the range of sequence numbers in the fragment's log."""

        def handle_reply(reply: Reply | ServiceBusError) -> None:
            if isinstance(reply, Numbers):
                on_result((reply.numbers[0], reply.numbers[1]))
            else:
                assert isinstance(reply, ServiceBusError)
                on_result(reply)

        self._fragment.owner.send_request(GetLogRange(self._fragment.address), handle_reply)

    @property
    def last_enqueued_ms(self) -> int:
        """Enqueued time of the last message, as the owner reported with the last peek."""
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
        """Ask the owner to deliver active messages in a range of sequence numbers to a reader."""
        return RemoteBrowseCursor(
            _BrowseReservation(self._fragment, reader, first_sequence, last_sequence, is_bounded=ends_at_last)
        )


class RemoteBrowseCursor(BrowseCursorPort):
    """Position of one browse reader in the log of another process's fragment."""

    def __init__(self, reservation: _BrowseReservation) -> None:
        """Create a cursor for a reader's credit; called by `RemoteMessageBrowser`."""
        self._reservation = reservation

    def advance(self) -> None:
        """Ask the owner for more messages."""
        self._reservation.request_messages()

    def drain(self, on_drained: Callable[[], None]) -> None:
        """Ask the owner for the present messages, then call `on_drained`."""
        self._reservation.drain(on_drained)

    def close(self) -> None:
        """Detach the reader from the owner's fragment."""
        self._reservation.close()

    @property
    def has_reserved_credit(self) -> bool:
        """Whether the owner holds credit from the reader."""
        return self._reservation.is_credit_granted


class _BrowseReservation(CreditReservation):
    """Credit that a browse reader grants to one fragment in another process, like a receiver."""

    def __init__(
        self,
        fragment: RemoteFragment,
        reader: GatewayBrowseReader,
        first_sequence: int,
        last_sequence: int,
        *,
        is_bounded: bool = False,
    ) -> None:
        """Attach a reader to a range (both ends included). If `is_bounded`, the reader is detached at the end."""
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
        """Deliver browsed messages, and note the sequence number to continue at."""
        super().on_deliveries(deliveries)
        if not self._was_returned:
            self._next_sequence = int.from_bytes(deliveries[-1][1]) + 1
        self._was_returned = False

    def _return_messages(self, deliveries: list[Delivery]) -> None:
        """Attach again at the first message that the reader did not accept."""
        self._was_returned = True
        self._next_sequence = int.from_bytes(deliveries[0][1])
        self.reattach()
