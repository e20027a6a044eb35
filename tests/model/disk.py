"""A disk and a store that show the model what passes: what is on disk now, and what the broker is told of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.things import ACTIVE, DEAD, DEFERRED, MAIN, SCHEDULED, Place
from tests.model.violation import Violation
from twinbus.broker import keys
from twinbus.broker.holdings import MARKS, Marks
from twinbus.store.changes import Changes
from twinbus.store.memory import MemoryDisk, MemoryStore
from twinbus.store.protocol import Table

if TYPE_CHECKING:
    from random import Random

    from tests.model.model import Model
    from twinbus.store.memory import Post
    from twinbus.store.protocol import Answer, Batch, StoreError

ENTITY = 7
PREFIXES = {
    MAIN: keys.area_prefix(ENTITY, 0, keys.Area.MAIN),
    DEAD: keys.area_prefix(ENTITY, 0, keys.Area.DEAD_LETTER),
}
_SHELVES = {prefix: shelf for shelf, prefix in PREFIXES.items()}
_KINDS = {keys.ACTIVE: ACTIVE, keys.DEFERRED: DEFERRED, keys.SCHEDULED: SCHEDULED}


def place_of(key: bytes) -> Place:
    """Where a record lies."""
    kind = key[keys.PREFIX_BYTES : keys.PREFIX_BYTES + keys.KIND_BYTES]
    return Place(_SHELVES[key[: keys.PREFIX_BYTES]], _KINDS[kind], keys.sequence_of(key))


class WatchedDisk(MemoryDisk):
    """Shows every batch that reaches it."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def sync(self) -> None:
        batches, self.unsynced = list(self.unsynced), []
        for batch in batches:
            before = self.synced[Table.LOG].values.copy()
            self.unsynced = [batch]
            super().sync()
            self._show(batch, before)

    def _show(self, batch: Changes, before: dict[bytes, bytes]) -> None:
        after = self.synced[Table.LOG].values
        touched: dict[bytes, None] = {}
        for key, value, table in batch.changes:
            if table is Table.LOG:
                if isinstance(value, tuple):
                    touched.update(dict.fromkeys([one for one in before if key <= one < value[0]]))
                else:
                    touched[key] = None
        rows = {place_of(key): (before.get(key), after.get(key)) for key in touched}
        self.model.sync(id(batch), {place: pair for place, pair in rows.items() if pair != (None, None)})
        for shelf in (MAIN, DEAD):
            self.check_marks(shelf)

    # --- what lies beside the messages --------------------------------------------------------------------------------

    def marks(self, shelf: str) -> Marks:
        value = self.synced[Table.INDEX].values.get(PREFIXES[shelf] + keys.MARKS)
        return Marks(*MARKS.unpack(value)[1:]) if value is not None else Marks()

    def rows(self, shelf: str, kind: bytes) -> list[bytes]:
        prefix = PREFIXES[shelf] + kind
        return [key for key in self.synced[Table.INDEX].keys if key.startswith(prefix)]

    def check_marks(self, shelf: str) -> None:
        """With every batch: how many messages of each kind there are, and from where on to look for them."""
        model, marks = self.model, self.marks(shelf)
        held = {kind: model.at(shelf, kind) for kind in (ACTIVE, DEFERRED, SCHEDULED)}
        counted = {kind: (len(found), sum(one.size for one in found)) for kind, found in held.items()}
        written = {
            ACTIVE: (marks.active_count, marks.active_bytes),
            DEFERRED: (marks.deferred_count, marks.deferred_bytes),
            SCHEDULED: (marks.scheduled_count, marks.scheduled_bytes),
        }
        if counted != written:
            raise Violation(f"{shelf}: there are {counted}, and the marks say {written}")
        values = self.synced[Table.INDEX].values
        states = sum(len(key) + len(values[key]) for key in self.rows(shelf, keys.STATE))
        if marks.state_bytes != states:
            raise Violation(f"{shelf}: session states have {states} bytes, and the marks say {marks.state_bytes}")
        if marks.next <= model.highest[shelf]:
            raise Violation(f"{shelf}: the next number is {marks.next}, and there was {model.highest[shelf]}")
        lowest = min((one.place.number for one in held[ACTIVE] if one.place), default=marks.low)
        if lowest < marks.low:
            raise Violation(f"{shelf}: the low mark is {marks.low}, and there is {lowest}")
        self._check_agenda(shelf, keys.EXPIRY, (marks.expiry_low_ms, marks.expiry_low), ACTIVE)
        self._check_agenda(shelf, keys.DUE, (marks.due_low_ms, marks.due_low), SCHEDULED)

    def _check_agenda(self, shelf: str, kind: bytes, low: tuple[int, int], place: str) -> None:
        for key in self.rows(shelf, kind):
            moment = keys.moment_of(key)
            if moment < low and Place(shelf, place, moment[1]) in self.model.by_place:
                raise Violation(f"{shelf}: a row of {moment} is below {low}, from where on they are looked at")

    def check_index(self) -> None:
        """Every message has the rows that go with it, and no other has any; where nothing is going on."""
        for shelf in (MAIN, DEAD):
            self._check_sessions(shelf, keys.SESSION, (ACTIVE,))
            self._check_sessions(shelf, keys.ASIDE, (DEFERRED, SCHEDULED))
            self._check_expiry(shelf)
            due = [keys.moment_of(key) for key in self.rows(shelf, keys.DUE)]
            wanted = sorted(
                (message.alarm_ms, message.place.number) for message in self.model.at(shelf, SCHEDULED) if message.place
            )
            if due != wanted:
                raise Violation(f"{shelf}: rows of what is due {due}, and messages {wanted}")

    def check_ids(self) -> None:
        """No more than two generations of ids are there: the one that is being written, and the one before."""
        at, marks = keys.PREFIX_BYTES + keys.KIND_BYTES, self.marks(MAIN)
        there = {int.from_bytes(key[at : at + 8], "big") for key in self.rows(MAIN, keys.IDS)}
        if not there <= {marks.generation - 1, marks.generation}:
            raise Violation(f"ids of the generations {there} are there, and it is {marks.generation}")

    def _check_sessions(self, shelf: str, index: bytes, kinds: tuple[str, ...]) -> None:
        rows = sorted((keys.session_of_key(key), keys.sequence_of(key)) for key in self.rows(shelf, index))
        messages = [message for kind in kinds for message in self.model.at(shelf, kind)]
        if shelf == DEAD or not self.model.description.requires_session:
            messages = []
        expected = sorted((one.session or b"", one.place.number) for one in messages if one.place)
        if rows != expected:
            raise Violation(f"{shelf}: rows of sessions {rows}, and {' and '.join(kinds)} messages {expected}")

    def _check_expiry(self, shelf: str) -> None:
        rows = [keys.moment_of(key) for key in self.rows(shelf, keys.EXPIRY)]
        for message in self.model.at(shelf, ACTIVE):
            assert message.place is not None
            mine = [when_ms for when_ms, number in rows if number == message.place.number]
            if message.alarm_ms and not any(when_ms >= message.alarm_ms for when_ms in mine):
                raise Violation(f"{message} expires at {message.alarm_ms}, and has rows at {mine}")


class WatchedStore(MemoryStore):
    """Shows what the broker is told."""

    def __init__(self, disk: WatchedDisk, *, name: str, post: Post) -> None:
        super().__init__(disk, name=name, post=post)
        self.is_hanging = False
        self.is_failing = False
        """The next sync fails."""
        self._model = disk.model

    def commit(self, batch: Batch, done: Answer[None]) -> None:
        assert isinstance(batch, Changes)

        def told(error: StoreError | None) -> None:
            if error is None:
                self._model.told(id(batch))
            done(error)

        super().commit(batch, told)

    def fail_next(self, error: str, random: Random) -> None:
        super().fail_next(error, random)
        self.is_failing = True

    def spare(self) -> None:
        """The next sync does not fail after all."""
        self._sync_error = None
        self.is_failing = False

    def hang(self, *, since: float | None = None) -> None:
        super().hang(since=since)
        self.is_hanging = True

    def resume(self) -> None:
        super().resume()
        self.is_hanging = False
