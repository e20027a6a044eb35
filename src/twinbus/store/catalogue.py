"""Catalogue of a namespace: its entities, their descriptions, and the store of each fragment.

Owns `catalogue.db`, an SQLite database. A change is on disk when its call returns; if the call raises, nothing changed.
The catalogue keeps no copy in memory; callers that keep a copy must update it after the call. Calls block until the
disk operation finishes, and must not overlap; they may come from any thread. Must not know messages: for a deleted
entity, the catalogue only records that the entity's messages must be removed.
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
"""Description classes by entity kind. Fields that are missing in a stored description get their defaults; unknown
fields are ignored."""
KIND_OF_DESCRIPTION: Final = {described: kind for kind, described in DESCRIPTION_TYPES.items()}
_BUSY_TIMEOUT_S: Final = 1.0
"""Time to wait while another program, such as an SQLite tool, locks the file."""

# Use a rollback journal, not a write-ahead log: changes are rare, a copy of the single file is complete, and after a
# failed sync the next start rolls back. Set `synchronous` to EXTRA, because FULL does not sync the removal of the
# journal: a journal that reappears after a power cut would undo a change that was confirmed.
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
    """Entity in the catalogue. Times are wall-clock milliseconds."""

    id: int
    kind: str
    path: str
    """Path as spelled when the entity was created."""
    description: Description
    created_ms: int
    updated_ms: int
    fragments: tuple[int, ...]
    """Store number of each fragment, indexed by fragment number."""

    @property
    def path_key(self) -> str:
        """Canonical form of the path, equal for all spellings."""
        return canonical_key(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupRow:
    """Deleted entity whose records still have to be removed from the stores."""

    id: int
    fragments: tuple[int, ...]
    topic_id: int | None = None
    """Id of the topic that a deleted subscription belonged to; the topic may hold bodies of the subscription's
    messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleRow:
    """Rule of a subscription in the catalogue."""

    entity_id: int
    description: RuleDescription


