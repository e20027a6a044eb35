"""The journal distinguishes sends from the spool from sends of the application, which sent the message once."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest

from tests.client.pairing.spool.fake_namespaces import (
    PRIMARY,
    SECONDARY,
    FakeNamespaces,
    make_fake_namespaces,
    pair_namespaces,
)
from twinbus.client.journal_file import SUFFIX, read
from twinbus.client.pairing import EventKind
from twinbus.model.message import BrokeredMessage

if TYPE_CHECKING:
    from pathlib import Path

TIME_TO_LIVE = dt.timedelta(hours=1)


@pytest.fixture
def namespaces(monkeypatch: pytest.MonkeyPatch) -> FakeNamespaces:
    return make_fake_namespaces(monkeypatch)


def sends_in(folder: Path) -> list[tuple[str, str, int]]:
    rows = [row for path in folder.glob(f"*{SUFFIX}") for row in read(path).to_pylist() if row["kind"] == "send"]
    return [(row["outcome"], row["reason"], row["time_to_live"]) for row in rows]


@pytest.mark.parametrize("restored", [PRIMARY, SECONDARY])
async def test_a_spooled_message_is_written_as_from_the_spool_when_it_is_sent(
    namespaces: FakeNamespaces, tmp_path: Path, restored: str
) -> None:
    async with pair_namespaces(namespaces, tmp_path / "spool", journal_dir=tmp_path / "journal") as pairing:
        namespaces.down_namespaces = {PRIMARY, SECONDARY}
        await pairing.primary.create_message_sender("orders").send(
            BrokeredMessage(message_id="1", time_to_live=TIME_TO_LIVE)
        )
        if restored == PRIMARY:
            namespaces.end_outage(pairing)
        else:
            namespaces.down_namespaces = {PRIMARY}
        await namespaces.wait_until(lambda: namespaces.event_message_ids(EventKind.UNSPOOLED) == ["1"])
    spooled, from_spool = sends_in(tmp_path / "journal")
    assert (spooled[0], spooled[2]) == ("spooled", 3_600_000)
    assert from_spool == ("sent" if restored == PRIMARY else "parked", "from the spool", 3_600_000)
