"""The program that converts journals to Parquet files, which the server runs once an hour.

    python -m twinbus.server.usage.rollup FOLDER DAYS JOURNAL...

The program is a separate process. On a thread of the server, the event loop would stop for 45 ms while pyarrow is
imported, and for 225 ms while an hour of 10,000 rows a minute is written, and 50 to 200 MB of memory would never be
freed; with a separate process, the pauses are 4 and 28 ms, and the server's memory does not grow. Starting the process
takes a tenth of a second of CPU time on another core.

Owns: the exit codes, the handling of journals that cannot be read, and the deletion of old files.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from twinbus.model.usage import JOURNAL_SUFFIX, PARTIAL_SUFFIX, JournalUnreadable

EXIT_FAILED: Final = 1
EXIT_NO_PYARROW: Final = 3
UNREADABLE_SUFFIX: Final = ".unreadable"
_NICENESS: Final = 10


def main(arguments: list[str]) -> int:
    """Convert the journals and return the exit code.

    The code is 0 if all journals are converted, EXIT_FAILED if a journal could not be converted and is kept, and
    EXIT_NO_PYARROW if pyarrow is not installed.
    """
    folder, days, *journals = arguments
    os.nice(_NICENESS)
    try:
        from twinbus.server.usage import parquet_files  # noqa: PLC0415  # the module needs pyarrow
    except ImportError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_NO_PYARROW
    code = 0
    for journal in map(Path, journals):
        try:
            parquet_files.convert_journal(Path(folder), journal)
        except JournalUnreadable as error:
            sys.stderr.write(f"{error}: renamed to *{UNREADABLE_SUFFIX}\n")
            journal.rename(journal.with_suffix(UNREADABLE_SUFFIX))
        except FileNotFoundError:
            continue  # another process has converted the journal
        except OSError as error:
            sys.stderr.write(f"{journal} cannot be converted to a Parquet file: {error}\n")
            code = EXIT_FAILED
    remove_orphan_partials(Path(folder))
    if int(days):
        remove_expired(Path(folder), int(days), dt.datetime.now(dt.UTC).date())
    return code


def remove_orphan_partials(folder: Path) -> None:
    """Delete partial minutes without a journal, left by a power failure between the deletions of the two files."""
    for partial in folder.glob(f"*{PARTIAL_SUFFIX}"):
        if not partial.with_suffix(JOURNAL_SUFFIX).exists():  # a journal is created before its partial minute
            partial.unlink(missing_ok=True)


def remove_expired(folder: Path, retention_days: int, today: dt.date) -> None:
    """Delete the Parquet files for dates more than `retention_days` days ago."""
    first = today - dt.timedelta(days=retention_days)
    for date_folder in folder.glob("namespace=*/date=*"):
        with suppress(ValueError):  # the folder's name is not a date, so the folder is not ours
            if dt.date.fromisoformat(date_folder.name.removeprefix("date=")) < first:
                shutil.rmtree(date_folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
