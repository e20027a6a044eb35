"""What the stores of a server that does not run hold, read from their directories.

Owns: which records may be there when no entity has a message. Where records lie is told in `twinbus.broker.keys`.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Final

from twinbus.broker import keys
from twinbus.store.database import Database
from twinbus.store.protocol import Table
from twinbus.store.tuning import Tuning

if TYPE_CHECKING:
    from pathlib import Path

EVERYTHING: Final = (b"", b"\xff" * keys.PREFIX_BYTES)
MANY: Final = 1_000_000
RELEASE_S: Final = 10.0
STAYS: Final = {Table.LOG: frozenset[bytes](), Table.INDEX: frozenset({keys.MARKS, keys.IDS, keys.SEEN})}
"""Kinds of records that do not go with the messages: counters, ids that were sent, how far was forwarded."""
NAMES: Final = {
    Table.LOG: {keys.ACTIVE: "messages", keys.DEFERRED: "deferred ones", keys.BODY: "bodies"},
    Table.INDEX: {keys.CHECK: "bodies to be looked at", keys.SESSION: "messages of sessions"},
}


def leftovers(stores: Path) -> list[str]:
    """What there is in the stores and should not be."""
    found = []
    for directory in sorted(stores.iterdir()):
        database = Database(directory, Tuning())
        for table, stays in STAYS.items():
            rows, _ = database.scan(*EVERYTHING, MANY, MANY * 1_000, table)
            kinds = collections.Counter(key[keys.PREFIX_BYTES : keys.PREFIX_BYTES + keys.KIND_BYTES] for key, _ in rows)
            for kind, count in kinds.items():
                if kind not in stays:
                    name = NAMES[table].get(kind, f"records of kind {kind.hex()} in {table.name}")
                    found.append(f"leftovers: store {directory.name} has {count} {name}, and no entity has a message")
        assert database.release(RELEASE_S)
    return found
