"""Scans: records in key order, within the bounds, up to the limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.store.store_harness import StoreHarness


def test_a_scan_returns_records_in_byte_order_of_their_keys(harness: StoreHarness) -> None:
    keys = [b"\xff", b"a", b"", b"\x00", b"a\x00", b"B", b"\x00\x00"]
    harness.put(*((key, key) for key in keys))
    assert [key for key, _ in harness.scan()] == sorted(keys)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (b"1", b"3", [b"1", b"2"]),
        (b"0", b"15", [b"1"]),
        (b"15", b"35", [b"2", b"3"]),
        (b"1", b"1", []),
        (b"3", b"1", []),
        (b"4", b"9", []),
        (b"", b"", []),
    ],
)
def test_a_scan_includes_its_start_and_excludes_its_end(
    harness: StoreHarness, start: bytes, end: bytes, expected: list[bytes]
) -> None:
    harness.put((b"1", b""), (b"2", b""), (b"3", b""))
    assert [key for key, _ in harness.scan(start, end)] == expected


@pytest.mark.parametrize(("limit", "rows"), [(0, 0), (1, 1), (3, 3), (4, 3)])
def test_a_scan_returns_no_more_than_its_limit(harness: StoreHarness, limit: int, rows: int) -> None:
    harness.put((b"1", b""), (b"2", b""), (b"3", b""))
    assert len(harness.scan(limit=limit)) == rows


@pytest.mark.parametrize(("max_bytes", "rows"), [(0, 1), (99, 1), (100, 2), (250, 3), (10_000, 5)])
def test_a_scan_stops_once_its_values_exceed_max_bytes(harness: StoreHarness, max_bytes: int, rows: int) -> None:
    harness.put(*((b"%d" % number, bytes(100)) for number in range(5)))
    assert len(harness.scan(max_bytes=max_bytes)) == rows


def test_a_scan_of_an_empty_store_returns_nothing(harness: StoreHarness) -> None:
    assert harness.scan() == []


def test_a_scan_sees_commits_requested_before_it(harness: StoreHarness) -> None:
    batch = harness.store.batch()
    batch.put(b"a", b"1")
    harness.store.commit(batch, lambda _: None)
    assert harness.scan() == [(b"a", b"1")]
