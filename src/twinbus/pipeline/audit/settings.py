"""What an audit is told: where its inputs are, and what they are inputs of."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinbus.model.path import key_of
from twinbus.pipeline.audit.lives import PATIENCE_S
from twinbus.pipeline.capture.settings import CaptureSettings

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence
    from pathlib import Path

    from twinbus.pipeline.audit.contents import Access


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """Of one audit."""

    journals: Sequence[Path | str]
    """Folders of journals: of senders, of receivers, of syphons."""
    captures: Sequence[str] = ()
    captured_as: Sequence[str] = ()
    """Names of the primary in captures. None: the one that a capture gives it if it is not told another."""
    primary: Access | None = None
    """Without it nobody looks into entities."""
    primary_admin: Access | None = None
    """For what entities are: without it they are taken for what journals let them seem."""
    secondary: Access | None = None
    """Without it nobody looks into the backlog."""
    covered: Sequence[str] = ()
    """Entities, with * for any letters, all of whose receivers write journals, or are captures, that are given here."""
    namespaces: Sequence[str] = ()
    """How clients address the primary; rows of other namespaces are left out. None: all rows count."""
    since: dt.datetime | None = None
    until: dt.datetime | None = None
    """When the sends were made that are asked about; at most up to when the look begins."""
    skew_s: float = 5.0
    """How far apart the clocks of all machines may be."""
    patience_s: float = PATIENCE_S
    """How long to wait for journals that are written to."""
    report: str | None = None
    """Where each message with its verdict is written."""

    def names_in_captures(self) -> Sequence[str]:
        """Of the namespace that is audited; none where nobody said."""
        if self.captured_as or self.primary is None:
            return self.captured_as
        return [CaptureSettings(connection_string=self.primary.connection_string, entities=(), to="").namespace_name()]

    def covers(self, key: str) -> bool:
        """Nobody receives from there unseen."""
        return any(fnmatch.fnmatchcase(key, key_of(pattern)) for pattern in self.covered)
