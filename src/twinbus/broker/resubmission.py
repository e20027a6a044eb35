"""Resubmission: dead letters that become active again.

Owns: their way back, in one batch: a message is in the dead-letter queue, or active again under a new number, and never
in both or neither. It is as it was sent, or as it was edited: not yet delivered, with all the time it may live, and
without what was noted when it was dead-lettered. Duplicates are not looked for: it is one, and wanted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.keys import pack_sequence
from twinbus.broker.locks import NEVER_S, Lock
from twinbus.broker.lookup import look_up
from twinbus.broker.ports.incoming import Parcel
from twinbus.broker.record import make_record, render_open, take_apart, without_properties
from twinbus.broker.settlement import NOTED
from twinbus.model.callbacks import ignore
from twinbus.model.errors import InvalidArgument, MessageNotFound, ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.intake import Intake
    from twinbus.broker.receivable_part import ReceivablePart


class Resubmission:
    """The way back of one queue's dead letters."""

    def __init__(self, queue: ReceivablePart) -> None:
        """Made by its part."""
        self._queue = queue

    def resubmit(
        self,
        sequences: list[int],
        edited: bytes | None,
        intake: Intake,
        done: Callable[[list[int] | ServiceBusError], None],
    ) -> None:
        """Make dead letters active: all of them, or none. `done` hears their new sequence numbers.

        `edited` is what the one message is from now on, as a client would send it.
        """
        dead = self._queue.dead_letters
        self._queue.entity.check_sends()
        dead.journal.check_takes_sends()
        dead.check_loaded()
        taken: list[tuple[Lock, bytes]] = []
        life = dead.life

        def visit(place: int, record: bytes | None) -> None:
            """Nobody else has it from now on, however many are still to be read."""
            sequence = sequences[place]
            if record is not None and sequence not in dead.out:
                lock = Lock(0, sequence, len(record), NEVER_S)
                dead.line.take_away({sequence})
                dead.out.add([lock])
                taken.append((lock, record))

        def looked_up(error: ServiceBusError | None) -> None:
            there = {lock.sequence for lock, _ in taken}
            missing = next((sequence for sequence in sequences if sequence not in there), None)
            if error is None and missing is not None:
                error = MessageNotFound(f"no dead letter {missing} is there, or someone has it")
            try:
                if error is not None:
                    raise error
                parcel = self._read_anew([record for _, record in taken], edited, intake)
                growth = sum([len(record) for record in parcel.records]) - sum([lock.size for lock, _ in taken])
                if growth > 0:
                    self._queue.check_room(growth)
                self._move([lock for lock, _ in taken], parcel, done)
            except ServiceBusError as problem:
                if life == dead.life:
                    for lock, record in taken:
                        dead.bring_back(lock, record)
                done(problem)
                dead.line.dispatch()

        place = dead.holdings.active
        look_up(dead, [place + pack_sequence(sequence) for sequence in sequences], visit, looked_up)

    def _move(self, locks: list[Lock], parcel: Parcel, done: Callable[[list[int] | ServiceBusError], None]) -> None:
        numbers: list[int] = []
        first = self._queue.main.enqueue(parcel.records, lambda error: done(error if error is not None else numbers))
        numbers.extend(range(first, first + len(parcel.records)))
        self._queue.dead_letters.remove(locks, ignore)

    def _read_anew(self, records: list[bytes], edited: bytes | None, intake: Intake) -> Parcel:
        parcel, now_ms = Parcel(), self._queue.main.clock.wall_ms()
        for record in records:
            payload = edited if edited is not None else _as_sent(record)
            intake.add_to(parcel, payload, 0, now_ms, self._queue.terms)
        if parcel.pings:
            raise InvalidArgument("a ping cannot be stored")
        return parcel


def _as_sent(record: bytes) -> bytes:
    parts = take_apart(record)
    return render_open(make_record(parts._replace(bare=without_properties(parts.bare, NOTED))), 0)
