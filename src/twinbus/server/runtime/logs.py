"""Log output of the server: one line per record on stderr, as text or as JSON.

    logger.info("link attached", extra={"link": "orders", "credit": 10})
    2026-11-16T01:02:03.456Z info twinbus.server.amqp.client_connection link attached link=orders credit=10

Owns: the format of a line. A record with any content (a client's text, a traceback) stays one line, and the values of
keys and signatures are replaced by ***. Knows nothing of what other modules log.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import re
import sys
import time
from math import inf
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

THROTTLE_INTERVAL_S: Final = 10.0


class ThrottledLog:
    """A logger that writes at most one record per interval, with the number of suppressed records."""

    def __init__(
        self,
        log: logging.Logger,
        *,
        interval_s: float = THROTTLE_INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a throttled logger; the first record is always written."""
        self._log = log
        self._interval_s = interval_s
        self._clock = clock
        self._written_s = -inf
        self._suppressed = 0

    def warning(self, text: str, *arguments: object) -> None:
        """Log a warning, unless the last record was written less than an interval ago."""
        now_s = self._clock()
        if now_s - self._written_s < self._interval_s:
            self._suppressed += 1
            return
        extra = {"suppressed": self._suppressed} if self._suppressed else None
        self._written_s, self._suppressed = now_s, 0
        self._log.warning(text, *arguments, extra=extra)


_SECRET: Final = re.compile(
    r"""((?<![A-Za-z])sig(?:=|%3D)|SharedAccessKey(?:=|%3D)) \s* [^\s&;,"'\\<>()]+""", re.IGNORECASE | re.VERBOSE
)
_PLAIN_VALUE: Final = re.compile(r"[^\s\"=\\]+")
_CONTROL_CHARACTER: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_ESCAPES: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_STANDARD_FIELDS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure(level: str, log_format: str, stream: TextIO | None = None, **common_fields: object) -> None:
    """Send all log records of this process to stderr only, each with `common_fields`."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.addFilter(lambda record: vars(record).update(common_fields) is None)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    for existing in root.handlers[:]:
        root.removeHandler(existing)
    root.addHandler(handler)
    set_level(level)
    logging.captureWarnings(capture=True)


def set_level(level: str) -> None:
    """Log records of this level and above from now on."""
    logging.getLogger().setLevel(level.upper())


def mask_secrets(text: str) -> str:
    """Return the text with the values of keys and signatures replaced by ***."""
    return _SECRET.sub(r"\1***", text)


class TextFormatter(logging.Formatter):
    """Formats records as text for people."""

    def format(self, record: logging.LogRecord) -> str:
        """Return time, level, logger and message, followed by the extra fields as key=value."""
        head = f"{_format_time(record)} {record.levelname.lower()} {record.name} {record.getMessage()}"
        values = [f"{name}={_quote_value(value)}" for name, value in _extra_fields(self, record).items()]
        return _escape_line(mask_secrets(" ".join([head, *values])))


class JsonFormatter(logging.Formatter):
    """Formats records as JSON for programs."""

    def format(self, record: logging.LogRecord) -> str:
        """Return time, level, logger, message and extra fields as one JSON object."""
        fields = {
            "time": _format_time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        extra = {name: value for name, value in _extra_fields(self, record).items() if name not in fields}
        # `json` instead of msgspec, because it escapes everything but ASCII, so a lone surrogate in a text is valid.
        return mask_secrets(json.dumps(fields | extra, default=str))


def _format_time(record: logging.LogRecord) -> str:
    time = dt.datetime.fromtimestamp(record.created, dt.UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _extra_fields(formatter: logging.Formatter, record: logging.LogRecord) -> Mapping[str, object]:
    """Return the `extra` fields of a record, with its exception and stack."""
    extra = {name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS}
    if record.exc_info and record.exc_info[0]:
        extra["exception"] = formatter.formatException(record.exc_info)
    if record.stack_info:
        extra["stack"] = record.stack_info
    return extra


def _quote_value(value: object) -> str:
    text = str(value)
    if _PLAIN_VALUE.fullmatch(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _escape_line(text: str) -> str:
    """Escape control characters, so that a client's text cannot imitate a separate record."""
    return _CONTROL_CHARACTER.sub(lambda match: _ESCAPES.get(match[0]) or f"\\u{ord(match[0]):04x}", text)
