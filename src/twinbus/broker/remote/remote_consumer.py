"""Receivers and browse readers in other processes that use fragments in this process.

Owns the credit granted by these receivers and readers, and notifies receivers and readers without credit of available
messages. A fragment treats remote receivers and readers like local ones.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from twinbus.broker.ports.peer_protocol import (
    ConsumerDetached,
    Deliveries,
    Drained,
    MessagesAvailable,
    SessionGranted,
    error_name,
)
from twinbus.model.callbacks import ignore
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinbus.broker.fragment.fragment import Fragment
    from twinbus.broker.ports.callbacks import OnDone
    from twinbus.broker.ports.consumer import Delivery
    from twinbus.broker.ports.exclusive_receiver import ExclusiveReceiver
    from twinbus.broker.ports.fragment import SessionLock
    from twinbus.broker.ports.peer_protocol import Reply


class RemoteConsumer:
    """A receiver in another process that uses one local fragment."""

    def __init__(
        self,
        consumer_id: int,
        fragment: Fragment,
        *,
        client_id: int,
        receive_and_delete: bool,
        notify: Callable[[Reply], None],
    ) -> None:
        """Create a consumer; the receiver's process has assigned the ids, and gets notices through `notify`."""
        self.consumer_id = consumer_id
        self.fragment = fragment
        self.client_id = client_id
        self.receive_and_delete = receive_and_delete
        self.is_closed = False
        self.session_lock: SessionLock | None = None
        self._notify = notify
        self._credit = 0
        self._deleting = 0
        """Credit reserved for messages that are delivered after their deletion."""
        self._has_credit = False
        self._is_drained = False
        self._is_notified = False
        """Whether the receiver was notified of available messages since its last credit."""
        self._delivered_tags: list[bytes] = []
        """Delivery tags of the messages delivered since the last grant of credit."""
        self._confirmed_count = 0
        """Number of messages in `_delivered_tags` that the receiver has confirmed or returned."""
        if receive_and_delete:
            fragment.returnable[self] = {}

    # --- requests of the receiver's process ---------------------------------------------------------------------------

    def grant_credit(self, count: int) -> None:
        """Deliver up to `count` messages; all messages from earlier grants are confirmed or returned by now."""
        self._delivered_tags.clear()
        self._confirmed_count = 0
        self._returnable_messages().clear()
        if self.is_closed:
            return
        self._credit, self._has_credit, self._is_drained = count, True, False
        self.fragment.dispatcher.drain(self, self._on_drained)

    def return_messages(self, sequence_numbers: list[int], on_done: OnDone) -> None:
        """Restore messages that were deleted for the receiver, but that the receiver did not accept."""
        returnable = self._returnable_messages()
        items = [(number, returnable.pop(number)) for number in sequence_numbers if number in returnable]
        if items:
            self.fragment.restore_deleted(items, on_done)
        else:
            on_done(None)

    def confirm_delivered(self, delivered_count: int) -> None:
        """Note that the first `delivered_count` messages since the last grant will not be returned."""
        returnable = self._returnable_messages()
        for tag in self._delivered_tags[self._confirmed_count : delivered_count]:
            returnable.pop(int.from_bytes(tag), None)
        self._confirmed_count = delivered_count
        self.fragment.advance_browsers()

    def _returnable_messages(self) -> dict[int, bytes]:
        """Return the messages deleted since the last grant of credit that the receiver may still return."""
        return self.fragment.returnable.get(self, {})

    def on_session_granted(self, session_lock: SessionLock) -> None:
        """Record the session that the receiver holds now, and notify its process."""
        self.session_lock = session_lock
        self._notify(SessionGranted(self.consumer_id, session_lock.session_id, session_lock.locked_until_ms))

    def detach(self, received_count: int | None = None) -> None:
        """Detach the receiver, and requeue the messages after the first `received_count` (None: requeue none)."""
        self.is_closed, self._credit, fragment = True, 0, self.fragment
        tags = self._delivered_tags[received_count:] if received_count is not None else []
        if self.receive_and_delete:
            # release the session after the restore, so that its next receiver gets the restored messages first
            self.return_messages([int.from_bytes(tag) for tag in tags], lambda _error: fragment.dispatcher.remove(self))
            fragment.returnable.pop(self, None)
            fragment.advance_browsers()
            return
        fragment.dispatcher.remove(self)
        with suppress(ServiceBusError):  # if the store does not work, the locks are void or will expire
            fragment.settlement.release(fragment.lock_numbers(tags), ignore)

    def _on_drained(self) -> None:
        self._is_drained = True
        self._finish_if_drained()

    def _finish_if_drained(self) -> None:
        """End the grant of credit after all messages that are being deleted were delivered."""
        if not self._has_credit or not self._is_drained or self._deleting > 0:
            return
        self._credit, self._has_credit, self._is_notified = 0, False, False
        self._notify(Drained(self.consumer_id))
        if not self.is_closed:
            self.fragment.dispatcher.dispatch_to(self)  # so that the next available messages trigger a notice

    # --- calls of the fragment ----------------------------------------------------------------------------------------

    @property
    def available_credit(self) -> int:
        """Number of messages that the receiver accepts now.

        A fragment reads this property only if it has messages, so a receiver without credit is notified of them.
        """
        if not self._has_credit and not self._is_notified and not self.is_closed:
            self._is_notified = True
            self._notify(MessagesAvailable(self.consumer_id))
        return self._credit

    def reserve_credit(self, count: int) -> None:
        """Reserve credit for `count` messages that are delivered after their deletion (negative: release credit)."""
        self._credit -= count
        self._deleting += count
        self._finish_if_drained()

    def deliver(self, deliveries: list[Delivery]) -> int:
        """Send messages to the receiver's process, and return their number."""
        if self.receive_and_delete:
            self._deleting -= len(deliveries)
        else:
            self._credit -= len(deliveries)
        self._delivered_tags += [tag for _, tag in deliveries]
        self._notify(Deliveries(self.consumer_id, deliveries))
        self._finish_if_drained()
        return len(deliveries)

    def request_messages(self) -> None:
        """Do nothing: the credit was granted only to this fragment, which knows the credit already."""

    def force_detach(self, error: ServiceBusError) -> None:
        """Detach the receiver and notify its process of the error."""
        if not self.is_closed:
            self.is_closed = True
            self._notify(ConsumerDetached(self.consumer_id, error_name(error), str(error)))

    def on_session_lock_lost(self, error: ServiceBusError) -> None:
        """Detach the receiver, which has lost its session lock."""
        self.force_detach(error)


