"""The catalogue: which entities there are, what each was told to be, and in which store each of its fragments lies.

Owns: `catalogue.db`, an SQLite database. A change is on disk when its call returns, and not made at all when it raises.
Nothing is kept in memory here: who keeps a copy changes it after the call returned. A call blocks while the disk works;
one call at a time, from any thread. Knows nothing of messages: what a deleted entity leaves behind it only names.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from twinbus.model.errors import DiskFull, EntityAlreadyExists, EntityNotFound, ServiceBusError, StoreUnavailable
from twinbus.model.path import canonical_key
from twinbus.model.queue import QueueDescription
from twinbus.model.rule import RuleDescription
from twinbus.model.topic import SubscriptionDescription, TopicDescription

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

QUEUE: Final = "queue"
TOPIC: Final = "topic"
SUBSCRIPTION: Final = "subscription"
Description: TypeAlias = "QueueDescription | TopicDescription | SubscriptionDescription"
DESCRIPTION_TYPES: Final[dict[str, type[Description]]] = {
    QUEUE: QueueDescription,
    TOPIC: TopicDescription,
    SUBSCRIPTION: SubscriptionDescription,
}
"""What describes an entity, by its kind. A field that is not stored has its default; one that is unknown is ignored."""
KIND_OF_DESCRIPTION: Final = {described: kind for kind, described in DESCRIPTION_TYPES.items()}
_BUSY_TIMEOUT_S: Final = 1.0
"""How long to wait for somebody who looks into the file with a tool of SQLite."""

# A rollback journal, not a write-ahead log: changes are few, the file is whole by itself for whoever copies it, and
# after a failed sync the next start rolls back. EXTRA, because FULL does not sync the removal of the journal: one that
# is back after a power cut would undo a change that was answered.
_SCHEMA: Final = """
    PRAGMA journal_mode = DELETE;
    PRAGMA synchronous = EXTRA;
    BEGIN IMMEDIATE;
    CREATE TABLE IF NOT EXISTS entities (
        id INTEGER PRIMARY KEY AUTOINCREMENT, -- never given twice: a new entity does not find the records of an old one
        kind TEXT NOT NULL,
        path TEXT NOT NULL,
        path_key TEXT NOT NULL UNIQUE,
        description TEXT NOT NULL,
        created_ms INTEGER NOT NULL,
        updated_ms INTEGER NOT NULL,
        fragments TEXT NOT NULL
    );
    CREATE TABLE IF NOT EXISTS rules (
        id INTEGER PRIMARY KEY AUTOINCREMENT, -- the order of their making
        entity_id INTEGER NOT NULL,
        name_key TEXT NOT NULL,
        description TEXT NOT NULL,
        UNIQUE (entity_id, name_key)
    );
    CREATE TABLE IF NOT EXISTS doomed (
        id INTEGER PRIMARY KEY,
        fragments TEXT NOT NULL,
        topic_id INTEGER -- of a subscription
    );
    COMMIT;
"""
_COLUMNS: Final = "id, kind, path, description, created_ms, updated_ms, fragments"


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityRow:
    """An entity, as the catalogue has it. Times are milliseconds of the wall clock."""

    id: int
    kind: str
    path: str
    """As it was spelled when it was created."""
    description: Description
    created_ms: int
    updated_ms: int
    fragments: tuple[int, ...]
    """The number of the store that each fragment lies in, by the number of the fragment."""

    @property
    def path_key(self) -> str:
        """What every spelling of its path has in common."""
        return canonical_key(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupRow:
    """An entity that was deleted, and whose records still have to be removed from the stores."""

    id: int
    fragments: tuple[int, ...]
    topic_id: int | None = None
    """Of the topic whose subscription it was, and where bodies of its messages may lie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleRow:
    """A rule of a subscription."""

    entity_id: int
    description: RuleDescription