class Catalogue:
    """Catalogue of all entities in a namespace."""

    def __init__(self, file: Path) -> None:
        """Open or create the database, or raise StoreUnavailable."""
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
        """Close the database."""
        self._database.close()

    def _connect(self) -> sqlite3.Connection:
        # Create the file readable only by its owner, and refuse symbolic links, which SQLite would follow. SQLite gives
        # its journal the same mode.
        os.close(os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        return sqlite3.connect(self._file, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)

    def _sync_directory(self) -> None:
        """Sync the directory, so that the file exists after a power cut; SQLite syncs the contents."""
        descriptor = os.open(self._file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def entities(self) -> list[EntityRow]:
        """Return all entities in order of creation."""
        with self._read() as database:
            rows = database.execute(f"SELECT {_COLUMNS} FROM entities ORDER BY id").fetchall()  # noqa: S608  # constant columns
        return [self._decode_entity(row) for row in rows]

    def rules(self) -> list[RuleRow]:
        """Return the rules of all subscriptions in order of creation."""
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
        """Add an entity, with `rules` if it is a subscription. Raises EntityAlreadyExists if the path is taken."""
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
        """Replace the description of an entity, or raise EntityNotFound. The fragments stay in their stores."""
        with self._transaction() as database:
            database.execute(
                "UPDATE entities SET description = ?, updated_ms = ? WHERE path_key = ?",
                (_encode_json(description), now_ms, path_key),
            )
            return self._get_entity(path_key)

    def delete(self, *path_keys: str, topic_id: int | None = None) -> list[CleanupRow]:
        """Delete entities in one transaction and record their pending cleanup, or raise EntityNotFound.

        If the entities are subscriptions and their topic is not deleted, `topic_id` is the id of the topic.
        """
        cleanups = []
        with self._transaction() as database:
            for path_key in path_keys:
                row = self._get_entity(path_key)
                values = (row.id, _encode_json(row.fragments), topic_id)
                database.execute("INSERT INTO doomed (id, fragments, topic_id) VALUES (?, ?, ?)", values)
                database.execute("DELETE FROM entities WHERE id = ?", (row.id,))
                database.execute("DELETE FROM rules WHERE entity_id = ?", (row.id,))
                cleanups.append(CleanupRow(id=row.id, fragments=row.fragments, topic_id=topic_id))
        return cleanups

    def add_rule(self, entity_id: int, rule: RuleDescription) -> None:
        """Add a rule to a subscription. Raises EntityAlreadyExists if the name is taken in any spelling."""
        with self._transaction() as database:
            query = "SELECT 1 FROM rules WHERE entity_id = ? AND name_key = ?"
            if database.execute(query, (entity_id, canonical_key(rule.name))).fetchone():
                raise EntityAlreadyExists(f"The rule '{rule.name}' already exists.")
            self._insert_rule(entity_id, rule)

    def update_rule(self, entity_id: int, rule: RuleDescription) -> None:
        """Replace the rule of the same name."""
        with self._transaction() as database:
            database.execute(
                "UPDATE rules SET description = ? WHERE entity_id = ? AND name_key = ?",
                (_encode_json(rule), entity_id, canonical_key(rule.name)),
            )

    def delete_rule(self, entity_id: int, name: str) -> None:
        """Delete a rule."""
        with self._transaction() as database:
            database.execute("DELETE FROM rules WHERE entity_id = ? AND name_key = ?", (entity_id, canonical_key(name)))

    def _insert_rule(self, entity_id: int, rule: RuleDescription) -> None:
        values = (entity_id, canonical_key(rule.name), _encode_json(rule))
        self._database.execute("INSERT INTO rules (entity_id, name_key, description) VALUES (?, ?, ?)", values)

    def pending_cleanups(self) -> list[CleanupRow]:
        """Return the deleted entities that are not removed from all stores yet, oldest first."""
        with self._read() as database:
            rows = database.execute("SELECT id, fragments, topic_id FROM doomed ORDER BY id").fetchall()
        return [
            CleanupRow(id=id_, fragments=self._decode_fragments(text), topic_id=topic_id)
            for id_, text, topic_id in rows
        ]

    def finish_cleanup(self, entity_id: int) -> None:
        """Record that a deleted entity is removed from all stores. Idempotent."""
        with self._transaction() as database:
            database.execute("DELETE FROM doomed WHERE id = ?", (entity_id,))

    def _find_entity(self, path_key: str) -> EntityRow | None:
        row = self._database.execute(f"SELECT {_COLUMNS} FROM entities WHERE path_key = ?", (path_key,)).fetchone()  # noqa: S608  # constant columns
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
        """Run a transaction, after which either all changes are on disk or none of them."""
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
        # A failed COMMIT may or may not have ended the transaction. If the rollback fails too, the next BEGIN fails.
        if self._database.in_transaction:
            with suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")

    def _decode_entity(self, row: tuple[int, str, str, str, int, int, str]) -> EntityRow:
        id_, kind, path, description, created_ms, updated_ms, fragments = row
        try:
            described: Description = msgspec.json.decode(description, type=DESCRIPTION_TYPES[kind])
        except (KeyError, msgspec.MsgspecError, ServiceBusError) as error:
            raise StoreUnavailable(
                f"the catalogue {self._file} has an invalid description of {path!r} as a {kind}: {error}"
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
            raise StoreUnavailable(f"the catalogue {self._file} has an invalid rule: {error}") from error

    def _decode_fragments(self, text: str) -> tuple[int, ...]:
        try:
            return msgspec.json.decode(text, type=tuple[int, ...])
        except msgspec.MsgspecError as error:
            raise StoreUnavailable(f"the catalogue {self._file} has an invalid list of stores: {text!r:.80}") from error


def _encode_json(value: object) -> str:
    return msgspec.json.encode(value).decode()