class RemoteBrowseReader:
    """A browse reader in another process that uses one local fragment."""

    def __init__(self, consumer_id: int, notify: Callable[[Reply], None]) -> None:
        """Create a reader; its process has assigned `consumer_id`, and gets notices through `notify`."""
        self.consumer_id = consumer_id
        self._notify = notify
        self._credit = 0
        self._has_credit = False
        self._is_notified = False

    def grant_credit(self, count: int) -> None:
        """Set the number of messages that the reader accepts now."""
        self._credit, self._has_credit = count, True

    def on_drained(self) -> None:
        """End the grant of credit, because all present messages were delivered."""
        self._credit, self._has_credit, self._is_notified = 0, False, False
        self._notify(Drained(self.consumer_id))

    @property
    def wants_messages(self) -> bool:
        """Whether the reader has credit.

        A fragment reads this property only if it has messages, so a reader without credit is notified of them.
        """
        if not self._has_credit and not self._is_notified:
            self._is_notified = True
            self._notify(MessagesAvailable(self.consumer_id))
        return self._credit > 0

    @property
    def available_credit(self) -> int:
        """Number of messages that the reader accepts now."""
        return self._credit

    def deliver_browsed(self, deliveries: list[Delivery]) -> int:
        """Send messages to the reader's process, and return their number."""
        if deliveries:
            self._credit -= len(deliveries)
            self._notify(Deliveries(self.consumer_id, deliveries))
        return len(deliveries)

    def force_detach(self, error: ServiceBusError) -> None:
        """Notify the reader's process that the reader is detached with an error."""
        self._notify(ConsumerDetached(self.consumer_id, error_name(error), str(error)))


class RemoteConsumerGroup:
    """All remote consumers of one receiver, which hold an exclusive claim together."""

    receive_and_delete = False

    def __init__(self, link_id: int, client_id: int, exclusive_receiver: ExclusiveReceiver) -> None:
        """Create a group without consumers; the receiver's process has assigned the ids."""
        self.link_id = link_id
        self.client_id = client_id
        self.consumers: set[RemoteConsumer] = set()
        self._exclusive_receiver = exclusive_receiver

    def attach(self, path: str, epoch: int | None, fragments: Sequence[Fragment], *, if_free: bool = False) -> None:
        """Attach the receiver and, if `epoch` is given, claim the entity for it. Raises EntityClaimed."""
        if epoch is None:
            self._exclusive_receiver.check_free(path)
            return
        has_other_receivers = any(fragment.dispatcher.consumers for fragment in fragments)
        self._exclusive_receiver.check_epoch(path, epoch, has_other_receivers=has_other_receivers, only_if_free=if_free)
        self._exclusive_receiver.displace(path, epoch, fragments)
        self._exclusive_receiver.assign(self, epoch, fragments)

    def detach(self) -> None:
        """Release the receiver's claim on the entity."""
        self._exclusive_receiver.release(self)

    def force_detach(self, error: ServiceBusError) -> None:
        """Detach all consumers, because another receiver has claimed the entity."""
        for consumer in list(self.consumers):
            consumer.fragment.dispatcher.remove(consumer)
            consumer.force_detach(error)

    @property
    def is_closed(self) -> bool:
        """Whether the receiver has no consumers left."""
        return not self.consumers

    @property
    def available_credit(self) -> int:
        """Always 0: messages are delivered to the individual consumers, not to the group."""
        return 0

    def reserve_credit(self, count: int) -> None:
        """Do nothing: the group has no credit."""

    def deliver(self, deliveries: list[Delivery]) -> int:
        """Raise AssertionError: no messages are delivered to the group."""
        raise AssertionError(deliveries)

    def request_messages(self) -> None:
        """Do nothing: the group has no credit."""

    def on_session_lock_lost(self, error: ServiceBusError) -> None:
        """Do nothing: sessions are held by the individual consumers."""
