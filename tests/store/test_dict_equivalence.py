"""Model test: a store holds the same records as a dict after any operations, including reopens and kills."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.store.store_harness import LAST, MemoryHarness, RocksHarness
from twinbus.store.protocol import Table

if TYPE_CHECKING:
    from tests.store.store_harness import StoreHarness
    from twinbus.store.change_batch import Change
    from twinbus.store.protocol import Row

keys = st.binary(max_size=2)
tables = st.sampled_from(Table)
changes = st.one_of(
    st.tuples(keys, st.binary(max_size=20), tables),
    st.tuples(keys, st.none(), tables),
    st.tuples(keys, st.tuples(keys), tables),
)


class DictEquivalence(RuleBasedStateMachine):
    """Commits, reads, reopens and kills in any order."""

    harness: StoreHarness

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[Table, dict[bytes, bytes]] = {table: {} for table in Table}

    def apply(self, change: Change) -> None:
        key, value, table = change
        if isinstance(value, bytes):
            self.model[table][key] = value
        elif value is None:
            self.model[table].pop(key, None)
        else:
            self.model[table] = {k: v for k, v in self.model[table].items() if not key <= k < value[0]}

    def range(self, start: bytes, end: bytes, table: Table) -> list[Row]:
        return sorted((key, value) for key, value in self.model[table].items() if start <= key < end)

    @rule(batches=st.lists(st.lists(changes, max_size=6), min_size=1, max_size=4))
    def commit(self, batches: list[list[Change]]) -> None:
        results: list[object] = []
        for batch_changes in batches:
            batch = self.harness.store.batch()
            for key, value, table in batch_changes:
                if isinstance(value, bytes):
                    batch.put(key, value, table)
                elif value is None:
                    batch.delete(key, table)
                else:
                    batch.delete_range(key, value[0], table)
                self.apply((key, value, table))
            self.harness.store.commit(batch, results.append)
        while len(results) < len(batches):
            self.harness.run_callbacks()
        assert results == [None] * len(batches)

    @rule(wanted=st.lists(keys, max_size=5), table=tables)
    def get(self, wanted: list[bytes], table: Table) -> None:
        assert self.harness.get(*wanted, table=table) == [self.model[table].get(key) for key in wanted]

    @rule(start=keys, end=keys, limit=st.integers(0, 5), table=tables)
    def scan(self, start: bytes, end: bytes, limit: int, table: Table) -> None:
        assert self.harness.scan(start, end, limit=limit, table=table) == self.range(start, end, table)[:limit]

    @rule()
    def reopen(self) -> None:
        self.harness.reopen()

    @rule()
    def kill(self) -> None:
        self.harness.kill()

    @invariant()
    def store_equals_dict(self) -> None:
        for table in Table:
            assert self.harness.scan(table=table) == self.range(b"", LAST, table)


class RocksDictEquivalence(DictEquivalence):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="twinbus-"))
        self.harness = RocksHarness(self.directory / "store")

    def teardown(self) -> None:
        self.harness.call(self.harness.store.close)
        shutil.rmtree(self.directory)


class MemoryDictEquivalence(DictEquivalence):
    def __init__(self) -> None:
        super().__init__()
        self.harness = MemoryHarness()


TestRocks = RocksDictEquivalence.TestCase
TestRocks.settings = settings(max_examples=8, stateful_step_count=12, deadline=None)
TestMemory = MemoryDictEquivalence.TestCase
TestMemory.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
