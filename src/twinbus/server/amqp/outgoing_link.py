"""A link on which a client receives messages from an entity.

Owns: the path from credit to deliveries, and from a disposition to its confirmation, which is sent when the settlement
is on disk. The link is a consumer of the entity's fragments.
"""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final

from twinbus.amqp.outcomes import ACCEPTED, RELEASED, Accepted, Modified, Rejected, Released, TransactionalState
from twinbus.amqp.states import SenderSettleMode
from twinbus.amqp.terminus import Source
from twinbus.broker.ports.consumer import ReceiverIdentity
from twinbus.broker.ports.fragment import OWNER_TIMEOUT_S
from twinbus.broker.ports.multi_fragment_receiver import MultiFragmentReceiver
from twinbus.broker.ports.settlement import SomeLocksLost, lock_lost_error
from twinbus.model.callbacks import ignore
from twinbus.model.errors import LinkStolen, NotImplementedHere, ServiceBusError, StoreUnavailable
from twinbus.server.amqp.errors import to_amqp_error
from twinbus.server.amqp.sdk_decimals import rewrite_decimals
from twinbus.server.amqp.socket_backpressure import SocketBackpressure
from twinbus.server.amqp.transactions import disposition_of
from twinbus.server.auth.keys import Right
from twinbus.server.usage.counter import UsageCounter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from twinbus.amqp.aio import Peer
    from twinbus.amqp.codec.composite import Composite
    from twinbus.amqp.delivery import OutgoingDelivery
    from twinbus.amqp.sender import Sender
    from twinbus.broker.clock import Clock
    from twinbus.broker.namespace import Queue, Subscription
    from twinbus.broker.ports.callbacks import OnDone
    from twinbus.broker.ports.consumer import Delivery
    from twinbus.broker.ports.exclusive_receiver import ExclusiveReceiver
    from twinbus.broker.ports.fragment import FragmentPort, OwnerPort, SettlementPort
    from twinbus.server.amqp.socket_backpressure import CallSoon
    from twinbus.server.amqp.transactions import Transactions

MAX_DELIVERIES_PER_BATCH: Final = 64
"""How many messages (up to 16 MB) are delivered before the socket is checked again."""
_EMPTY_REJECTED: Final = Rejected()
_EMPTY_MODIFIED: Final = Modified()


