"""Records in the stores of a stopped server, read from their directories.

Owns: which records may exist when no entity has a message. `twinbus.broker.store_keys` has the layout of keys.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Final

from twinbus.broker import store_keys
from twinbus.store.protocol import Table
from twinbus.store.rocks_database import RocksDatabase
from twinbus.store.rocks_tuning import RocksTuning

if TYPE_CHECKING:
    from pathlib import Path

FULL_RANGE: Final = (b"", b"\xff" * store_keys.PREFIX_BYTES)
SCAN_LIMIT: Final = 1_000_000
RELEASE_TIMEOUT_S: Final = 10.0
EXPECTED_RECORDS: Final = {
    Table.LOG: frozenset[bytes](),
    Table.INDEX: frozenset({store_keys.COUNTERS, store_keys.DUPLICATE_IDS, store_keys.FORWARDED_UP_TO}),
}
"""Kinds of records that stay without messages: counters, ids for duplicate detection, positions of forwarding."""
RECORD_NAMES: Final = {
    Table.LOG: {store_keys.ACTIVE: "messages", store_keys.DEFERRED: "deferred ones", store_keys.SHARED_BODY: "bodies"},
    Table.INDEX: {store_keys.BODY_CHECK: "bodies to be looked at", store_keys.SESSION_MESSAGES: "messages of sessions"},
}


def remaining_records(stores: Path) -> list[str]:
    """Return a problem for each kind of record that should not exist."""
    problems = []
    for directory in sorted(stores.iterdir()):
        database = RocksDatabase(directory, RocksTuning())
        for table, expected in EXPECTED_RECORDS.items():
            rows, _ = database.scan(*FULL_RANGE, SCAN_LIMIT, SCAN_LIMIT * 1_000, table)
            kinds = collections.Counter(
                key[store_keys.PREFIX_BYTES : store_keys.PREFIX_BYTES + store_keys.KIND_BYTES] for key, _ in rows
            )
            for kind, count in kinds.items():
                if kind not in expected:
                    name = RECORD_NAMES[table].get(kind, f"records of kind {kind.hex()} in {table.name}")
                    problems.append(
                        f"leftovers: store {directory.name} has {count} {name}, and no entity has a message"
                    )
        assert database.release(RELEASE_TIMEOUT_S)
    return problems
