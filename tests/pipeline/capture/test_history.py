"""A fragment's capture continues after its last manifest, and files without a manifest are removed."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest

from twinbus.pipeline.capture.folder import Folder
from twinbus.pipeline.capture.manifest import FragmentHistory, Manifest, folder_path, sort_key, to_iso
from twinbus.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pathlib import Path

FRAGMENT_FOLDER = folder_path("Contoso", "Orders", 3)
NOON = dt.datetime(2026, 11, 17, 12, 0, 0, 250_000, tzinfo=dt.UTC)


def manifest(file: str, first: int, last: int, entity_id: int = 7) -> Manifest:
    return Manifest(
        file=file,
        fragment=3,
        sizeInBytes=1,
        eventCount=1,
        firstSequenceNumber=first,
        lastSequenceNumber=last,
        firstEnqueueTime=to_iso(0),
        lastEnqueueTime=to_iso(1),
        namespace="contoso",
        entity="orders",
        entityId=entity_id,
        fromSequenceNumber=first,
        toSequenceNumber=last,
    )


def add(folder: Folder, when: dt.datetime, first: int, last: int, *, entity_id: int = 7) -> Manifest:
    """Write a file with its manifest, as a capture does."""
    history = FragmentHistory(folder, FRAGMENT_FOLDER)
    history.find_last()
    added = manifest(history.next_file_path(when, entity_id, first), first, last, entity_id)
    folder.write_atomically(added.file, b"rows", "_temporary/1")
    folder.write_atomically(added.path, added.encode(), "_temporary/2")
    return added


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(str(tmp_path / "captured"))


def test_a_fragment_that_was_never_captured_has_no_last_file(folder: Folder) -> None:
    assert FragmentHistory(folder, FRAGMENT_FOLDER).find_last() is None


def test_a_path_has_the_namespace_entity_fragment_and_time(folder: Folder) -> None:
    assert (
        FragmentHistory(folder, FRAGMENT_FOLDER).next_file_path(NOON, 7, 17)
        == "contoso/orders/3/2026/11/17/12/00/00-7-17.parquet"
    )


def test_the_last_file_is_the_latest_one(folder: Folder) -> None:
    add(folder, NOON - dt.timedelta(days=400), 1, 5)
    add(folder, NOON, 6, 9)
    last = add(folder, NOON + dt.timedelta(seconds=61), 10, 12)
    assert FragmentHistory(folder, FRAGMENT_FOLDER).find_last() == last


def test_the_last_of_several_files_of_one_second_has_the_highest_numbers(folder: Folder) -> None:
    add(folder, NOON, 5, 9)
    last = add(folder, NOON, 10, 99)
    assert FragmentHistory(folder, FRAGMENT_FOLDER).find_last() == last


def test_a_clock_that_was_set_back_does_not_hide_the_last_file(folder: Folder) -> None:
    add(folder, NOON, 1, 5)
    last = add(folder, NOON - dt.timedelta(hours=5), 6, 9)
    assert FragmentHistory(folder, FRAGMENT_FOLDER).find_last() == last


def test_a_recreated_entity_is_sorted_after_its_predecessor(folder: Folder) -> None:
    add(folder, NOON, 100, 500)
    last = add(folder, NOON, 1, 2, entity_id=8)
    assert FragmentHistory(folder, FRAGMENT_FOLDER).find_last() == last


def test_reused_numbers_are_sorted_last_and_have_distinct_file_names(folder: Folder) -> None:
    manifests = [add(folder, NOON, 1, 1), add(folder, NOON, 2, 500)]
    for last in (2, 7):
        history = FragmentHistory(folder, FRAGMENT_FOLDER)
        history.find_last()
        history.allow_number_reuse()
        new = manifest(history.next_file_path(NOON, 7, 1), 1, last)
        assert not folder.exists(new.file)
        folder.write_atomically(new.file, b"rows", "_temporary/1")
        folder.write_atomically(new.path, new.encode(), "_temporary/2")
        assert FragmentHistory(folder, FRAGMENT_FOLDER).find_last() == new
        manifests.append(new)
    assert sorted(manifests, key=sort_key) == manifests


def test_a_file_without_a_manifest_is_removed(folder: Folder) -> None:
    last = add(folder, NOON, 1, 5)
    history = FragmentHistory(folder, FRAGMENT_FOLDER)
    history.find_last()
    orphans = [history.next_file_path(NOON + dt.timedelta(days=days), 7, 6) for days in (0, 3)]
    for orphan in orphans:
        folder.write_atomically(orphan, b"rows", "_temporary/3")
    assert FragmentHistory(folder, FRAGMENT_FOLDER).find_last() == last
    assert [folder.exists(orphan) for orphan in orphans] == [False, False]
    assert folder.exists(last.file)


def test_files_of_other_fragments_are_ignored(folder: Folder) -> None:
    add(folder, NOON, 1, 5)
    assert FragmentHistory(folder, folder_path("contoso", "orders", 30)).find_last() is None


def test_two_captures_of_one_entity_are_refused(folder: Folder) -> None:
    second_lock = Folder(folder.uri).lock("contoso/orders")
    with folder.lock("contoso/orders"), folder.lock("contoso/news"), pytest.raises(PipelineError, match="another"):
        second_lock.__enter__()
    with folder.lock("contoso/orders"):
        pass


def test_a_manifest_has_the_fields_of_event_hubs_capture_first(folder: Folder) -> None:
    text = add(folder, NOON, 1, 5).encode().decode()
    names = ["file", "fragment", "sizeInBytes", "eventCount", "firstSequenceNumber", "lastSequenceNumber"]
    assert [line.split('"')[1] for line in text.splitlines()[1:7]] == names


@pytest.mark.parametrize(
    ("content", "message"), [(b"{", "not the manifest"), (b'{"version": 2}', "version 2"), (b"[]", "not the m")]
)
def test_an_unreadable_manifest_is_named(content: bytes, message: str) -> None:
    with pytest.raises(PipelineError, match=f"there/x.manifest.json .*{message}"):
        Manifest.decode("there/x.manifest.json", content)


def test_an_invalid_folder_uri_is_named() -> None:
    with pytest.raises(PipelineError, match="nonsense://place"):
        Folder("nonsense://place")
