"""Batches: all changes of a batch are applied together, in their order, to both tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from twinbus.store.protocol import Table

if TYPE_CHECKING:
    from tests.store.store_harness import StoreHarness


def test_get_returns_the_values_of_put_keys_and_none_for_others(harness: StoreHarness) -> None:
    harness.put((b"a", b"1"), (b"b", b""))
    assert harness.get(b"b", b"nothing", b"a", b"a") == [b"", None, b"1", b"1"]
    assert harness.get() == []


def test_a_put_overwrites(harness: StoreHarness) -> None:
    harness.put((b"a", b"1"))
    harness.put((b"a", b"2"))
    assert harness.scan() == [(b"a", b"2")]


def test_a_delete_removes_one_record_and_ignores_a_missing_key(harness: StoreHarness) -> None:
    harness.put((b"a", b"1"), (b"b", b"2"))
    batch = harness.store.batch()
    batch.delete(b"a")
    batch.delete(b"never there")
    harness.call_successfully(lambda done: harness.store.commit(batch, done))
    assert harness.scan() == [(b"b", b"2")]


def test_delete_range_includes_its_start_and_excludes_its_end(harness: StoreHarness) -> None:
    harness.put(*((b"%d" % number, b"") for number in range(6)))
    batch = harness.store.batch()
    batch.delete_range(b"1", b"4")
    harness.call_successfully(lambda done: harness.store.commit(batch, done))
    assert [key for key, _ in harness.scan()] == [b"0", b"4", b"5"]


@pytest.mark.parametrize(("start", "end"), [(b"2", b"2"), (b"3", b"1")])
def test_an_empty_or_reversed_range_deletes_nothing(harness: StoreHarness, start: bytes, end: bytes) -> None:
    harness.put((b"1", b""), (b"2", b""), (b"3", b""))
    batch = harness.store.batch()
    batch.delete_range(start, end)
    harness.call_successfully(lambda done: harness.store.commit(batch, done))
    assert len(harness.scan()) == 3


def test_changes_of_one_key_are_applied_in_order(harness: StoreHarness) -> None:
    batch = harness.store.batch()
    batch.put(b"kept", b"before")
    batch.put(b"lost", b"before")
    batch.delete_range(b"a", b"z")
    batch.put(b"kept", b"after")
    batch.put(b"deleted", b"")
    batch.delete(b"deleted")
    harness.call_successfully(lambda done: harness.store.commit(batch, done))
    assert harness.scan() == [(b"kept", b"after")]


def test_one_batch_changes_both_tables_independently(harness: StoreHarness) -> None:
    batch = harness.store.batch()
    for key in (b"a", b"b", b"c"):
        batch.put(key, b"log")
        batch.put(key, b"index", Table.INDEX)
    batch.delete(b"a")
    batch.delete_range(b"b", b"c", Table.INDEX)
    harness.call_successfully(lambda done: harness.store.commit(batch, done))
    assert harness.scan() == [(b"b", b"log"), (b"c", b"log")]
    assert harness.scan(table=Table.INDEX) == [(b"a", b"index"), (b"c", b"index")]
    assert harness.get(b"a", b"b", table=Table.INDEX) == [b"index", None]


def test_an_empty_batch_is_committed_like_any_other(harness: StoreHarness) -> None:
    assert harness.call(lambda done: harness.store.commit(harness.store.batch(), done)) is None


def test_a_batch_reports_its_size_in_bytes(harness: StoreHarness) -> None:
    batch = harness.store.batch()
    batch.put(b"key", b"value")
    batch.delete(b"key")
    batch.delete_range(b"a", b"bc", Table.INDEX)
    assert batch.size == 3 + 5 + 3 + 1 + 2
    harness.call_successfully(lambda done: harness.store.commit(batch, done))
    assert (harness.store.commits, harness.store.bytes_written) == (1, batch.size)
