"""A visitor: a receiver of another process, at a fragment of this one.

Owns: what it has claimed, and that it hears when there is something for it while it has claimed nothing. To the
fragment it is a consumer like any other.
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
    """One receiver at one fragment."""

    def __init__(
        self,
        consumer_id: int,
        fragment: Fragment,
        *,
        client_id: int,
        receive_and_delete: bool,
        notify: Callable[[Reply], None],
    ) -> None:
        """`number` is its own, and `client` that of who it is of, in its process, which hears of it by `notify`."""
        self.consumer_id = consumer_id
        self.fragment = fragment
        self.client_id = client_id
        self.receive_and_delete = receive_and_delete
        self.is_closed = False
        self.session_lock: SessionLock | None = None
        self._notify = notify
        self._credit = 0
        self._deleting = 0
        """Of that, what is being deleted, to be delivered then."""
        self._has_credit = False
        self._is_drained = False
        self._is_notified = False
        """That there is something for it."""
        self._delivered_tags: list[bytes] = []
        """The tags of what it was given since it claimed."""
        self._confirmed_count = 0
        """How many of these the receiver has, or has returned."""
        if receive_and_delete:
            fragment.returnable[self] = {}

    # --- its process calls these --------------------------------------------------------------------------------------

    def grant_credit(self, count: int) -> None:
        """It takes so many now. What it was given before it has, or it was brought back."""
        self._delivered_tags.clear()
        self._confirmed_count = 0
        self._returnable_messages().clear()
        if self.is_closed:
            return
        self._credit, self._has_credit, self._is_drained = count, True, False
        self.fragment.dispatcher.drain(self, self._on_drained)

    def return_messages(self, sequence_numbers: list[int], on_done: OnDone) -> None:
        """Messages that were deleted for it were not taken."""
        returnable = self._returnable_messages()
        items = [(number, returnable.pop(number)) for number in sequence_numbers if number in returnable]
        if items:
            self.fragment.restore_deleted(items, on_done)
        else:
            on_done(None)

    def confirm_delivered(self, delivered_count: int) -> None:
        """Note that the first messages since it granted credit do not come back."""
        returnable = self._returnable_messages()
        for tag in self._delivered_tags[self._confirmed_count : delivered_count]:
            returnable.pop(int.from_bytes(tag), None)
        self._confirmed_count = delivered_count
        self.fragment.advance_browsers()

    def _returnable_messages(self) -> dict[int, bytes]:
        """Messages that were deleted for it since it claimed, and may come back."""
        return self.fragment.returnable.get(self, {})

    def on_session_granted(self, session_lock: SessionLock) -> None:
        """It has a session."""
        self.session_lock = session_lock
        self._notify(SessionGranted(self.consumer_id, session_lock.session_id, session_lock.locked_until_ms))

    def detach(self, received_count: int | None = None) -> None:
        """It has gone, and has seen so many messages of what it was given: the others are there as they were."""
        self.is_closed, self._credit, fragment = True, 0, self.fragment
        tags = self._delivered_tags[received_count:] if received_count is not None else []
        if self.receive_and_delete:  # its session is free when they are back: who has that next gets them first
            self.return_messages([int.from_bytes(tag) for tag in tags], lambda _error: fragment.dispatcher.remove(self))
            fragment.returnable.pop(self, None)
            fragment.advance_browsers()
            return
        fragment.dispatcher.remove(self)
        with suppress(ServiceBusError):  # its store does not work, and the locks are void, or will be over
            fragment.settlement.release(fragment.lock_numbers(tags), ignore)

    def _on_drained(self) -> None:
        self._is_drained = True
        self._finish_if_drained()

    def _finish_if_drained(self) -> None:
        """The claim is over, once all that is being deleted for it was given."""
        if not self._has_credit or not self._is_drained or self._deleting > 0:
            return
        self._credit, self._has_credit, self._is_notified = 0, False, False
        self._notify(Drained(self.consumer_id))
        if not self.is_closed:
            self.fragment.dispatcher.dispatch_to(self)  # it is asked for its room when there is something

    # --- the fragment calls these -------------------------------------------------------------------------------------

    @property
    def available_credit(self) -> int:
        """How many messages it takes now. Who asks has some: if it claims nothing, it is told."""
        if not self._has_credit and not self._is_notified and not self.is_closed:
            self._is_notified = True
            self._notify(MessagesAvailable(self.consumer_id))
        return self._credit

    def reserve_credit(self, count: int) -> None:
        """So many are being deleted, to be delivered then."""
        self._credit -= count
        self._deleting += count
        self._finish_if_drained()

    def deliver(self, deliveries: list[Delivery]) -> int:
        """Messages for it."""
        if self.receive_and_delete:
            self._deleting -= len(deliveries)
        else:
            self._credit -= len(deliveries)
        self._delivered_tags += [tag for _, tag in deliveries]
        self._notify(Deliveries(self.consumer_id, deliveries))
        self._finish_if_drained()
        return len(deliveries)

    def request_messages(self) -> None:
        """Its room is for this fragment alone, which knows of it."""

    def force_detach(self, error: ServiceBusError) -> None:
        """The entity was deleted or disabled, or another receiver has claimed it."""
        if not self.is_closed:
            self.is_closed = True
            self._notify(ConsumerDetached(self.consumer_id, error_name(error), str(error)))

    def on_session_lock_lost(self, error: ServiceBusError) -> None:
        """The time for which it had its session is over."""
        self.force_detach(error)


class RemoteBrowseReader:
    """Somebody of another process who reads a fragment of this one. To its `Browser` it is a reader."""

    def __init__(self, consumer_id: int, notify: Callable[[Reply], None]) -> None:
        """As a visitor."""
        self.consumer_id = consumer_id
        self._notify = notify
        self._credit = 0
        self._has_credit = False
        self._is_notified = False

    def grant_credit(self, count: int) -> None:
        """It sees so many now."""
        self._credit, self._has_credit = count, True

    def on_drained(self) -> None:
        """It has seen all that there is."""
        self._credit, self._has_credit, self._is_notified = 0, False, False
        self._notify(Drained(self.consumer_id))

    @property
    def wants_messages(self) -> bool:
        """It wants messages. Who asks has some: if it claims nothing, it is told."""
        if not self._has_credit and not self._is_notified:
            self._is_notified = True
            self._notify(MessagesAvailable(self.consumer_id))
        return self._credit > 0

    @property
    def available_credit(self) -> int:
        """How many it sees now."""
        return self._credit

    def deliver_browsed(self, deliveries: list[Delivery]) -> int:
        """Messages to be seen."""
        if deliveries:
            self._credit -= len(deliveries)
            self._notify(Deliveries(self.consumer_id, deliveries))
        return len(deliveries)

    def force_detach(self, error: ServiceBusError) -> None:
        """The entity was deleted or disabled."""
        self._notify(ConsumerDetached(self.consumer_id, error_name(error), str(error)))


class RemoteConsumerGroup:
    """One receiver. To the claim it is the consumer that has it."""

    receive_and_delete = False

    def __init__(self, link_id: int, client_id: int, exclusive_receiver: ExclusiveReceiver) -> None:
        """`link` is its number, and `client` that of who it is of, in its process."""
        self.link_id = link_id
        self.client_id = client_id
        self.consumers: set[RemoteConsumer] = set()
        self._exclusive_receiver = exclusive_receiver

    def attach(self, path: str, epoch: int | None, fragments: Sequence[Fragment], *, if_free: bool = False) -> None:
        """It comes, and claims the entity if it has an epoch. EntityClaimed if it cannot."""
        if epoch is None:
            self._exclusive_receiver.check_free(path)
            return
        others = any(fragment.dispatcher.consumers for fragment in fragments)
        self._exclusive_receiver.check_epoch(path, epoch, has_other_receivers=others, only_if_free=if_free)
        self._exclusive_receiver.displace(path, epoch, fragments)
        self._exclusive_receiver.assign(self, epoch, fragments)

    def detach(self) -> None:
        """It has gone."""
        self._exclusive_receiver.release(self)

    def force_detach(self, error: ServiceBusError) -> None:
        """Another receiver has claimed the entity."""
        for visitor in list(self.consumers):
            visitor.fragment.dispatcher.remove(visitor)
            visitor.force_detach(error)

    @property
    def is_closed(self) -> bool:
        """It is there as long as one of its visitors is."""
        return not self.consumers

    @property
    def available_credit(self) -> int:
        """Its visitors take messages, not it."""
        return 0

    def reserve_credit(self, count: int) -> None:
        """As for `room`."""

    def deliver(self, deliveries: list[Delivery]) -> int:
        """As for `room`."""
        raise AssertionError(deliveries)

    def request_messages(self) -> None:
        """As for `room`."""

    def on_session_lock_lost(self, error: ServiceBusError) -> None:
        """As for `room`."""