class Catalogue:
    """All entities of a namespace."""

    def __init__(self, file: Path) -> None:
        """Open the database, or make it; StoreUnavailable says why not."""
        self._file = file
        try:
            self._database = self._connect()
        except (OSError, sqlite3.Error) as error:
            raise StoreUnavailable(f"the catalogue {file} cannot be opened: {error}") from error
        try:
            self._database.executescript(_SCHEMA)
            self._sync_directory()
        except (OSError, sqlite3.Error) as error:
            self._database.close()
            raise StoreUnavailable(f"the catalogue {file} cannot be opened: {error}") from error

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()

    def _connect(self) -> sqlite3.Connection:
        # Made here for its owner alone; SQLite gives its journal the same mode, and would follow a link.
        os.close(os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        return sqlite3.connect(self._file, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)

    def _sync_directory(self) -> None:
        """The file itself is there after a power cut; SQLite sees to what is in it."""
        descriptor = os.open(self._file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def entities(self) -> list[EntityRow]:
        """Every entity, in the order of their making."""
        with self._read() as database:
            rows = database.execute(f"SELECT {_COLUMNS} FROM entities ORDER BY id").fetchall()  # noqa: S608  # ours
        return [self._decode_entity(row) for row in rows]

    def rules(self) -> list[RuleRow]:
        """Every rule of every subscription, in the order of their making."""
        with self._read() as database:
            rows = database.execute("SELECT entity_id, description FROM rules ORDER BY id").fetchall()
        return [RuleRow(entity_id=entity_id, description=self._decode_rule(text)) for entity_id, text in rows]

    def create(
        self,
        kind: str,
        path: str,
        description: Description,
        fragments: Sequence[int],
        now_ms: int,
        rules: Sequence[RuleDescription] = (),
    ) -> EntityRow:
        """Add an entity; EntityAlreadyExists if its name is taken in any spelling. A subscription has rules at once."""
        values = (
            kind,
            path,
            canonical_key(path),
            _encode_json(description),
            now_ms,
            now_ms,
            _encode_json(tuple(fragments)),
        )
        with self._transaction() as database:
            if self._find_entity(canonical_key(path)):
                raise EntityAlreadyExists(f"The messaging entity '{path}' already exists.")
            cursor = database.execute(
                "INSERT INTO entities (kind, path, path_key, description, created_ms, updated_ms, fragments) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                values,
            )
            assert cursor.lastrowid is not None
            for rule in rules:
                self._insert_rule(cursor.lastrowid, rule)
        return EntityRow(
            id=cursor.lastrowid,
            kind=kind,
            path=path,
            description=description,
            created_ms=now_ms,
            updated_ms=now_ms,
            fragments=tuple(fragments),
        )

    def update(self, path_key: str, description: Description, now_ms: int) -> EntityRow:
        """Describe an entity anew; EntityNotFound if there is none. Its fragments stay where they are."""
        with self._transaction() as database:
            database.execute(
                "UPDATE entities SET description = ?, updated_ms = ? WHERE path_key = ?",
                (_encode_json(description), now_ms, path_key),
            )
            return self._get_entity(path_key)

    def delete(self, *path_keys: str, topic_id: int | None = None) -> list[CleanupRow]:
        """Forget entities together, and remember that their records must go; EntityNotFound if there is no such one.

        `topic_id` is that of the topic that goes on without these subscriptions.
        """
        doomed = []
        with self._transaction() as database:
            for path_key in path_keys:
                row = self._get_entity(path_key)
                values = (row.id, _encode_json(row.fragments), topic_id)
                database.execute("INSERT INTO doomed (id, fragments, topic_id) VALUES (?, ?, ?)", values)
                database.execute("DELETE FROM entities WHERE id = ?", (row.id,))
                database.execute("DELETE FROM rules WHERE entity_id = ?", (row.id,))
                doomed.append(CleanupRow(id=row.id, fragments=row.fragments, topic_id=topic_id))
        return doomed

    def add_rule(self, entity_id: int, rule: RuleDescription) -> None:
        """Add a rule to a subscription; EntityAlreadyExists if its name is taken in any spelling."""
        with self._transaction() as database:
            found = "SELECT 1 FROM rules WHERE entity_id = ? AND name_key = ?"
            if database.execute(found, (entity_id, canonical_key(rule.name))).fetchone():
                raise EntityAlreadyExists(f"The rule '{rule.name}' already exists.")
            self._insert_rule(entity_id, rule)

    def update_rule(self, entity_id: int, rule: RuleDescription) -> None:
        """Another rule takes the place of the one of the same name."""
        with self._transaction() as database:
            database.execute(
                "UPDATE rules SET description = ? WHERE entity_id = ? AND name_key = ?",
                (_encode_json(rule), entity_id, canonical_key(rule.name)),
            )

    def delete_rule(self, entity_id: int, name: str) -> None:
        """Forget a rule."""
        with self._transaction() as database:
            database.execute("DELETE FROM rules WHERE entity_id = ? AND name_key = ?", (entity_id, canonical_key(name)))

    def _insert_rule(self, entity_id: int, rule: RuleDescription) -> None:
        values = (entity_id, canonical_key(rule.name), _encode_json(rule))
        self._database.execute("INSERT INTO rules (entity_id, name_key, description) VALUES (?, ?, ?)", values)

    def pending_cleanups(self) -> list[CleanupRow]:
        """What was deleted and not yet removed from all its stores, the oldest first."""
        with self._read() as database:
            rows = database.execute("SELECT id, fragments, topic_id FROM doomed ORDER BY id").fetchall()
        return [
            CleanupRow(id=id_, fragments=self._decode_fragments(text), topic_id=topic_id)
            for id_, text, topic_id in rows
        ]

    def finish_cleanup(self, entity_id: int) -> None:
        """Nothing of a deleted entity is left in any store; said twice, it is still so."""
        with self._transaction() as database:
            database.execute("DELETE FROM doomed WHERE id = ?", (entity_id,))

    def _find_entity(self, path_key: str) -> EntityRow | None:
        row = self._database.execute(f"SELECT {_COLUMNS} FROM entities WHERE path_key = ?", (path_key,)).fetchone()  # noqa: S608  # ours
        return self._decode_entity(row) if row else None

    def _get_entity(self, path_key: str) -> EntityRow:
        row = self._find_entity(path_key)
        if row is None:
            raise EntityNotFound(path_key)
        return row

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        try:
            yield self._database
        except sqlite3.Error as error:
            raise StoreUnavailable(f"the catalogue {self._file} cannot be read: {error}") from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it is on disk at the end, or none of it."""
        try:
            self._database.execute("BEGIN IMMEDIATE")
            yield self._database
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            text = f"the catalogue {self._file} cannot be written: {error}; nothing was changed"
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
                raise DiskFull(f"{text}. Free space on that disk, and try again") from error
            raise StoreUnavailable(text) from error
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        # A COMMIT that failed may have ended the transaction, or not. If even this fails, so does the next BEGIN.
        if self._database.in_transaction:
            with suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")

    def _decode_entity(self, row: tuple[int, str, str, str, int, int, str]) -> EntityRow:
        id_, kind, path, description, created_ms, updated_ms, fragments = row
        try:
            described: Description = msgspec.json.decode(description, type=DESCRIPTION_TYPES[kind])
        except (KeyError, msgspec.MsgspecError, ServiceBusError) as error:
            raise StoreUnavailable(
                f"the catalogue {self._file} describes {path!r} as no {kind} can be: {error}"
            ) from error
        return EntityRow(
            id=id_,
            kind=kind,
            path=path,
            description=described,
            created_ms=created_ms,
            updated_ms=updated_ms,
            fragments=self._decode_fragments(fragments),
        )

    def _decode_rule(self, text: str) -> RuleDescription:
        try:
            return msgspec.json.decode(text, type=RuleDescription)
        except (msgspec.MsgspecError, ServiceBusError) as error:
            raise StoreUnavailable(f"the catalogue {self._file} has a rule as no rule can be: {error}") from error

    def _decode_fragments(self, text: str) -> tuple[int, ...]:
        try:
            return msgspec.json.decode(text, type=tuple[int, ...])
        except msgspec.MsgspecError as error:
            raise StoreUnavailable(f"the catalogue {self._file} has no list of stores in {text!r:.80}") from error


def _encode_json(value: object) -> str:
    return msgspec.json.encode(value).decode()
