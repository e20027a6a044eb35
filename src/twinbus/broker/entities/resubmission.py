"""Resubmission: making dead letters active again, and moving messages to other entities.

Owns: taking messages out of a fragment by their sequence numbers, and storing them again in the same batch, so that
each message is always in exactly one place. A resubmitted message goes from the dead-letter queue to its queue. A moved
message becomes a transfer to another entity, which `forwarding` delivers exactly once. A message loses its dead-letter
properties; its other contents are as they were sent or edited. The message gets a new sequence number, a delivery
count of 0 and its full time to live. Resubmission skips duplicate detection, which would reject the message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.fragment.dead_lettering import DEAD_LETTER_PROPERTY_NAMES
from twinbus.broker.fragment.forwarding import with_destination
from twinbus.broker.fragment.locks import NEVER_EXPIRES_S, Lock
from twinbus.broker.fragment.record_lookup import look_up_records
from twinbus.broker.message_record import (
    HAS_EXTRA_ROWS,
    make_record,
    parse_record,
    render_unlocked,
    without_properties,
)
from twinbus.broker.ports.incoming_batch import IncomingBatch, ValidationPolicy
from twinbus.broker.store_keys import pack_sequence
from twinbus.model.callbacks import ignore
from twinbus.model.errors import InvalidArgument, MessageNotFound, NotAllowed, ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from twinbus.broker.entities.local_parts import ReceivablePart
    from twinbus.broker.fragment.fragment import Fragment
    from twinbus.broker.intake.message_intake import MessageIntake
    from twinbus.broker.ports.callbacks import OnDone

    StoreAgain: TypeAlias = Callable[[list[bytes]], None]
    """A function that stores taken records again, in the batch of this turn."""


class Resubmission:
    """The resubmission and the moving of messages in one part."""

    def __init__(self, part: ReceivablePart) -> None:
        """Create the resubmission for `part`."""
        self._part = part

    def resubmit(
        self,
        sequences: list[int],
        edited: bytes | None,
        intake: MessageIntake,
        on_result: Callable[[list[int] | ServiceBusError], None],
    ) -> None:
        """Make dead letters active, all or none; `on_result` gets their new sequence numbers, or the error.

        `edited` replaces the contents of a single message, encoded as a client would send it.
        """
        self._part.entity.check_send_enabled()

        def store_again(records: list[bytes]) -> None:
            policy = self._part.validation_policy
            batch = self._parse_again(records, edited, intake, policy)
            self._check_growth(batch.records, records)
            numbers: list[int] = []
            first = self._part.main.enqueue(
                batch.records, lambda error: on_result(error if error is not None else numbers)
            )
            numbers.extend(range(first, first + len(batch.records)))

        self._take(self._part.dead_letters, sequences, store_again, on_result)

    def move(
        self,
        source: Fragment,
        sequences: list[int],
        destination: str,
        intake: MessageIntake,
        on_done: OnDone,
    ) -> None:
        """Move active messages of `source` to the entity `destination`, all or none.

        `on_done` is called when the transfers are on disk. A message that the destination refuses later is in the
        transfer dead-letter queue of the part.
        """
        if source.forwarder is not None:
            raise NotAllowed(
                f"the messages of '{self._part.entity.path}' are being forwarded to '{source.forwarder.target}'"
            )

        def store_again(records: list[bytes]) -> None:
            batch = self._parse_again(records, None, intake, ValidationPolicy())
            transfers = [with_destination(record, destination) for record in batch.records]
            self._check_growth(transfers, records)
            self._part.open_transfers().enqueue(transfers, on_done)

        self._take(source, sequences, store_again, on_done)

    def _take(
        self,
        source: Fragment,
        sequences: list[int],
        store_again: StoreAgain,
        on_failed: Callable[[ServiceBusError], None],
    ) -> None:
        """Lock active messages of `source`, pass their records to `store_again`, and delete them in the same batch.

        If one of the messages does not exist or `store_again` raises an error, all messages stay where they are.
        """
        source.commit_log.check_accepts_sends()
        source.check_loaded()
        locked: list[tuple[Lock, bytes]] = []
        incarnation = source.incarnation

        def visit(index: int, record: bytes | None) -> None:
            """Lock the message before the remaining records are read, so that no receiver gets it."""
            sequence = sequences[index]
            if record is not None and sequence not in source.in_flight:
                lock = Lock(0, sequence, len(record), NEVER_EXPIRES_S)
                if record[1] & HAS_EXTRA_ROWS:
                    lock.load_from_record(record)
                source.dispatcher.withdraw({sequence})
                source.in_flight.add([lock])
                locked.append((lock, record))

        def looked_up(error: ServiceBusError | None) -> None:
            locked_sequences = {lock.sequence for lock, _ in locked}
            missing = next((sequence for sequence in sequences if sequence not in locked_sequences), None)
            if error is None and missing is not None:
                error = MessageNotFound(f"message {missing} does not exist, is not active, or a receiver has locked it")
            try:
                if error is not None:
                    raise error
                store_again([record for _, record in locked])
                source.remove([lock for lock, _ in locked], ignore)
            except ServiceBusError as failure:
                if incarnation == source.incarnation:
                    for lock, record in locked:
                        source.requeue(lock, record)
                on_failed(failure)
                source.dispatcher.dispatch()

        prefix = source.message_table.active_prefix
        look_up_records(source, [prefix + pack_sequence(sequence) for sequence in sequences], visit, looked_up)

    def _check_growth(self, new_records: list[bytes], old_records: list[bytes]) -> None:
        """Raise QuotaExceeded if the new records are larger than the old records, and do not fit into the entity."""
        growth = sum([len(record) for record in new_records]) - sum([len(record) for record in old_records])
        if growth > 0:
            self._part.check_quota(growth)

    def _parse_again(
        self, records: list[bytes], edited: bytes | None, intake: MessageIntake, policy: ValidationPolicy
    ) -> IncomingBatch:
        batch, now_ms = IncomingBatch(), self._part.main.clock.wall_ms()
        for record in records:
            payload = edited if edited is not None else _as_sent(record)
            intake.add_to(batch, payload, 0, now_ms, policy)
        if batch.ping_count:
            raise InvalidArgument("the edited message is a ping, which cannot be stored")
        return batch


def _as_sent(record: bytes) -> bytes:
    fields = parse_record(record)
    return render_unlocked(
        make_record(fields._replace(bare_message=without_properties(fields.bare_message, DEAD_LETTER_PROPERTY_NAMES))),
        0,
    )
