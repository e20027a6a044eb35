"""The simulation finds each fault that is planted in the broker or its store."""
# ruff: noqa: ANN401  # arguments are passed on unchanged

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from tests.simulation.broker.run import run
from tests.simulation.seeded_runs import describe_error
from twinbus.broker.clock import Timers
from twinbus.broker.commit_log import CommitLog
from twinbus.broker.entities import local_parts
from twinbus.broker.fragment.dispatcher import Dispatcher
from twinbus.broker.fragment.fragment import Fragment
from twinbus.broker.fragment.in_flight import InFlight
from twinbus.broker.fragment.locks import Locks
from twinbus.broker.fragment.message_table import MessageTable
from twinbus.broker.fragment.settlement import Settlement
from twinbus.broker.fragment.window import Window
from twinbus.store.memory import MemoryDisk

if TYPE_CHECKING:
    from collections.abc import Callable

ENOUGH = 600
"""Number of runs within which a fault must be found."""

Patch = pytest.MonkeyPatch


def first_fault() -> str:
    """Return the description of the first fault that a run finds."""
    for seed in range(ENOUGH):
        try:
            run(seed)
        except Exception as error:  # noqa: BLE001  # a fault may cause any exception
            return describe_error(error)
    return "nothing"


def call_after(patch: Patch, owner: type, name: str, then: Callable[..., None]) -> None:
    """Replace a method by one that calls the original and then `then`."""
    right = getattr(owner, name)

    def wrong(self: Any, *arguments: Any, **options: Any) -> Any:
        result = right(self, *arguments, **options)
        then(self, *arguments)
        return result

    patch.setattr(owner, name, wrong)


def commit_without_counters(patch: Patch) -> None:
    patch.setattr(Fragment, "write_counters", lambda *_: None)


def answer_before_changes_are_applied(patch: Patch) -> None:
    add = CommitLog.add

    def wrong(self: CommitLog, keeper: Any, size: int, applied: Any, answer: Any) -> None:
        def both() -> None:
            answer(None)
            applied()

        add(self, keeper, size, both, lambda error: answer(error) if error is not None else None)

    patch.setattr(CommitLog, "add", wrong)


def accept_before_sync(patch: Patch) -> None:
    enqueue = Fragment.enqueue

    def wrong(self: Fragment, records: Any, answer: Any, beside: Any = None) -> int:
        first = enqueue(self, records, lambda _: None, beside)
        answer(None)
        return first

    patch.setattr(Fragment, "enqueue", wrong)


def accept_failed_sends(patch: Patch) -> None:
    patch.setattr(CommitLog, "_fail_callbacks", lambda _, answers, __: [answer(None) for answer in answers])


def requeued_message_stays_in_flight(patch: Patch) -> None:
    call_after(patch, Fragment, "requeue", lambda self, lock, _: self.in_flight.add([lock]))


def requeue_outside_of_the_window(patch: Patch) -> None:
    patch.setattr(Dispatcher, "requeue", lambda self, sequence, record: self.window.requeue(sequence, record))


def in_flight_messages_are_forgotten(patch: Patch) -> None:
    call_after(patch, Fragment, "_deliver_locked", lambda self, *_: self.in_flight.clear())


def low_watermark_ignores_in_flight_messages(patch: Patch) -> None:
    patch.setattr(InFlight, "lowest", lambda _, other: other)


def cleared_window_continues_after_its_messages(patch: Patch) -> None:
    def wrong(self: Window) -> None:
        self.ready.clear()
        self.ready_bytes = 0

    patch.setattr(Window, "clear", wrong)


def in_flight_messages_are_delivered_again(patch: Patch) -> None:
    fill = Window.fill
    patch.setattr(Window, "fill", lambda self, rows, start, end, _: fill(self, rows, start, end, lambda _: False))


def requeue_at_the_end(patch: Patch) -> None:
    def wrong(self: Window, sequence: int, record: bytes) -> None:
        self.ready.append((sequence, record))
        self.ready_bytes += len(record)

    patch.setattr(Window, "requeue", wrong)


