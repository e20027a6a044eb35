"""Makes Parquet files of journals: a program that a server runs once an hour.

    python -m twinbus.server.usage.rollup FOLDER DAYS JOURNAL...

It is a process of its own. On a thread of the server the loop could do nothing for 45 ms while pyarrow is imported, and
for 225 ms while an hour of 10,000 rows a minute is written, and 50 to 200 MB of memory would never be given back;
beside it, the pauses are 4 and 28 ms, and the memory is what it was. Starting it takes a tenth of a second of another
processor.

Owns: the exit codes, what becomes of a journal that cannot be read, and how long files are kept.
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
    """0 where all of them are Parquet files now, FAILED where one is not: it stays; NO_PYARROW where none can be."""
    folder, days, *journals = arguments
    os.nice(_NICENESS)
    try:
        from twinbus.server.usage import parquet_files  # noqa: PLC0415  # it needs pyarrow
    except ImportError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_NO_PYARROW
    code = 0
    for journal in map(Path, journals):
        try:
            parquet_files.convert_journal(Path(folder), journal)
        except JournalUnreadable as error:
            sys.stderr.write(f"{error}: it is put aside\n")
            journal.rename(journal.with_suffix(UNREADABLE_SUFFIX))
        except FileNotFoundError:
            continue  # somebody else has done it
        except OSError as error:
            sys.stderr.write(f"{journal} cannot be made a Parquet file: {error}\n")
            code = EXIT_FAILED
    remove_orphan_partials(Path(folder))
    if int(days):
        remove_expired(Path(folder), int(days), dt.datetime.now(dt.UTC).date())
    return code


def remove_orphan_partials(folder: Path) -> None:
    """Delete partial minutes whose journals are Parquet files: a power cut came between the two removals."""
    for partial in folder.glob(f"*{PARTIAL_SUFFIX}"):
        if not partial.with_suffix(JOURNAL_SUFFIX).exists():  # a journal is made before its partial minute
            partial.unlink(missing_ok=True)


def remove_expired(folder: Path, retention_days: int, today: dt.date) -> None:
    """Delete the Parquet files of dates more than so many days ago."""
    first = today - dt.timedelta(days=retention_days)
    for found in folder.glob("namespace=*/date=*"):
        with suppress(ValueError):  # no date, so none of ours
            if dt.date.fromisoformat(found.name.removeprefix("date=")) < first:
                shutil.rmtree(found, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
