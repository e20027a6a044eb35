"""Resubmission: making dead letters active again.

Owns: the move of a message from the dead-letter queue to its queue. The move is one batch, so that the message is
always in exactly one of the two queues. The message gets a new sequence number, a delivery count of 0 and its full time
to live, and loses its dead-letter properties; its other contents are as they were sent, or as they were edited.
Duplicate detection is skipped, because it would reject the message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.fragment.dead_lettering import DEAD_LETTER_PROPERTY_NAMES
from twinbus.broker.fragment.locks import NEVER_EXPIRES_S, Lock
from twinbus.broker.fragment.record_lookup import look_up_records
from twinbus.broker.message_record import make_record, parse_record, render_unlocked, without_properties
from twinbus.broker.ports.incoming_batch import IncomingBatch
from twinbus.broker.store_keys import pack_sequence
from twinbus.model.callbacks import ignore
from twinbus.model.errors import InvalidArgument, MessageNotFound, ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.entities.local_parts import ReceivablePart
    from twinbus.broker.intake.message_intake import MessageIntake


class Resubmission:
    """The resubmission of dead letters in one part."""

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
        dead_letters = self._part.dead_letters
        self._part.entity.check_send_enabled()
        dead_letters.commit_log.check_accepts_sends()
        dead_letters.check_loaded()
        locked: list[tuple[Lock, bytes]] = []
        incarnation = dead_letters.incarnation

        def visit(index: int, record: bytes | None) -> None:
            """Lock the message before the remaining records are read, so that no receiver gets it."""
            sequence = sequences[index]
            if record is not None and sequence not in dead_letters.in_flight:
                lock = Lock(0, sequence, len(record), NEVER_EXPIRES_S)
                dead_letters.dispatcher.withdraw({sequence})
                dead_letters.in_flight.add([lock])
                locked.append((lock, record))

        def looked_up(error: ServiceBusError | None) -> None:
            locked_sequences = {lock.sequence for lock, _ in locked}
            missing = next((sequence for sequence in sequences if sequence not in locked_sequences), None)
            if error is None and missing is not None:
                error = MessageNotFound(f"dead letter {missing} does not exist, or a receiver has locked it")
            try:
                if error is not None:
                    raise error
                batch = self._parse_again([record for _, record in locked], edited, intake)
                growth = sum([len(record) for record in batch.records]) - sum([lock.size for lock, _ in locked])
                if growth > 0:
                    self._part.check_quota(growth)
                self._move([lock for lock, _ in locked], batch, on_result)
            except ServiceBusError as failure:
                if incarnation == dead_letters.incarnation:
                    for lock, record in locked:
                        dead_letters.requeue(lock, record)
                on_result(failure)
                dead_letters.dispatcher.dispatch()

        prefix = dead_letters.message_table.active_prefix
        look_up_records(dead_letters, [prefix + pack_sequence(sequence) for sequence in sequences], visit, looked_up)

    def _move(
        self, locks: list[Lock], batch: IncomingBatch, on_result: Callable[[list[int] | ServiceBusError], None]
    ) -> None:
        numbers: list[int] = []
        first = self._part.main.enqueue(batch.records, lambda error: on_result(error if error is not None else numbers))
        numbers.extend(range(first, first + len(batch.records)))
        self._part.dead_letters.remove(locks, ignore)

    def _parse_again(self, records: list[bytes], edited: bytes | None, intake: MessageIntake) -> IncomingBatch:
        batch, now_ms = IncomingBatch(), self._part.main.clock.wall_ms()
        for record in records:
            payload = edited if edited is not None else _as_sent(record)
            intake.add_to(batch, payload, 0, now_ms, self._part.validation_policy)
        if batch.ping_count:
            raise InvalidArgument("the edited message is a ping, which cannot be stored")
        return batch


def _as_sent(record: bytes) -> bytes:
    fields = parse_record(record)
    return render_unlocked(
        make_record(fields._replace(bare_message=without_properties(fields.bare_message, DEAD_LETTER_PROPERTY_NAMES))),
        0,
    )
