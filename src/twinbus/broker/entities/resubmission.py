"""Resubmission: dead letters that become active again.

Owns: their way back, in one batch: a message is in the dead-letter queue, or active again under a new number, and never
in both or neither. It is as it was sent, or as it was edited: not yet delivered, with all the time it may live, and
without what was noted when it was dead-lettered. Duplicates are not looked for: it is one, and wanted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.fragment.locks import NEVER_EXPIRES_S, Lock
from twinbus.broker.fragment.record_lookup import look_up_records
from twinbus.broker.fragment.settlement import DEAD_LETTER_PROPERTY_NAMES
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
    """The way back of one queue's dead letters."""

    def __init__(self, part: ReceivablePart) -> None:
        """Made by its part."""
        self._part = part

    def resubmit(
        self,
        sequences: list[int],
        edited: bytes | None,
        intake: MessageIntake,
        on_result: Callable[[list[int] | ServiceBusError], None],
    ) -> None:
        """Make dead letters active: all of them, or none. `done` hears their new sequence numbers.

        `edited` is what the one message is from now on, as a client would send it.
        """
        dead = self._part.dead_letters
        self._part.entity.check_send_enabled()
        dead.commit_log.check_accepts_sends()
        dead.check_loaded()
        taken: list[tuple[Lock, bytes]] = []
        life = dead.incarnation

        def visit(place: int, record: bytes | None) -> None:
            """Nobody else has it from now on, however many are still to be read."""
            sequence = sequences[place]
            if record is not None and sequence not in dead.in_flight:
                lock = Lock(0, sequence, len(record), NEVER_EXPIRES_S)
                dead.dispatcher.withdraw({sequence})
                dead.in_flight.add([lock])
                taken.append((lock, record))

        def looked_up(error: ServiceBusError | None) -> None:
            there = {lock.sequence for lock, _ in taken}
            missing = next((sequence for sequence in sequences if sequence not in there), None)
            if error is None and missing is not None:
                error = MessageNotFound(f"no dead letter {missing} is there, or someone has it")
            try:
                if error is not None:
                    raise error
                parcel = self._parse_again([record for _, record in taken], edited, intake)
                growth = sum([len(record) for record in parcel.records]) - sum([lock.size for lock, _ in taken])
                if growth > 0:
                    self._part.check_quota(growth)
                self._move([lock for lock, _ in taken], parcel, on_result)
            except ServiceBusError as problem:
                if life == dead.incarnation:
                    for lock, record in taken:
                        dead.requeue(lock, record)
                on_result(problem)
                dead.dispatcher.dispatch()

        place = dead.message_table.active_prefix
        look_up_records(dead, [place + pack_sequence(sequence) for sequence in sequences], visit, looked_up)

    def _move(
        self, locks: list[Lock], batch: IncomingBatch, on_result: Callable[[list[int] | ServiceBusError], None]
    ) -> None:
        numbers: list[int] = []
        first = self._part.main.enqueue(batch.records, lambda error: on_result(error if error is not None else numbers))
        numbers.extend(range(first, first + len(batch.records)))
        self._part.dead_letters.remove(locks, ignore)

    def _parse_again(self, records: list[bytes], edited: bytes | None, intake: MessageIntake) -> IncomingBatch:
        parcel, now_ms = IncomingBatch(), self._part.main.clock.wall_ms()
        for record in records:
            payload = edited if edited is not None else _as_sent(record)
            intake.add_to(parcel, payload, 0, now_ms, self._part.validation_policy)
        if parcel.ping_count:
            raise InvalidArgument("a ping cannot be stored")
        return parcel


def _as_sent(record: bytes) -> bytes:
    parts = parse_record(record)
    return render_unlocked(
        make_record(parts._replace(bare_message=without_properties(parts.bare_message, DEAD_LETTER_PROPERTY_NAMES))), 0
    )