def lock_never_removed(patch: Patch) -> None:
    patch.setattr(Locks, "take", lambda self, number, _: self.by_number.get(number))


def lock_never_expires(patch: Patch) -> None:
    patch.setattr(Locks, "take_expired", lambda *_: [])


def expiry_is_not_counted(patch: Patch) -> None:
    wrong = lambda self, locks, answer, _: self._return_unchanged(locks, answer)  # noqa: E731
    patch.setattr(Settlement, "_write_returned", wrong)


def one_delivery_too_many(patch: Patch) -> None:
    policies = local_parts.fragment_policies

    def wrong(*arguments: Any, **named: Any) -> Any:
        main, dead = policies(*arguments, **named)
        main.max_delivery_count = (main.max_delivery_count or 0) + 1
        return main, dead

    patch.setattr(local_parts, "fragment_policies", wrong)


def count_not_incremented(patch: Patch) -> None:
    show = MessageTable.publish_counters

    def wrong(self: MessageTable) -> None:
        before = self.committed
        show(self)
        if self.committed.active_count > before.active_count:
            self.committed = self.committed._replace(active_count=before.active_count)

    patch.setattr(MessageTable, "publish_counters", wrong)


def bytes_of_a_failed_send_are_counted(patch: Patch) -> None:
    read = MessageTable.load_counters

    def wrong(self: MessageTable, value: bytes | None) -> None:
        size = self.active_bytes
        read(self, value)
        self.active_bytes = max(size, self.active_bytes)

    patch.setattr(MessageTable, "load_counters", wrong)


def batch_in_two_parts(patch: Patch) -> None:
    enqueue = Fragment.enqueue

    def wrong(self: Fragment, records: Any, answer: Any, beside: Any = None) -> int:
        for record in records[:-1]:
            enqueue(self, [record], lambda _: None)
            self.commit_log.flush()
        return enqueue(self, records[-1:], answer, beside)

    patch.setattr(Fragment, "enqueue", wrong)


def fragments_ignore_store_failures(patch: Patch) -> None:
    patch.setattr(Fragment, "on_store_failed", lambda _: None)
    patch.setattr(Fragment, "on_store_reopened", lambda _: None)


def no_dispatch_after_a_commit(patch: Patch) -> None:
    patch.setattr(Fragment, "resume", lambda _: None)


def drain_never_ends(patch: Patch) -> None:
    patch.setattr(Dispatcher, "_finish_drains", lambda _: None)
    patch.setattr(Timers, "run_due", lambda _: None)


def disk_loses_synced_changes(patch: Patch) -> None:
    sync, batches = MemoryDisk.sync, itertools.count()

    def wrong(self: MemoryDisk) -> None:
        for batch in self.unsynced:
            if next(batches) % 10 == 9:
                del batch.changes[0]
        sync(self)

    patch.setattr(MemoryDisk, "sync", wrong)


# Text of the expected violation, if a fault can cause only one. test_seeded_runs.py checks that seeds find nothing
# without a planted fault.
FAULTS: dict[Callable[[Patch], None], str] = {
    commit_without_counters: "without the marks",
    answer_before_changes_are_applied: "",
    accept_before_sync: "accepted before it was on disk",
    accept_failed_sends: "accepted",
    requeued_message_stays_in_flight: "",
    requeue_outside_of_the_window: "",
    in_flight_messages_are_forgotten: "",
    low_watermark_ignores_in_flight_messages: "low-water mark",
    cleared_window_continues_after_its_messages: "",
    in_flight_messages_are_delivered_again: "",
    requeue_at_the_end: "",
    lock_never_removed: "",
    lock_never_expires: "",
    expiry_is_not_counted: "",
    one_delivery_too_many: "not dead-lettered",
    count_not_incremented: "are shown",
    bytes_of_a_failed_send_are_counted: "bytes",
    batch_in_two_parts: "stored in part",
    fragments_ignore_store_failures: "",
    no_dispatch_after_a_commit: "gets nothing",
    drain_never_ends: "waits for its drain",
    disk_loses_synced_changes: "",
}


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    plant(monkeypatch)
    assert FAULTS[plant] in (fault := first_fault())
    assert fault != "nothing"
