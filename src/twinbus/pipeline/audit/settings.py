"""What an audit is told: where its inputs are, and what they are inputs of."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinbus.model.path import canonical_key
from twinbus.pipeline.audit.lives import LIVE_JOURNAL_TIMEOUT_S
from twinbus.pipeline.capture.settings import CaptureSettings

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence
    from pathlib import Path

    from twinbus.pipeline.audit.contents import NamespaceAccess


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """Of one audit."""

    journals: Sequence[Path | str]
    """Folders of journals: of senders, of receivers, of syphons."""
    captures: Sequence[str] = ()
    capture_names: Sequence[str] = ()
    """Names of the primary in captures. None: the one that a capture gives it if it is not told another."""
    primary: NamespaceAccess | None = None
    """Without it nobody looks into entities."""
    primary_admin: NamespaceAccess | None = None
    """For what entities are: without it they are taken for what journals let them seem."""
    secondary: NamespaceAccess | None = None
    """Without it nobody looks into the backlog."""
    covered_entities: Sequence[str] = ()
    """Entities, with * for any letters, all of whose receivers write journals, or are captures, that are given here."""
    namespaces: Sequence[str] = ()
    """How clients address the primary; rows of other namespaces are left out. None: all rows count."""
    since: dt.datetime | None = None
    until: dt.datetime | None = None
    """When the sends were made that are asked about; at most up to when the look begins."""
    max_clock_skew_s: float = 5.0
    """How far apart the clocks of all machines may be."""
    live_journal_timeout_s: float = LIVE_JOURNAL_TIMEOUT_S
    """How long to wait for journals that are written to."""
    report_folder: str | None = None
    """Where each message with its verdict is written."""

    def capture_namespaces(self) -> Sequence[str]:
        """Of the namespace that is audited; none where nobody said."""
        if self.capture_names or self.primary is None:
            return self.capture_names
        return [
            CaptureSettings(
                connection_string=self.primary.connection_string, entities=(), target_uri=""
            ).namespace_name()
        ]

    def covers(self, key: str) -> bool:
        """Nobody receives from there unseen."""
        return any(fnmatch.fnmatchcase(key, canonical_key(pattern)) for pattern in self.covered_entities)
