"""Where in a configuration file something is said, so that an error can name it.

    Config.json: UserConfig.Namespaces[0].Queues[2].Properties.LockDuration: expected a duration, found the number 60

Owns: how a place is written.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twinbus.server.settings import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

_PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9_$-]+")


class InvalidConfig(ConfigurationError):
    """A file says what cannot be."""


@dataclass(frozen=True, slots=True)
class Location:
    """A file, and a key in it; without a key, all of the file."""

    file: Path
    key: str = ""

    def child(self, key: str) -> Location:
        """A key of the table that is here."""
        if not _PLAIN_KEY.fullmatch(key):
            return Location(self.file, f"{self.key}[{json.dumps(key)}]")
        return Location(self.file, f"{self.key}.{key}" if self.key else key)

    def item(self, number: int) -> Location:
        """One of the list that is here."""
        return Location(self.file, f"{self.key}[{number}]")

    def error(self, reason: str) -> InvalidConfig:
        """What is wrong here."""
        return InvalidConfig(f"{self}: {reason}")

    def __str__(self) -> str:
        return f"{self.file}: {self.key}" if self.key else str(self.file)
