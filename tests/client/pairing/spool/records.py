"""Helpers that make spool records, spool them, and read them back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.client.pairing.spool.files import SpoolFiles
from twinbus.client.pairing.spool.record import SpoolRecord, encode_record
from twinbus.model.message import BrokeredMessage

if TYPE_CHECKING:
    from pathlib import Path


def make_record(
    name: str, *, path: str = "orders", sessions: tuple[str, ...] = (), body: bytes = b"two pounds"
) -> SpoolRecord:
    message = BrokeredMessage(body, message_id=name)
    return SpoolRecord(
        path=path,
        message_format=0,
        payload=message.encode(1_700_000_000_000),
        may_have_arrived=False,
        spooled_at_ms=1_700_000_000_000,
        message_ids=[name],
        session_ids=list(sessions),
    )


def spool_all(folder: Path, records: list[SpoolRecord]) -> list[int]:
    """Spool records as a process does that then ends; return their positions."""
    files = SpoolFiles(folder)
    files.open(lambda _position, _record: None)
    positions = []
    for record in records:
        (outcome,) = files.append([encode_record(record)])
        assert isinstance(outcome, int), outcome
        positions.append(outcome)
    files.close()
    return positions


def read_spool(folder: Path) -> list[SpoolRecord]:
    """The records that the next process finds."""
    records: list[SpoolRecord] = []
    files = SpoolFiles(folder)
    files.open(lambda _position, record: records.append(record))
    files.close()
    return records


def segment_file(folder: Path) -> Path:
    """The only segment file of a spool."""
    (file,) = folder.glob("*.spool")
    return file


def names_in(folder: Path) -> set[str]:
    """The names of the files in a folder."""
    return {file.name for file in folder.iterdir()}


def bytes_in(folder: Path) -> int:
    """The size of all segment files in a folder."""
    return sum(file.stat().st_size for file in folder.glob("*.spool"))