class OutgoingLink:
    """The server's end of a link on which a client receives messages from an entity's fragments."""

    right: ClassVar[Right] = Right.LISTEN

    def __init__(
        self,
        link: Sender,
        peer: Peer,
        path: str,
        fragments: Sequence[FragmentPort],
        clock: Clock,
        call_soon: CallSoon,
        receiver_identity: ReceiverIdentity | None = None,
        *,
        counter: UsageCounter | None = None,
    ) -> None:
        """Accept the link. Nothing is sent before the client grants credit.

        `receiver_identity` identifies the link to other processes that own some of the fragments. Operations are
        counted in `counter`.
        """
        self.link = link
        self._counter = counter or UsageCounter()
        self.receiver_identity = receiver_identity or ReceiverIdentity()
        self._is_accepted = False
        self._pending_admissions = 0
        """The number of fragments in other processes that have not admitted the link yet."""
        self.path = path
        self.receive_and_delete = link.remote_attach is not None and (
            link.remote_attach.snd_settle_mode == SenderSettleMode.SETTLED
        )
        self.is_closed = False
        self.last_used_s = clock.monotonic_s()
        self._backpressure = SocketBackpressure(peer, call_soon, self.request_messages)
        self._multi_receiver = MultiFragmentReceiver(fragments)
        self._clock = clock
        self.exclusive_receiver: ExclusiveReceiver | None = None
        """The link's claim on the entity; None if the link is not an exclusive receiver."""
        self.source: Queue | Subscription | None = None
        """The entity from which messages are received, for settlement in transactions."""
        self.transactions: Transactions | None = None
        self.rewrites_decimals = False
        """Whether the client is an SDK that needs decimals in its own layout (`sdk_decimals`)."""
        self._reserved_credit = 0
        self.message_count = 0
        """Messages sent on this link."""
        self._has_delivered = False
        """Whether a message was delivered with the current credit. If not, the receive is empty."""
        self._register()

    def _register(self) -> None:
        receiver = self._multi_receiver
        self._pending_admissions = receiver.count_asynchronous_admissions()
        if not self._pending_admissions:
            self._accept()
            receiver.add(self)
            return
        receiver.add(self)  # the link is accepted after the responses of all owners: any owner may refuse
        fragment = receiver.fragments[0]
        fragment.timers.call_at(self._clock.monotonic_s() + OWNER_TIMEOUT_S, self._accept)

    def _accept(self) -> None:
        if not self._is_accepted and not self.is_closed:
            self._is_accepted = True
            self.link.accept(source=accepted_source(self.link, None))
            self._use_credit()

    def on_admitted(self) -> None:
        """Count the admission by a fragment in another process; accept the link after the last admission."""
        self._pending_admissions -= 1
        if self._pending_admissions == 0:
            self._accept()

    @property
    def is_busy(self) -> bool:
        """Whether the client is waiting for messages, or has unsettled messages."""
        return self.link.credit > 0 or self.link.unsettled_count > 0

    # --- to the client ------------------------------------------------------------------------------------------------

    @property
    def available_credit(self) -> int:
        """How many messages the link accepts now."""
        return (
            min(self.link.sendable - self._reserved_credit, MAX_DELIVERIES_PER_BATCH)
            if self._backpressure.has_room()
            else 0
        )

    def reserve_credit(self, count: int) -> None:
        """Reserve credit for messages that are being deleted and will be delivered afterwards."""
        self._reserved_credit += count

    def deliver(self, deliveries: list[Delivery]) -> int:
        """Send as many messages as the client has credit for; return how many were sent."""
        if self.receive_and_delete:
            self._reserved_credit -= len(deliveries)
        count = min(len(deliveries), self.link.credit if self.link.is_attached else 0)
        sent = deliveries[:count]
        if self.rewrites_decimals:
            sent = [(rewrite_decimals(payload), tag) for payload, tag in sent]
        self.link.send_many(sent, settled=self.receive_and_delete)
        self.message_count += count
        self._counter.add_receives(sent)
        self._has_delivered = self.link.credit > 0  # if no credit is left, the next credit is a new receive
        return count

    def request_messages(self) -> None:
        """Request messages from the fragments, after new credit or when the socket has room again."""
        if self.link.credit > 0 and not self.is_closed:
            self._multi_receiver.dispatch_to(self)

    def on_credit(self) -> None:
        """Handle a flow from the client, which grants credit or requests a drain."""
        self.last_used_s = self._clock.monotonic_s()
        if self.link.is_attached:  # otherwise `_accept` uses the credit later
            self._use_credit()

    def _use_credit(self) -> None:
        if self.link.drain_requested:
            self._multi_receiver.drain(self, self._on_drained)
        else:
            self.request_messages()

    def _on_drained(self) -> None:
        if self.link.drain_requested:
            self._count_empty_receive()
            self.link.drained()

    def _count_empty_receive(self) -> None:
        """Count an empty receive if the link is drained or detached without a delivery, however long it waited."""
        if self.link.credit > 0 and not self._has_delivered:
            self._counter.empty_receives += 1
        self._has_delivered = False

    def force_detach(self, error: ServiceBusError) -> None:
        """Detach the link with an error. The entity was deleted or disabled, or another receiver has claimed it.

        A receiver with a newer claim gets the messages that this link has locked.
        """
        self.is_closed = True
        reclaimed = self.link.unsettled() if isinstance(error, LinkStolen) and not self.receive_and_delete else []
        if self._is_accepted:
            self.link.detach(error=to_amqp_error(error))
        else:
            self.link.refuse(to_amqp_error(error))
        self._multi_receiver.remove(self)
        self._leave_exclusive_receiver()
        for fragment, deliveries in self._by_fragment(reclaimed):
            with suppress(StoreUnavailable):  # the owner's process has ended, and its locks are gone
                fragment.settlement.reclaim(_lock_numbers(fragment, deliveries))

    def on_session_lock_lost(self, error: ServiceBusError) -> None:
        """Detach the link, because the lock on its session has expired."""
        self.force_detach(error)

    def on_detached(self, lost: list[OutgoingDelivery]) -> None:
        """Release the messages that were never sent to the client; messages that were sent stay locked."""
        self.is_closed = True
        self._count_empty_receive()
        self._multi_receiver.remove(self)
        self._leave_exclusive_receiver()
        self._release([delivery for delivery in lost if delivery.delivery_id is None])

    def owners(self) -> set[OwnerPort]:
        """Return the other processes from which this link received messages."""
        return self._multi_receiver.responsive_owners()

    def _leave_exclusive_receiver(self) -> None:
        if self.exclusive_receiver is not None:
            self.exclusive_receiver.release(self)

    def _release(self, deliveries: list[OutgoingDelivery]) -> None:
        if self.receive_and_delete:
            return
        for fragment, fragment_deliveries in self._by_fragment(deliveries):
            with suppress(ServiceBusError):  # if the store is down, the messages stay locked until their locks expire
                fragment.settlement.release(_lock_numbers(fragment, fragment_deliveries), ignore)

    def _return_messages(self, fragment: FragmentPort, deliveries: list[OutgoingDelivery]) -> None:
        """Unlock messages that were delivered to the client, so that they are delivered again.

        If an exclusive receiver returns messages, their delivery count increases, so that it recognises the redelivery.
        """
        if self.receiver_identity.epoch is None or fragment.has_sessions:
            self._release(deliveries)
            return
        with suppress(ServiceBusError):  # the owner's process has ended, and its locks are gone
            fragment.settlement.reclaim(_lock_numbers(fragment, deliveries))

    # --- from the client ----------------------------------------------------------------------------------------------

    def on_disposition(self, deliveries: list[OutgoingDelivery], state: object, *, settled: bool) -> None:
        """Settle messages as the client asks. If `settled` is False, the client waits for a confirmation."""
        self.last_used_s = self._clock.monotonic_s()
        if self.receive_and_delete:
            return
        self._counter.settlements += len(deliveries)
        for fragment, fragment_deliveries in self._by_fragment(deliveries):
            if isinstance(state, TransactionalState):
                self._settle_in_transaction(fragment, fragment_deliveries, state, settled=settled)
            else:
                self._settle(fragment, fragment_deliveries, state, settled=settled)

    def _settle(
        self, fragment: FragmentPort, deliveries: list[OutgoingDelivery], state: object, *, settled: bool
    ) -> None:
        numbers, held = _lock_numbers(fragment, deliveries), deliveries
        confirmation: Composite

        def confirm(error: ServiceBusError | None) -> None:
            if isinstance(error, SomeLocksLost):
                self._confirm_except(deliveries, numbers, set(error.lock_numbers), confirmation, settled=settled)
            else:
                self._confirm(
                    held, confirmation if error is None else Rejected(error=to_amqp_error(error)), settled=settled
                )

        try:
            settle, confirmation = self._select_settlement(fragment.settlement, state)
            lost = set(settle(numbers, confirm))
        except ServiceBusError as error:
            self._confirm(deliveries, Rejected(error=to_amqp_error(error)), settled=settled)
            return
        if lost:
            pairs = list(zip(deliveries, numbers, strict=True))
            held = [delivery for delivery, number in pairs if number not in lost]
            rejected = [delivery for delivery, number in pairs if number in lost]
            self._confirm(rejected, Rejected(error=to_amqp_error(self._lock_lost_error())), settled=settled)

    def _confirm_except(
        self,
        deliveries: list[OutgoingDelivery],
        lock_numbers: list[int],
        lost_numbers: set[int],
        confirmation: Composite,
        *,
        settled: bool,
    ) -> None:
        """Confirm all deliveries except those whose locks another process has reported as lost."""
        pairs = list(zip(deliveries, lock_numbers, strict=True))
        self._confirm(
            [delivery for delivery, number in pairs if number not in lost_numbers], confirmation, settled=settled
        )
        rejected = [delivery for delivery, number in pairs if number in lost_numbers]
        self._confirm(rejected, Rejected(error=to_amqp_error(self._lock_lost_error())), settled=settled)

    def _settle_in_transaction(
        self, fragment: FragmentPort, deliveries: list[OutgoingDelivery], state: TransactionalState, *, settled: bool
    ) -> None:
        """Settle messages in a transaction; the settlement is provisional until the transaction is committed."""
        assert self.transactions is not None
        assert self.source is not None
        outcome = state.outcome

        def on_end(is_done: bool) -> None:  # noqa: FBT001
            if not is_done:
                if settled:  # the client has forgotten the deliveries and will not settle them again
                    self._return_messages(fragment, deliveries)
            elif self.link.is_attached and not settled:
                self.link.settle(deliveries, ACCEPTED if isinstance(outcome, Accepted) else state)

        transaction = None
        try:
            transaction = self.transactions.find(state.txn_id)
            disposition, properties = disposition_of(outcome), self._modified_properties(outcome)
            part, numbers = self.source.parts[fragment.number], _lock_numbers(fragment, deliveries)
            lost = transaction.settle(part, fragment, numbers, disposition, properties, on_end)
            if lost:
                raise self._lock_lost_error()
        except ServiceBusError as error:
            if transaction is not None:
                transaction.fail(error)
            self._confirm(deliveries, Rejected(error=to_amqp_error(error)), settled=settled)
        else:
            if not settled:
                self.link.settle(deliveries, state, settled=False)

    def _modified_properties(self, outcome: object) -> dict[str, object]:
        """Return the message properties that an outcome changes."""
        if isinstance(outcome, Modified):
            return string_properties(outcome.message_annotations)
        if not isinstance(outcome, Rejected) or outcome.error is None:
            return {}
        info = string_properties(outcome.error.info)
        info.setdefault("DeadLetterErrorDescription", outcome.error.description)
        return {name: value for name, value in info.items() if value is not None}

    def _lock_lost_error(self) -> ServiceBusError:
        return lock_lost_error()

    def _select_settlement(
        self, settlement: SettlementPort, state: object
    ) -> tuple[Callable[[list[int], OnDone], list[int]], Composite]:
        """Return the settlement operation for an outcome, and the state that confirms the settlement."""
        if isinstance(state, Accepted):
            return settlement.complete, ACCEPTED
        if isinstance(state, Rejected):
            return self._dead_letter(settlement, state), _EMPTY_REJECTED
        if isinstance(state, Released) or state is None:
            return settlement.release, RELEASED
        if isinstance(state, Modified):
            changes = string_properties(state.message_annotations)
            if state.undeliverable_here:
                return lambda numbers, on_done: settlement.defer(numbers, on_done, changes), _EMPTY_MODIFIED
            return lambda numbers, on_done: settlement.abandon(numbers, on_done, changes), _EMPTY_MODIFIED
        raise NotImplementedHere(f"a message cannot be settled with {type(state).__name__}")

    def _dead_letter(self, settlement: SettlementPort, state: Rejected) -> Callable[[list[int], OnDone], list[int]]:
        info = string_properties(state.error.info if state.error is not None else None)
        reason, description = info.pop("DeadLetterReason", None), info.pop("DeadLetterErrorDescription", None)
        if description is None and state.error is not None:
            description = state.error.description
        return lambda numbers, on_done: settlement.dead_letter(
            numbers, on_done, reason=text_or_none(reason), description=text_or_none(description), properties=info
        )

    def _confirm(self, deliveries: list[OutgoingDelivery], state: Composite, *, settled: bool) -> None:
        if not settled:
            self.link.settle(deliveries, state)

    def _by_fragment(self, deliveries: list[OutgoingDelivery]) -> list[tuple[FragmentPort, list[OutgoingDelivery]]]:
        """Return the deliveries grouped by the fragment in their delivery tags."""
        receiver = self._multi_receiver
        if len(receiver.fragments) == 1:
            return [(receiver.fragments[0], deliveries)] if deliveries else []
        groups: dict[FragmentPort, list[OutgoingDelivery]] = {}
        for delivery in deliveries:
            groups.setdefault(receiver.fragment_of_tag(delivery.tag), []).append(delivery)
        return list(groups.items())


def _lock_numbers(fragment: FragmentPort, deliveries: list[OutgoingDelivery]) -> list[int]:
    return fragment.lock_numbers([delivery.tag for delivery in deliveries])


def accepted_source(link: Sender, filters: dict[str, object] | None) -> Source:
    """Return the source that the client requested, with only the filters that are applied."""
    source = link.remote_attach.source if link.remote_attach is not None else None
    assert isinstance(source, Source)
    return dataclasses.replace(source, filter=filters)


def string_properties(pairs: Mapping[Any, object] | None) -> dict[str, object]:
    """Return the pairs with string or symbol keys as text; pairs without a value are omitted."""
    return {str(key): value for key, value in (pairs or {}).items() if isinstance(key, str) and value is not None}


def text_or_none(value: object) -> str | None:
    """Return a reason or description as text, or None."""
    return str(value) if value is not None else None
