"""docs/spool.md matches the options, constants, events and status of the code."""

from __future__ import annotations

import re
from pathlib import Path

from twinbus.client.pairing import EventKind, SendAvailabilityPairedNamespaceOptions, SpoolStatus
from twinbus.client.pairing.spool.files import SEGMENT_BYTES
from twinbus.client.pairing.spool.spool_sender import FIRST_PAUSE_S, MAX_IN_FLIGHT, MAX_PAUSE_S

PAGE = (Path(__file__).parents[4] / "docs" / "spool.md").read_text()


def test_the_options_and_their_defaults_are_documented() -> None:
    documented = dict(re.findall(r"^\| `(spool_\w+)` \| ([^|]+?) \|", PAGE, re.MULTILINE))
    defaults = vars(SendAvailabilityPairedNamespaceOptions)
    assert documented == {
        "spool_dir": str(defaults["spool_dir"]),
        "spool_max_bytes": f"{defaults['spool_max_bytes']:,}",
    }


def test_the_pauses_and_limits_are_documented() -> None:
    assert f"{FIRST_PAUSE_S:g} s" in PAGE
    assert f"{MAX_PAUSE_S:g} s" in PAGE
    assert f"{MAX_IN_FLIGHT} messages" in PAGE
    assert f"{SEGMENT_BYTES // 2**20} MiB" in PAGE


def test_every_spool_event_and_every_status_field_is_documented() -> None:
    documented = set(re.findall(r"`([\w.]+)`", PAGE))
    assert {f"EventKind.{kind.name}" for kind in EventKind if "SPOOL" in kind.name} <= documented
    assert set(SpoolStatus.__slots__) <= documented
